// Decisions: the log, a page at a time as the server keeps it, and live while its first page is shown.

import { call, failure, query } from "./api.js";
import { showDecision } from "./decision.js";
import { announce, badge, button, chip, count, h, input, loading, moment, percent, replace, seconds, select, state, table, words } from "./dom.js";

const LIMIT = 50;
const REFRESH_SECONDS = 5;
const FILTERS = ["since", "domain", "mode", "executed", "flag", "rule", "caller", "text"];
const DOMAINS = ["medical", "legal", "finance", "code", "math_reasoning", "factual_qa", "structured_extraction", "creative_writing", "customer_support", "general_chat"];
const FLAGS = ["attestation_failed", "tightened", "error", "denied", "interrupted", "lossy", "truncated", "feedback", "streamed", "open"];
const MODE_OPTIONS = [["", "any"], ["standard", "standard"], ["speculative", "speculative"], ["hybrid", "hybrid"]];
const SINCE = [["", "all of the log"], ["1h", "last hour"], ["24h", "last 24 hours"], ["7d", "last 7 days"], ["30d", "last 30 days"]];

export function show(root, { rest, parameters, title }) {
  if (rest.length) return showDecision(root, rest[0]);
  const given = Object.fromEntries(FILTERS.map((name) => [name, parameters.get(name) || ""]));
  const list = new List(given);
  replace(root, h("div", { class: "page-head" }, h("h1", {}, title), list.liveButton), filters(given), list.element);
  list.load();
  return () => list.end();
}

/** The form; what it says stands in the page's address, so that a view can be sent to somebody. */
function filters(given) {
  const options = (names) => [["", "any"], ...names.map((name) => [name, words(name)])];
  const form = h(
    "form",
    { class: "filters", "aria-label": "Filters", onsubmit: (event) => (event.preventDefault(), apply()) },
    select("Time", "since", SINCE, given.since, apply),
    select("Domain", "domain", options(DOMAINS), given.domain, apply),
    select("Decided mode", "mode", MODE_OPTIONS, given.mode, apply),
    select("Mode that ran", "executed", MODE_OPTIONS, given.executed, apply),
    select("Flag", "flag", options(FLAGS), given.flag, apply),
    input("Rule", "rule", given.rule, { autocomplete: "off", maxlength: 256 }),
    input("Caller", "caller", given.caller, { autocomplete: "off", maxlength: 256 }),
    input("Search", "text", given.text, { type: "search", placeholder: "id, caller, rule or note", autocomplete: "off", maxlength: 256 }),
    h(
      "p",
      { class: "actions" },
      h("button", { type: "submit", class: "primary" }, "Filter"),
      h("a", { class: "button", href: "#/decisions" }, "Clear"),
    ),
  );
  function apply() {
    const values = Object.fromEntries(FILTERS.map((name) => [name, form.elements[name].value.trim()]));
    const wanted = query(values);
    location.hash = wanted ? `#/decisions?${wanted}` : "#/decisions";
  }
  return form;
}

class List {
  constructor(given) {
    this.given = given;
    this.ending = new AbortController();
    /** Where each page so far began; the first one has no cursor. */
    this.cursors = [null];
    this.next = null;
    this.newest = null;
    this.isLive = true;
    this.element = h("div", { class: "stack" }, loading());
    this.liveButton = button("Live", () => this.toggle(), { class: "live", "aria-pressed": "true" });
  }

  end() {
    this.ending.abort();
    clearTimeout(this.timer);
  }

  toggle() {
    this.isLive = !this.isLive;
    this.liveButton.setAttribute("aria-pressed", String(this.isLive));
    this.liveButton.textContent = this.isLive ? "Live" : "Paused";
    if (this.isLive) this.load();
    else clearTimeout(this.timer);
  }

  async load() {
    clearTimeout(this.timer);
    const cursor = this.cursors.at(-1);
    try {
      const page = await call(`v1/decisions?${query({ ...this.given, limit: LIMIT, cursor })}`, { signal: this.ending.signal });
      this.next = page.next_cursor;
      this.draw(page.data);
    } catch (error) {
      if (error.name === "AbortError") return;
      replace(this.element, failure(error, { retry: () => this.load(), needs: "decisions:read" }));
    }
    if (!this.ending.signal.aborted) this.again();
  }

  again() {
    clearTimeout(this.timer);
    // An older page does not change; it stays as it is.
    if (!this.isLive || this.cursors.length > 1) return;
    this.timer = setTimeout(() => (document.hidden ? this.again() : this.load()), REFRESH_SECONDS * 1000);
  }

  draw(data) {
    const number = this.cursors.length;
    if (!data.length) {
      const isFiltered = Object.values(this.given).some(Boolean);
      const none = isFiltered
        ? state("Nothing meets these filters", "Take one away, or look further back in time.", { action: h("p", { class: "actions" }, h("a", { class: "button", href: "#/decisions" }, "Clear the filters")) })
        : state("The log is empty", "Every request appears here as soon as it is decided, before its first token. A key without the scope decisions:detail sees its own requests alone.");
      replace(this.element, none);
      return;
    }
    if (number === 1 && this.newest !== null && data[0].id !== this.newest) announce("There are new decisions.");
    const focused = document.activeElement?.getAttribute?.("href");
    const before = this.newest;
    if (number === 1) this.newest = data[0].id;
    const scrolled = this.element.querySelector(".scroll")?.scrollLeft || 0;
    replace(this.element, rows(data, number === 1 ? before : null), this.pager(number, data.length));
    this.element.querySelector(".scroll").scrollLeft = scrolled;
    // The table is drawn anew; whoever had come to a row by keyboard stays there.
    if (focused?.startsWith("#/decisions/")) this.element.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  pager(number, length) {
    const first = (number - 1) * LIMIT + 1;
    return h(
      "nav",
      { class: "pager", "aria-label": "Pages of the log" },
      button("Newer", () => this.turn(-1), { disabled: number === 1 }),
      h("span", { class: "note" }, `${count(first)} to ${count(first + length - 1)}`),
      button("Older", () => this.turn(1), { disabled: this.next === null }),
    );
  }

  async turn(by) {
    if (by > 0) this.cursors.push(this.next);
    else this.cursors.pop();
    await this.load();
    this.element.querySelector(".scroll")?.focus({ preventScroll: true });
    announce(`Page ${this.cursors.length} of the log`);
    scrollTo(0, 0);
  }
}

const COLUMNS = [
  { name: "Time" },
  { name: "Decision" },
  { name: "Domain" },
  { name: "Decided" },
  { name: "Ran" },
  { name: "Rule" },
  { name: "Tokens", class: "number" },
  { name: "Accepted", class: "number" },
  { name: "Took", class: "number" },
  { name: "Caller", class: "wide" },
  { name: "Notes" },
];

function rows(data, before) {
  let isNew = before !== null;
  return table(
    "Decisions, newest first",
    COLUMNS,
    data.map((entry) => {
      if (entry.id === before) isNew = false;
      return { cells: cells(entry), class: isNew ? "new" : "" };
    }),
    { kind: "rows", hideCaption: true },
  );
}

function cells({ id, decision, outcome, feedback, shadow }) {
  const run = outcome?.execution;
  return [
    moment(decision.created_at),
    h("a", { href: `#/decisions/${encodeURIComponent(id)}`, class: "mono" }, id.length > 16 ? `${id.slice(0, 14)}…` : id),
    topDomain(decision.signals),
    chip(decision.decision.mode),
    outcome ? chip(run.mode) : badge("running", "calm"),
    h("span", { class: "mono" }, decision.decision.rule),
    run ? count(run.usage.completion_tokens) : "–",
    run?.num_draft_tokens ? percent(run.num_accepted_tokens / run.num_draft_tokens) : "–",
    outcome ? seconds(outcome.timings.total) : "–",
    decision.caller.id,
    notes(decision, outcome, feedback, shadow),
  ];
}

function topDomain(signals) {
  const domains = signals.items.filter((signal) => signal.name === "domain");
  if (!domains.length) return h("span", { class: "note" }, "none");
  const top = domains.reduce((best, signal) => (signal.score > best.score ? signal : best));
  return [words(top.value), " ", h("span", { class: "note" }, top.score.toFixed(2))];
}

export function notes(decision, outcome, feedback = [], shadow = null) {
  const found = [];
  if (outcome?.attestation === "attestation_failed") found.push(badge("attestation failed", "bad"));
  if (decision.decision.deny) found.push(badge("denied", "warn"));
  else if (outcome?.error) found.push(badge("failed", "bad"));
  if (outcome?.interrupted) found.push(badge("interrupted", "warn"));
  if (outcome?.execution.tightened_by) found.push(badge("tightened", "calm"));
  if (outcome?.execution.verifier_class === "lossy") found.push(badge("lossy", "warn"));
  if (outcome?.finish_reasons.includes("cancelled")) found.push(badge("cancelled"));
  if (decision.signals.scored_tokens < decision.signals.total_tokens) found.push(badge("truncated", "warn"));
  if (shadow?.result === "different") found.push(badge("shadow differs", "bad"));
  if (feedback.length) found.push(badge("feedback", "calm"));
  return found.length ? h("span", { class: "badges" }, found) : "";
}
