// Evidence: what the tokens of each kind of traffic say together, and how an alarm is settled.

import { call, failure } from "./api.js";
import { evidenceChart, interval, wide } from "./charts.js";
import { announce, badge, card, chip, count, fixed, h, loading, moment, percent, redraw, replace, state, table, tile, words } from "./dom.js";

const NEEDS = "policy:write";
const REFRESH_SECONDS = 10;
const CAUSES = {
  impossible_token: "a token that the target gives no probability",
  attestation_failed: "something ran that was not decided",
  e_value: "answers do not follow the target's law",
  change: "answers have ceased to follow the target's law",
};

export function show(root, { rest, title }) {
  const ending = new AbortController();
  const context = { root, title, signal: ending.signal, timer: null };
  if (rest.length) showCell(context, rest[0]);
  else showCells(context);
  return () => {
    ending.abort();
    clearTimeout(context.timer);
  };
}

const cellName = (cell) => `${words(cell.domain)}, ${cell.mode}`;

function later(context, action) {
  if (context.signal.aborted) return;
  clearTimeout(context.timer);
  context.timer = setTimeout(() => (document.hidden ? later(context, action) : action()), REFRESH_SECONDS * 1000);
}

function showCells(context) {
  const body = h("div", { class: "stack" }, loading());
  replace(context.root, h("div", { class: "page-head" }, h("h1", {}, context.title)), body);
  async function load() {
    try {
      const { data } = await call("v1/evidence", { signal: context.signal });
      redraw(body, data.length ? cells(data) : state("No evidence yet", "A cell appears with the first finished request of its kind: its domain, mode, verifier, model and draft source."));
      later(context, load);
    } catch (error) {
      if (error.name === "AbortError") return;
      replace(body, refusedOrOff(error, load));
    }
  }
  load();
}

function refusedOrOff(error, retry) {
  if (error.status === 404 && /enabled/.test(error.message)) return state("No evidence is gathered", error.message);
  return failure(error, { retry, needs: NEEDS });
}

function cells(data) {
  const alarms = data.filter((reading) => reading.state !== "ok");
  const runs = data.reduce((total, reading) => total + reading.shadow.runs, 0);
  const equal = data.reduce((total, reading) => total + reading.shadow.equal, 0);
  const measured = data.reduce((total, reading) => total + reading.measured_tokens, 0);
  const impossible = data.reduce((total, reading) => total + reading.impossible_tokens, 0);
  const columns = [
    { name: "Cell" },
    { name: "Mode" },
    { name: "Verifier" },
    { name: "State" },
    { name: "Requests", class: "number" },
    { name: "Measured", class: "number" },
    { name: "log₁₀ e", class: "number" },
    { name: "Surprisal delta" },
    { name: "Tail", class: "number" },
    { name: "Shadow equal", class: "number" },
  ];
  const rows = data.map((reading) => ({
    class: reading.state === "ok" ? "" : "differs",
    cells: [
      h("a", { href: `#/evidence/${encodeURIComponent(reading.id)}` }, words(reading.cell.domain)),
      chip(reading.cell.mode),
      [reading.cell.verifier, reading.cell.draft && h("span", { class: "note" }, ` ${reading.cell.draft}`)],
      stateBadge(reading.state),
      count(reading.requests),
      count(reading.measured_tokens),
      fixed(reading.log10_e, 2),
      around(reading.surprisal, "surprisal delta"),
      ratio(reading.tail),
      reading.shadow.runs ? `${count(reading.shadow.equal)} of ${count(reading.shadow.runs)}` : "–",
    ],
  }));
  return [
    h(
      "dl",
      { class: "tiles" },
      tile("Cells in alarm", count(alarms.length), { kind: alarms.length ? "bad" : "good", note: alarms.length ? "decoded in standard mode while demoted" : `of ${count(data.length)}` }),
      tile("Measured tokens", count(measured), { note: "each against the target's law" }),
      tile("Impossible tokens", count(impossible), { kind: impossible ? "bad" : "good", note: "must read 0" }),
      tile("Shadow runs equal", runs ? percent(equal / runs, 1) : "–", { note: `${count(equal)} of ${count(runs)}` }),
    ),
    table("Cells, those in alarm first", columns, rows, { kind: "rows", hideCaption: true }),
    h("p", { class: "note" }, "Intervals are confidence sequences at 95 %: they hold at every number of tokens at once, however often one looks. The dashed line is where the target's own law would be."),
  ];
}

function stateBadge(name) {
  return badge({ ok: "sound", alarm: "alarm", demoted: "demoted" }[name], name === "ok" ? "good" : "bad");
}

function around(difference, name) {
  if (difference.mean == null) return "–";
  const { mean, low, high } = difference;
  const span = Math.max(Math.abs(low), Math.abs(high), 1e-9) * 1.05;
  return interval({ mean, low, high }, { span, label: `${name} ${fixed(mean, 4)}, from ${fixed(low, 4)} to ${fixed(high, 4)}` });
}

const ratio = (difference) => (difference.ratio == null ? "–" : fixed(difference.ratio, 3));

function showCell(context, id) {
  const body = h("div", { class: "stack" }, loading());
  const heading = h("h1", {}, id);
  replace(context.root, h("div", { class: "page-head" }, h("div", {}, h("a", { href: "#/evidence", class: "back" }, "All cells"), heading)), body);
  async function load() {
    try {
      const found = await call(`v1/evidence/${encodeURIComponent(id)}`, { signal: context.signal });
      heading.textContent = cellName(found.reading.cell);
      // A reason that is being written must not be lost to a refresh.
      if (!body.querySelector("textarea:focus") && !body.querySelector("textarea")?.value) redraw(body, cell(found, id, load));
      later(context, load);
    } catch (error) {
      if (error.name !== "AbortError") replace(body, refusedOrOff(error, load));
    }
  }
  load();
}

function cell({ reading, log10_alarm: alarm, trail, events }, id, reload) {
  const { cell: kind } = reading;
  const highest = trail.reduce((best, [, e]) => Math.max(best, e ?? -Infinity), 0);
  return [
    h(
      "dl",
      { class: "tiles few" },
      tile("State", stateBadge(reading.state), { kind: reading.state === "ok" ? "" : "bad", note: reading.state === "demoted" ? "decoded in standard mode until cleared" : "as decided" }),
      tile("Requests", count(reading.requests), { note: ["last ", moment(reading.last_at)] }),
      tile("Measured tokens", count(reading.measured_tokens), { note: `of ${count(reading.tokens)} emitted` }),
      tile("Impossible tokens", count(reading.impossible_tokens), { kind: reading.impossible_tokens ? "bad" : "", note: "must read 0" }),
      tile("Attestation failures", count(reading.attestation_failures), { kind: reading.attestation_failures ? "bad" : "", note: "must read 0" }),
    ),
    reading.state !== "ok" && clearing(reading, id, reload),
    card(
      "e-value over tokens",
      { note: "since the last clearing, on a logarithmic scale" },
      trail.length
        ? wide(
            "e-value over tokens, drawn",
            evidenceChart(trail, alarm, { label: `e-value over ${count(trail.at(-1)[0])} measured tokens: now 10 to the ${fixed(trail.at(-1)[1], 2)}, at most 10 to the ${fixed(highest, 2)}; alarm at 10 to the ${fixed(alarm, 0)}` }),
          )
        : h("p", { class: "note" }, "Nothing was measured since the last clearing."),
      h("p", { class: "note" }, `Now log₁₀ e = ${fixed(reading.log10_e, 2)}, for a change ${fixed(reading.log10_change, 2)}. A sound cell ever reaches the line with probability ${(10 ** -alarm).toExponential(0)} at most, however often one looks.`),
    ),
    differences(reading),
    h("div", { class: "columns" }, shadow(reading), about(kind, reading)),
    history(events),
  ];
}

const DIFFERENCES = [
  ["surprisal", "Surprisal delta", "nats a token; below 0: more assertive than the target"],
  ["acceptance", "Acceptance", "accepted draft tokens against the sum of min(target, draft)"],
  ["tail", "Tail coverage", "rare tokens against what the target's law makes expect"],
  ["draft_blind", "Draft-blind coverage", "tokens that the draft gives no mass"],
  ["hedging", "Hedging", "words like “perhaps” against their mass"],
];

function differences(reading) {
  const columns = [{ name: "Measure" }, { name: "Observed", class: "number" }, { name: "Expected", class: "number" }, { name: "Ratio", class: "number" }, { name: "Per token", class: "number" }, { name: "95 % at all times" }, { hidden: "Drawing" }];
  const rows = DIFFERENCES.map(([key, name, meaning]) => {
    const found = reading[key];
    const holds = found.mean == null || (found.low <= 0 && 0 <= found.high);
    return [
      [name, h("span", { class: "note block" }, meaning)],
      fixed(found.observed, 1),
      fixed(found.expected, 1),
      ratio(found),
      fixed(found.mean, 5),
      found.mean == null ? "–" : [`${fixed(found.low, 5)} … ${fixed(found.high, 5)} `, !holds && badge("excludes 0", "warn")],
      around(found, name),
    ];
  });
  return card("Against the target's law", { note: "confidence sequences: 0 is the law itself" }, table("Measures against the target's law", columns, rows, { hideCaption: true }));
}

function shadow({ shadow: runs }) {
  return card(
    "Shadow runs",
    { note: "answers decoded again in standard mode" },
    runs.runs
      ? h("p", {}, `${count(runs.equal)} of ${count(runs.runs)} had the very same tokens: ${percent(runs.equal / runs.runs, 1)}, between ${percent(runs.low, 1)} and ${percent(runs.high, 1)} at 95 %.`)
      : h("p", { class: "note" }, "None yet. A rule asks for them with shadow_rate."),
  );
}

function about(kind, reading) {
  return card(
    "The cell",
    {},
    h(
      "dl",
      { class: "facts" },
      [["Id", h("code", {}, reading.id)], ["Domain", words(kind.domain)], ["Mode", chip(kind.mode)], ["Verifier", kind.verifier], ["Draft source", kind.draft || "none"], ["Model", kind.model], ["Distortion budget", reading.lossy_requests ? `${fixed(reading.distortion, 3)} spent of ${fixed(reading.budget, 3)}` : "exact: none"]].map(
        ([name, value]) => [h("dt", {}, name), h("dd", {}, value)],
      ),
    ),
  );
}

function clearing(reading, id, reload) {
  const event = reading.last_event;
  const reason = h("textarea", { id: "clear-reason", class: "prose", rows: "2", required: true, maxlength: 4096 });
  const answer = h("div", { "aria-live": "polite" });
  const submit = h("button", { type: "submit", class: "primary" }, "Clear the alarm");
  async function clear(submission) {
    submission.preventDefault();
    submit.disabled = true;
    try {
      await call(`v1/evidence/${encodeURIComponent(id)}/clear`, { method: "POST", body: { reason: reason.value } });
      announce("The alarm is cleared.");
      reason.value = "";
      reason.blur();
      await reload();
    } catch (error) {
      replace(answer, failure(error, { needs: NEEDS }));
      submit.disabled = false;
    }
  }
  return card(
    "Alarm",
    { kind: "alarm" },
    h("p", {}, h("strong", {}, CAUSES[event.cause] || words(event.cause)), ", ", moment(event.happened_at), event.decision_id && [" in ", h("a", { href: `#/decisions/${encodeURIComponent(event.decision_id)}`, class: "mono" }, event.decision_id)], "."),
    h(
      "form",
      { class: "stack", onsubmit: clear },
      h("div", { class: "field" }, h("label", { for: "clear-reason" }, "Why it may be decoded as decided again; this is recorded with your name"), reason),
      h("p", { class: "actions" }, submit),
    ),
    answer,
  );
}

function history(events) {
  const rows = events.map((event) => [
    moment(event.happened_at),
    event.kind === "alarm" ? badge(event.demotes ? "demoted" : "alarm", "bad") : badge("cleared", "good"),
    event.kind === "alarm" ? CAUSES[event.cause] || words(event.cause) : [h("strong", {}, event.by), ": ", event.reason],
    count(event.num_tokens),
    event.decision_id ? h("a", { href: `#/decisions/${encodeURIComponent(event.decision_id)}`, class: "mono" }, event.decision_id.slice(0, 14)) : "–",
  ]);
  return card(
    "Demotions and clearings",
    {},
    rows.length
      ? table("Alarms and clearings, newest first", [{ name: "Time" }, { name: "What" }, { name: "Why, and who cleared" }, { name: "After tokens", class: "number" }, { name: "Decision" }], rows, { hideCaption: true })
      : h("p", { class: "note" }, "There never was one."),
  );
}
