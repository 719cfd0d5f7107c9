// One decision: why it was made, what ran, and what the log vouches for.

import { call, failure } from "./api.js";
import { gauge, legend } from "./charts.js";
import { notes } from "./decisions.js";
import { announce, badge, button, card, chip, count, fixed, h, loading, moment, percent, replace, s, seconds, table, tile, words } from "./dom.js";

const WAIT_SECONDS = 2;

export function showDecision(root, id) {
  const ending = new AbortController();
  let timer;
  const back = h("a", { href: "#/decisions", class: "back" }, "All decisions");
  const body = h("div", { class: "stack" }, loading());
  replace(root, h("div", { class: "page-head" }, h("div", {}, back, h("h1", { class: "mono long" }, id))), body);
  async function load() {
    try {
      const entry = await call(`v1/decisions/${encodeURIComponent(id)}`, { signal: ending.signal });
      replace(body, parts(entry));
      // A request that runs has no outcome yet; that comes with its end.
      if (!entry.outcome) timer = setTimeout(load, WAIT_SECONDS * 1000);
    } catch (error) {
      if (error.name !== "AbortError") replace(body, failure(error, { retry: load, needs: "decisions:read" }));
    }
  }
  load();
  return () => {
    ending.abort();
    clearTimeout(timer);
  };
}

function parts(entry) {
  const { decision: record, outcome } = entry;
  return [
    summary(entry),
    h("div", { class: "columns" }, trace(record), signals(record)),
    h("div", { class: "columns" }, executed(record, outcome), timings(outcome)),
    outcome && drafts(outcome.execution),
    h("div", { class: "columns" }, standing(entry), chain(entry.id), afterwards(entry)),
    replay(entry.id),
    raw(entry),
  ];
}

function summary(entry) {
  const { decision: record, outcome } = entry;
  const { decision } = record;
  return h(
    "dl",
    { class: "tiles few" },
    tile("Decided", chip(decision.mode), { note: [`by `, h("span", { class: "mono" }, decision.rule)] }),
    tile("Ran", outcome ? chip(outcome.execution.mode) : "running …", { note: outcome ? words(outcome.execution.verifier || "no verifier") : "no outcome yet" }),
    tile("Asked", moment(record.created_at), { note: [record.caller.id, record.caller.team && `, ${record.caller.team}`] }),
    tile("Tokens", outcome ? count(outcome.execution.usage.completion_tokens) : "–", { note: `after ${count(record.request.prompt_tokens)} of prompt` }),
    h("div", { class: "tile notes" }, h("dt", {}, "Notes"), h("dd", {}, notes(record, outcome, entry.feedback, entry.shadow) || h("span", { class: "note" }, "none"))),
  );
}

/** The rules as a tree: what each one is, whether it held, and on which value. */
function trace(record) {
  const { decision } = record;
  const kinds = [...new Set(decision.trace.map((line) => line.kind))];
  const branches = kinds.map((kind) =>
    h(
      "li",
      {},
      h("span", { class: "kind" }, kind),
      h("ul", {}, decision.trace.filter((line) => line.kind === kind).map((line) => leaf(line, decision))),
    ),
  );
  const outcome = [decision.deny ? "refused" : decision.mode, decision.reason && `: ${decision.reason}`];
  return card(
    "Trace",
    { note: ["policy ", h("code", {}, decision.policy_hash.slice(0, 12))] },
    branches.length
      ? h("ul", { class: "tree" }, h("li", {}, h("span", { class: "root" }, h("strong", { class: "mono" }, decision.rule), " → ", outcome), h("ul", {}, branches)))
      : h("p", { class: "note" }, `No rule was looked at: ${decision.rule} decided.`),
    decision.forced_by && h("p", { class: "note" }, "The caller's own wish changed the mode."),
  );
}

function leaf(line, decision) {
  const isIt = line.matched && line.rule === decision.rule;
  const [first, ...more] = line.detail.split("; ");
  return h(
    "li",
    { class: line.matched ? "held" : "missed" },
    h("span", { class: "mark", "aria-hidden": "true" }, line.matched ? "✓" : "·"),
    h("span", { class: "hidden" }, line.matched ? "held: " : "did not hold: "),
    h("span", { class: isIt ? "mono decided" : "mono" }, line.rule),
    h("ul", { class: "details" }, [first, ...more].map((part) => h("li", {}, part))),
  );
}

/** Thresholds that the trace speaks of: domain → the bars it was held against. */
export function bars(trace) {
  const found = {};
  for (const { detail } of trace) {
    for (const match of detail.matchAll(/domain (\w+) [\d.]+ (?:>=|<) ([\d.]+)/g)) {
      (found[match[1]] ||= new Set()).add(Number(match[2]));
    }
  }
  return Object.fromEntries(Object.entries(found).map(([name, values]) => [name, [...values]]));
}

function signals(record) {
  const thresholds = bars(record.decision.trace);
  const domains = record.signals.items.filter((signal) => signal.name === "domain").sort((a, b) => b.score - a.score);
  const others = record.signals.items.filter((signal) => signal.name !== "domain");
  const rows = domains.map((signal) => {
    const against = thresholds[signal.value] || [];
    const isOver = against.some((bar) => signal.score >= bar);
    return h(
      "li",
      {},
      h("span", { class: "signal-name" }, words(signal.value)),
      gauge(signal.score, {
        threshold: against,
        kind: isOver ? "over" : "",
        label: `${words(signal.value)} ${signal.score.toFixed(3)}${against.map((bar) => `, bar at ${bar}`).join("")}`,
      }),
      h("span", { class: "number" }, signal.score.toFixed(3)),
    );
  });
  const { scored_tokens: scored, total_tokens: total, error } = record.signals;
  return card(
    "Signals",
    { note: Object.keys(thresholds).length ? "the marks are the policy's thresholds" : "" },
    error && h("p", { class: "notice bad" }, error),
    rows.length ? h("ul", { class: "signals" }, rows) : h("p", { class: "note" }, "No classifier spoke of a domain."),
    others.length > 0 &&
      h("p", { class: "badges" }, others.map((signal) => badge(`${words(signal.name)}: ${signal.value} ${signal.score.toFixed(2)}`))),
    scored < total && h("p", { class: "notice" }, `Only ${count(scored)} of ${count(total)} tokens of text were scored.`),
  );
}

function executed(record, outcome) {
  const { decision } = record;
  const run = outcome?.execution;
  const line = (name, was, is, differs = false) => ({ cells: [name, was ?? "–", is ?? "–"], class: differs ? "differs" : "" });
  const sources = run && Object.entries(run.drafts_by_source).map(([name, [proposed, accepted]]) => `${name} (${count(accepted)} of ${count(proposed)})`);
  const rows = [
    line("Mode", chip(decision.mode), run && chip(run.mode), run && run.mode !== decision.mode),
    line("Verifier", decision.verifier, run && `${run.verifier || "–"}${run.verifier_class ? `, ${run.verifier_class}` : ""}`),
    line("Draft", decision.draft ? `${decision.draft.source}, up to ${decision.draft.num_speculative_tokens}` : "none", run && (sources.join(", ") || "none")),
    line("First draft token", decision.standard_first ? `not before ${decision.standard_first}` : "anywhere", run && (run.first_draft_position == null ? "none" : `at ${run.first_draft_position}`)),
    line("Distortion", decision.max_distortion == null ? "none allowed" : `at most ${decision.max_distortion}`, run && fixed(run.distortion, 4)),
    line("Backend", record.backend, run && (run.backend || "–")),
    line("Model", record.request.model, run && (run.model || "–")),
    line("Seed", h("span", { class: "mono" }, String(record.sampling.seed)), ""),
    line("Ended", "", outcome && (outcome.error ? h("span", { class: "bad-text" }, outcome.error) : outcome.finish_reasons.join(", "))),
  ];
  return card(
    "Decided and executed",
    { note: attestation(outcome) },
    table("Decided and executed", [{ name: "What" }, { name: "Decided" }, { name: "Executed" }], rows, { hideCaption: true }),
    run?.tightened_by && h("p", { class: "note" }, `Tightened to standard mode by ${run.tightened_by}.`),
  );
}

function attestation(outcome) {
  if (!outcome) return badge("not yet attested");
  const kinds = { ok: ["attested", "good"], attestation_failed: ["attestation failed", "bad"] };
  return badge(...(kinds[outcome.attestation] || ["not attested", "warn"]));
}

function timings(outcome) {
  if (!outcome) return card("Timings", {}, h("p", { class: "note" }, "They come with the outcome."));
  const { classify, decide, record, first_token: first, total } = outcome.timings;
  const { queue_seconds: queue, prefill_seconds: prefill, decode_seconds: decode, usage } = outcome.execution;
  const steps = [["Classify", classify], ["Decide", decide], ["Record", record], ["Queue", queue], ["Prefill", prefill], ["Decode", decode]];
  const most = Math.max(total, ...steps.map(([, value]) => value), 1e-9);
  return card(
    "Timings",
    { note: `${seconds(total)} in all, first text after ${seconds(first)}` },
    h(
      "ul",
      { class: "signals" },
      steps.map(([name, value]) =>
        h("li", {}, h("span", { class: "signal-name" }, name), gauge(value / most, { label: `${name} ${seconds(value)}` }), h("span", { class: "number" }, seconds(value))),
      ),
    ),
    decode > 0 && usage.completion_tokens > 1 && h("p", { class: "note" }, `${fixed((usage.completion_tokens - 1) / decode, 1)} tokens per second after the first`),
  );
}

const MAX_COLUMNS = 240;

/**
 * One column a step: its accepted draft tokens, and on them the token that the target added. The log
 * counts steps by how many tokens they accepted and not in order, so they are sorted by that.
 */
function drafts(run) {
  if (!run.num_steps) return null;
  const title = "Draft accounting";
  const plain = run.num_steps - run.num_drafts;
  const rejected = run.num_draft_tokens - run.num_accepted_tokens;
  const columns = [];
  run.accept_counts.forEach((times, accepted) => {
    for (let i = 0; i < times; i += 1) columns.push(accepted);
  });
  columns.sort((a, b) => b - a);
  const shown = [...columns, ...Array(plain).fill(null)];
  const why = Object.entries(run.why_k);
  return card(
    title,
    { note: `${count(run.num_steps)} steps, the most accepting first` },
    shown.length <= MAX_COLUMNS ? strip(shown, run) : h("p", { class: "note" }, "Too many steps to draw one by one."),
    h("div", {}, shares(run, rejected, plain)),
    legend([
      ["fill-accepted", `accepted ${count(run.num_accepted_tokens)}`],
      ["fill-rejected", `rejected ${count(rejected)}`],
      ["fill-target", `the target's own, after a draft ${count(run.num_drafts)}`],
      ["fill-standard", `standard steps ${count(plain)}`],
    ]),
    h(
      "p",
      { class: "note" },
      run.num_draft_tokens
        ? `Acceptance rate ${percent(run.num_accepted_tokens / run.num_draft_tokens, 1)}, ${fixed(run.usage.completion_tokens / run.num_steps)} tokens a target pass, longest draft ${count(run.longest_draft)}.`
        : "No draft token was proposed: each step gave one token.",
    ),
    why.length > 0 && h("p", { class: "badges" }, why.map(([name, times]) => badge(`draft length by ${words(name)}: ${count(times)}`))),
  );
}

function strip(columns, run) {
  const tallest = Math.max(1, ...columns.map((accepted) => (accepted ?? 0) + 1));
  const cell = 9;
  const gap = 2;
  const width = columns.length * (cell + gap);
  const height = tallest * (cell + gap);
  const block = (kind, x, row) => s("rect", { class: kind, x, y: height - (row + 1) * (cell + gap), width: cell, height: cell, rx: 1.5 });
  return h(
    "div",
    { class: "scroll strip", tabindex: "0", role: "region", "aria-label": "Steps, one column each" },
    s(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${run.num_steps} steps; the counts stand below` },
      columns.map((accepted, i) => {
        const x = i * (cell + gap);
        if (accepted === null) return block("fill-standard", x, 0);
        return [...Array(accepted).keys()].map((row) => block("fill-accepted", x, row)).concat(block("fill-target", x, accepted));
      }),
    ),
  );
}

function shares(run, rejected, plain) {
  const parts = [["fill-accepted", run.num_accepted_tokens], ["fill-rejected", rejected], ["fill-target", run.num_drafts], ["fill-standard", plain]];
  const total = parts.reduce((all, [, value]) => all + value, 0);
  let at = 0;
  return s(
    "svg",
    { class: "shares", viewBox: "0 0 720 12", preserveAspectRatio: "none", "aria-hidden": "true" },
    parts.map(([kind, value]) => {
      const bar = s("rect", { class: kind, x: at, y: 0, width: (value / total) * 720, height: 12 });
      at += (value / total) * 720;
      return bar;
    }),
  );
}

function standing({ texts, erased, accesses, decision }) {
  const lines = texts.map((text) => `${words(text.kind)}: ${count(text.size)} bytes${text.truncated ? ", cut" : ""}${text.text_dropped ? `, dropped (${words(text.text_dropped)})` : ""}`);
  return card(
    "Text",
    {},
    h("p", {}, erased ? "It was captured and erased." : lines.length ? "Captured, encrypted; not shown here." : "No text of it was kept."),
    lines.length > 0 && h("ul", { class: "plain" }, lines.map((line) => h("li", {}, line))),
    accesses.length > 0 && h("p", { class: "note" }, `Shown ${count(accesses.length)} times, last to ${accesses.at(-1).by}.`),
    h("p", { class: "note" }, "Digest ", h("code", { class: "long" }, decision.request.digest.slice(0, 16), "…")),
  );
}

/** The links of its records; read by itself, as the server reads and checks them anew. */
function chain(id) {
  const body = h("div", {}, loading());
  async function load() {
    try {
      const found = await call(`v1/decisions/${encodeURIComponent(id)}/chain`);
      const kinds = { verified: "good", unsigned: "warn", unchecked: "warn", changed: "bad" };
      const rows = found.links.map((link) => [
        { decisions: "decision", outcomes: "outcome" }[link.table],
        badge(link.state, kinds[link.state]),
        h("span", { class: "mono" }, `${link.writer.slice(0, 8)} ${count(link.position)}`),
        link.key_id || "none",
      ]);
      replace(
        body,
        rows.length
          ? table("Links of the chain", [{ name: "Record" }, { name: "State" }, { name: "Writer, place" }, { name: "Key" }], rows, { hideCaption: true })
          : h("p", {}, "No link: the log keeps none of these records any more."),
        h("p", { class: "note" }, "That no record is missing is checked by ", h("code", {}, "draftgate decisions verify"), "."),
      );
    } catch (error) {
      replace(body, failure(error, { retry: load, needs: "decisions:read" }));
    }
  }
  load();
  return card("Chain", {}, body);
}

function afterwards({ feedback, shadow }) {
  const said = feedback.map((each) =>
    h("li", {}, h("strong", {}, each.by), ", ", moment(each.given_at), ": ", each.domains.map(words).join(", ") || "none of the domains", each.note && h("q", { class: "block" }, each.note)),
  );
  return card(
    "Afterwards",
    {},
    shadow
      ? h(
          "p",
          {},
          "Shadow run: ",
          badge(shadow.result, { equal: "good", different: "bad" }[shadow.result] || ""),
          shadow.result === "different" && ` at token ${count(shadow.position)}, margin ${fixed(shadow.margin, 3)} nats`,
          shadow.result === "dropped" && ` ${words(shadow.reason)}`,
        )
      : h("p", {}, "It was not decoded again."),
    said.length ? h("ul", { class: "plain" }, said) : h("p", { class: "note" }, "No feedback."),
  );
}

/** The command that decodes it again: it needs the model and the key of the texts, not this page. */
function replay(id) {
  const command = h("code", { class: "long" }, `draftgate decisions replay ${id}`);
  const copy = button("Copy the command", async () => {
    try {
      await navigator.clipboard.writeText(command.textContent);
      copy.textContent = "Copied";
    } catch {
      // Browsers lend the clipboard to HTTPS and to this very machine alone, and may ask.
      getSelection().selectAllChildren(command);
      copy.textContent = "Selected: copy it by keyboard";
    }
    announce(copy.textContent);
  });
  return card(
    "Replay",
    { note: "in standard mode, where the model is" },
    h("p", {}, command),
    h("p", { class: "actions" }, copy),
  );
}

function raw(entry) {
  return h("details", { class: "card raw" }, h("summary", {}, "The record as JSON"), h("pre", { tabindex: "0" }, JSON.stringify(entry, null, 2)));
}
