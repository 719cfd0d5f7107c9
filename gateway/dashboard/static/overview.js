// Overview: what was asked, how it was decoded, what that brought, and whether anything is wrong.

import { call, failure, query, text } from "./api.js";
import { MODES, modeLegend, stacked, wide } from "./charts.js";
import { badge, card, chip, count, fixed, h, loading, percent, redraw, replace, select, short, seconds, table, tile, words } from "./dom.js";

const SPANS = {
  "24h": { text: "last 24 hours", by: "hour", step: 3600, columns: 24, refresh: 15 },
  // A longer time changes less from one look to the next, and costs the server more.
  "7d": { text: "last 7 days", by: "day", step: 86400, columns: 7, refresh: 60 },
  "30d": { text: "last 30 days", by: "day", step: 86400, columns: 30, refresh: 300 },
};

export function show(root, { parameters, title }) {
  const span = SPANS[parameters.get("span")] ? parameters.get("span") : "24h";
  const picker = select(
    "Time",
    "span",
    Object.entries(SPANS).map(([key, each]) => [key, each.text]),
    span,
    (event) => (location.hash = `#/overview?span=${event.target.value}`),
  );
  const body = h("div", { class: "stack" }, loading());
  replace(root, h("div", { class: "page-head" }, h("h1", {}, title), picker), body);
  const ending = new AbortController();
  let timer;
  async function refresh() {
    clearTimeout(timer);
    try {
      const found = await read(span, ending.signal);
      redraw(body, found.stats.groups.length ? pictures(found, span) : nothing(found, span));
    } catch (error) {
      if (error.name === "AbortError") return;
      replace(body, failure(error, { retry: refresh, needs: "decisions:read" }));
    }
    if (!ending.signal.aborted) timer = setTimeout(whenSeen, SPANS[span].refresh * 1000);
  }
  const whenSeen = () => (document.hidden ? (timer = setTimeout(whenSeen, 1000)) : refresh());
  refresh();
  return () => {
    ending.abort();
    clearTimeout(timer);
  };
}

async function read(span, signal) {
  const grouped = (by) => call(`v1/decisions/stats?${query({ since: span, by, quantiles: false })}`, { signal });
  const stats = grouped(`${SPANS[span].by},domain,executed`);
  // The server leaves out the smallest of very many groups; by mode alone there are a few, and nothing is missing.
  const modes = grouped("executed");
  const ready = call("readyz", { signal, accept: [503] });
  // Metrics may need a key of their own; what they add is then left out, and said to be.
  const metrics = text("metrics", { signal }).then(gauges, () => null);
  const found = await Promise.all([stats, modes, ready, metrics]);
  return { stats: found[0], modes: found[1].groups, ready: found[2], metrics: found[3] };
}

/** The values of a few metrics, summed over their labels. */
function gauges(body) {
  const found = {};
  for (const line of body.split("\n")) {
    const match = /^(draftgate_\w+)(?:\{.*\})? ([-+.\deE]+)$/.exec(line);
    if (match) found[match[1]] = (found[match[1]] || 0) + Number(match[2]);
  }
  return found;
}

function nothing(found, span) {
  return [
    h(
      "div",
      { class: "state" },
      h("p", { class: "state-title" }, `No request in the ${SPANS[span].text}`),
      h("p", {}, "Ask something in the ", h("a", { href: "#/playground" }, "playground"), ", or point an OpenAI client at this server. A key without the scope decisions:detail sees its own requests alone."),
    ),
    service(found.ready),
  ];
}

const NAMES = ["requests", "prompt_tokens", "completion_tokens", "draft_tokens", "accepted_tokens", "decode_tokens", "decode_seconds", "attestation_failed", "tightened", "denied", "errors", "open"];

function add(groups) {
  const total = Object.fromEntries(NAMES.map((name) => [name, 0]));
  for (const group of groups) for (const name of NAMES) total[name] += group[name];
  return total;
}

const isDrafting = (group) => group.by.executed === "speculative" || group.by.executed === "hybrid";
const rate = (total) => (total.decode_seconds > 0 && total.decode_tokens ? total.decode_tokens / total.decode_seconds : null);

/**
 * Seconds that drafting saved: what its tokens would have taken at the rate that standard mode had in
 * the same domain, less what they took. Domains without standard traffic do not count.
 */
export function saved(groups) {
  let spared = 0;
  let tokens = 0;
  for (const domain of new Set(groups.map((group) => group.by.domain))) {
    const here = groups.filter((group) => group.by.domain === domain);
    const standard = rate(add(here.filter((group) => group.by.executed === "standard")));
    const drafting = add(here.filter(isDrafting));
    if (!standard || !drafting.decode_tokens) continue;
    spared += drafting.decode_tokens / standard - drafting.decode_seconds;
    tokens += drafting.decode_tokens;
  }
  return tokens ? { seconds: spared, tokens } : null;
}

function pictures({ stats, modes, ready, metrics }, span) {
  const groups = stats.groups;
  return [
    stats.truncated && h("p", { class: "notice" }, "There are more groups than the server counts at once: the smallest are left out of the time saved and of the requests over time and by domain."),
    figures(modes, saved(groups), ready, metrics),
    overTime(groups, span),
    byDomain(groups, span),
    h("div", { class: "columns" }, byMode(modes), service(ready)),
  ];
}

/** The tiles, of all requests of the time: `modes` has a group for each mode that ran. */
function figures(modes, spared, ready, metrics) {
  const all = add(modes);
  const drafting = add(modes.filter(isDrafting));
  const steps = drafting.completion_tokens - drafting.accepted_tokens;
  const standard = rate(add(modes.filter((group) => group.by.executed === "standard")));
  const drafted = rate(drafting);
  const backends = Object.values(ready.backends);
  const running = backends.reduce((total, each) => total + each.running, 0);
  const queued = backends.reduce((total, each) => total + each.queued, 0);
  const demoted = metrics && metrics.draftgate_demoted_cells;
  const failed = all.attestation_failed;
  return h(
    "dl",
    { class: "tiles" },
    tile("Attestation failures", count(failed), {
      note: failed ? "something ran that was not decided" : "what ran is what was decided",
      kind: failed ? "bad" : "good",
    }),
    tile("Cells in demotion", demoted == null ? "–" : count(demoted), {
      note: demoted == null ? "not told to this key" : demoted ? h("a", { href: "#/evidence" }, "look at the evidence") : "no alarm",
      kind: demoted ? "bad" : "",
    }),
    tile("Requests", short(all.requests), { note: `${count(all.denied)} denied, ${count(all.errors)} failed` }),
    tile("Acceptance rate", percent(drafting.draft_tokens ? drafting.accepted_tokens / drafting.draft_tokens : null, 1), {
      note: `of ${short(drafting.draft_tokens)} draft tokens`,
    }),
    tile("Mean acceptance length", fixed(steps > 0 ? drafting.completion_tokens / steps : null), {
      note: "tokens a target pass, where drafted",
    }),
    tile("Tokens per second", fixed(drafted ?? standard, 1), {
      note: drafted ? `drafting; ${fixed(standard, 1)} in standard mode` : "standard mode, one request",
    }),
    tile("Time saved", spared ? (spared.seconds < 0 ? `−${seconds(-spared.seconds)}` : seconds(spared.seconds)) : "–", {
      note: spared ? "against standard mode's rate, by domain" : "needs both kinds of traffic in a domain",
    }),
    tile("Running and waiting", `${count(running)} / ${count(queued)}`, { note: "requests in slots / in the queue" }),
  );
}

function overTime(groups, span) {
  const { text: said } = SPANS[span];
  const columns = series(groups, span);
  const modes = MODES.filter((mode) => columns.some((column) => column.values[mode]));
  return card(
    "Requests over time",
    { note: `${said}, by the mode that ran` },
    wide("Requests over time, drawn", stacked(columns, { label: `Requests in the ${said}, by mode; the table below has the totals` })),
    modeLegend(modes),
  );
}

/** Columns of equal time up to now, in UTC as the server counts. */
export function series(groups, span, now = Date.now() / 1000) {
  const { by, step, columns } = SPANS[span];
  const last = Math.floor(now / step) * step;
  const found = [];
  for (let at = last - (columns - 1) * step; at <= last; at += step) {
    const date = new Date(at * 1000);
    const hour = `${String(date.getHours()).padStart(2, "0")}:00`;
    const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    found.push({ at, label: by === "hour" ? hour : day, title: by === "hour" ? `${day} ${hour}` : day, values: {} });
  }
  const byTime = new Map(found.map((column) => [column.at, column.values]));
  for (const group of groups) {
    const values = byTime.get(group.by[by]);
    const mode = group.by.executed || "none";
    if (values) values[mode] = (values[mode] || 0) + group.requests;
  }
  return found;
}

function byDomain(groups, span) {
  const domains = [...new Set(groups.map((group) => group.by.domain))];
  const parts = domains.map((domain) => ({ domain, groups: groups.filter((group) => group.by.domain === domain) }));
  for (const part of parts) part.total = add(part.groups);
  parts.sort((a, b) => b.total.requests - a.total.requests);
  return card(
    "Requests by domain",
    { note: "each on a scale of its own" },
    h(
      "ul",
      { class: "multiples" },
      parts.map((part) =>
        h(
          "li",
          {},
          h(
            "a",
            { href: `#/decisions?${query({ domain: part.domain, since: span })}` },
            h("span", { class: "multiple-head" }, h("span", {}, words(part.domain)), h("span", { class: "number" }, short(part.total.requests))),
            stacked(series(part.groups, span), {
              label: `${words(part.domain)}: ${count(part.total.requests)} requests`,
              width: 220,
              height: 48,
              axis: false,
            }),
          ),
        ),
      ),
    ),
  );
}

function byMode(groups) {
  const rows = MODES.map((mode) => [mode, add(groups.filter((group) => (group.by.executed || "none") === mode))])
    .filter(([, total]) => total.requests)
    .map(([mode, total]) => [
      chip(mode === "none" ? null : mode),
      count(total.requests),
      count(total.completion_tokens),
      percent(total.draft_tokens ? total.accepted_tokens / total.draft_tokens : null, 1),
      fixed(rate(total), 1),
      count(total.tightened),
    ]);
  const columns = [
    { name: "Mode" },
    { name: "Requests", class: "number" },
    { name: "Tokens", class: "number" },
    { name: "Accepted", class: "number" },
    { name: "Tokens/s", class: "number" },
    { name: "Tightened", class: "number" },
  ];
  return card("By mode", { note: "the mode that ran" }, table("Requests by mode", columns, rows, { hideCaption: true }));
}

function service(ready) {
  const warnings = ready.warnings || [];
  const rows = Object.entries(ready.backends).map(([name, backend]) => [
    name,
    badge(backend.ready ? "ready" : "not ready", backend.ready ? "good" : "bad"),
    count(backend.running),
    count(backend.queued),
  ]);
  const columns = [{ name: "Backend" }, { name: "State" }, { name: "Running", class: "number" }, { name: "Waiting", class: "number" }];
  return card(
    "Service",
    { note: badge(ready.status.replaceAll("_", " "), ready.status === "ready" ? "good" : "bad") },
    h(
      "p",
      { class: "pair" },
      h("span", {}, "Policy in force"),
      h("a", { href: "#/policy" }, ready.policy.name, " ", h("code", {}, ready.policy.hash.slice(0, 12))),
    ),
    table("Backends", columns, rows, { hideCaption: true }),
    warnings.length
      ? h("ul", { class: "warnings" }, warnings.map((warning) => h("li", {}, warning)))
      : h("p", { class: "note" }, "No warning."),
  );
}
