// Playground: one prompt and one seed in three modes side by side.

import { call, failure, stream } from "./api.js";
import { legend } from "./charts.js";
import { announce, badge, button, card, chip, count, fixed, h, input, percent, replace, seconds, select } from "./dom.js";

const MODES = ["standard", "speculative", "hybrid"];
const ORIGINS = [
  ["standard", "standard: no draft"],
  ["accepted", "accepted draft token"],
  ["recovered", "recovered: in place of a rejected one"],
  ["bonus", "bonus: after a whole draft"],
];

export function show(root, { title }) {
  let running = null;
  const prompt = h("textarea", { id: "prompt", class: "prose", rows: "4", required: true }, "Write a Python function that checks whether a word is a palindrome, and a test for it.");
  const models = h("div", {});
  const seed = input("Seed", "seed", "1", { type: "number", min: "0", step: "1", required: true });
  const temperature = input("Temperature", "temperature", "0.7", { type: "number", min: "0", max: "2", step: "0.1", required: true });
  const length = input("Tokens at most", "max", "160", { type: "number", min: "1", step: "1", required: true });
  const run = h("button", { type: "submit", class: "primary" }, "Run in all three modes");
  const stop = button("Stop", () => running?.abort(), { disabled: true });
  const result = h("div", { "aria-live": "polite" });
  const lanes = Object.fromEntries(MODES.map((mode) => [mode, new Lane(mode)]));
  const form = h(
    "form",
    { class: "card", onsubmit: start, "aria-label": "What to ask" },
    h("div", { class: "field" }, h("label", { for: "prompt" }, "Prompt"), prompt),
    h("div", { class: "form-row" }, models, seed, temperature, length),
    h("p", { class: "actions" }, run, stop, h("span", { class: "note" }, "Each run is an ordinary request: it is decided, recorded and counted.")),
  );
  replace(
    root,
    h("div", { class: "page-head" }, h("h1", {}, title)),
    form,
    result,
    h("div", { class: "lanes" }, MODES.map((mode) => lanes[mode].element)),
    legend(ORIGINS.map(([kind, text]) => [`token ${kind}`, text])),
  );
  loadModels();

  async function loadModels() {
    try {
      const { data } = await call("v1/models");
      replace(models, select("Model", "model", data.map((model) => [model.id, model.id]), data[0]?.id));
      run.disabled = !data.length;
    } catch (error) {
      run.disabled = true;
      replace(result, failure(error, { retry: loadModels, needs: "inference" }));
    }
  }

  async function start(event) {
    event.preventDefault();
    running = new AbortController();
    run.disabled = true;
    stop.disabled = false;
    replace(result);
    const body = {
      model: form.elements.model.value,
      messages: [{ role: "user", content: prompt.value }],
      seed: Number(form.elements.seed.value),
      temperature: Number(form.elements.temperature.value),
      max_completion_tokens: Number(form.elements.max.value),
      stream: true,
      stream_options: { include_usage: true, include_steps: true },
      logprobs: true,
    };
    for (const mode of MODES) lanes[mode].clear();
    // One after another: side by side they would take each other's time, and be compared by it.
    for (const mode of MODES) {
      if (running.signal.aborted) break;
      await lanes[mode].run(body, running.signal);
    }
    run.disabled = false;
    stop.disabled = true;
    if (root.isConnected) replace(result, compared(MODES.map((mode) => lanes[mode])));
  }
  return () => running?.abort();
}

function compared(lanes) {
  const ended = lanes.filter((lane) => lane.ended);
  if (ended.length < 2) return h("p", { class: "notice" }, "Fewer than two runs came to an end, so there is nothing to compare.");
  const modes = [...new Set(ended.map((lane) => lane.ran))];
  if (modes.length < 2) {
    return h("p", { class: "notice" }, `The policy decided ${modes[0]} mode for all of them. A faster mode than the rule's needs caller_may_choose: true on that rule.`);
  }
  const isEqual = ended.every((lane) => lane.text === ended[0].text);
  const text = isEqual ? `Equal: ${modes.join(", ")} gave the same text, character for character.` : `Different: see where at the mark ⟂.`;
  if (!isEqual) for (const lane of ended.slice(1)) lane.mark(ended[0].text);
  announce(text);
  return h("p", { class: `notice ${isEqual ? "good" : "bad"}` }, text);
}

class Lane {
  constructor(mode) {
    this.mode = mode;
    this.answer = h("div", { class: "answer", tabindex: "0", role: "region", "aria-label": `Answer in ${mode} mode` });
    this.facts = h("dl", {});
    this.state = h("span", {}, badge("not run"));
    this.element = h("section", { class: "card lane", "aria-label": `${mode} mode` }, h("div", { class: "card-head" }, h("h2", {}, chip(mode)), this.state), this.answer, this.facts);
    this.clear();
  }

  clear() {
    Object.assign(this, { text: "", ended: false, ran: null, first: null, tokens: 0, origins: [], counted: {}, asks: null });
    replace(this.answer, h("span", { class: "note" }, "The answer appears here."));
    replace(this.facts);
    replace(this.state, badge("waiting"));
  }

  async run(body, signal) {
    replace(this.state, badge("running", "calm"));
    replace(this.answer);
    const begun = performance.now();
    try {
      await stream(
        "v1/chat/completions",
        { body, headers: { "x-draftgate-mode": this.mode }, signal },
        { opened: (headers) => this.opened(headers), event: (event) => this.add(event, begun) },
      );
      this.ended = true;
      replace(this.state, this.ran === this.mode ? badge("done", "good") : badge(`policy: ${this.ran}`, "warn"));
    } catch (error) {
      replace(this.state, error.name === "AbortError" ? badge("stopped", "warn") : badge("failed", "bad"));
      if (error.name !== "AbortError") replace(this.answer, failure(error, { needs: "inference" }));
    }
    this.sum(begun);
  }

  opened(headers) {
    this.ran = headers.get("x-draftgate-mode");
    this.rule = headers.get("x-draftgate-rule");
    this.id = headers.get("x-draftgate-decision-id");
  }

  add(event, begun) {
    for (const [emitted, proposed, accepted] of event.draftgate?.steps || []) {
      for (let i = 0; i < emitted; i += 1) {
        if (!proposed) this.origins.push("standard");
        else if (i < accepted) this.origins.push("accepted");
        else this.origins.push(accepted < proposed ? "recovered" : "bonus");
      }
    }
    if (event.usage) this.tokens = event.usage.completion_tokens;
    const choice = event.choices[0];
    const text = choice?.delta?.content;
    if (!text) return;
    this.first ??= performance.now() - begun;
    this.last = performance.now();
    this.text += text;
    // The tokens of a chunk make up its text; where they do not, its text has the first one's origin.
    const tokens = (choice.logprobs?.content || []).map((token) => token.token);
    const pieces = tokens.join("") === text ? tokens : [text];
    pieces.forEach((piece) => this.write(piece, this.origins.length ? this.origins.shift() : null));
    if (pieces.length < tokens.length) this.origins.splice(0, tokens.length - 1);
  }

  write(piece, origin) {
    if (origin) this.counted[origin] = (this.counted[origin] || 0) + 1;
    this.answer.append(h("span", { class: `token ${origin || ""}`, title: origin }, piece));
  }

  /** Put a mark where this text leaves another. */
  mark(other) {
    let at = 0;
    while (at < this.text.length && this.text[at] === other[at]) at += 1;
    replace(this.answer, this.text.slice(0, at), h("strong", { class: "bad-text" }, "⟂"), this.text.slice(at));
  }

  sum(begun) {
    const after = this.first === null ? null : (this.last - begun - this.first) / 1000;
    const rate = after > 0 && this.tokens > 1 ? (this.tokens - 1) / after : null;
    const drafted = (this.counted.accepted || 0) / Math.max(1, Object.values(this.counted).reduce((all, each) => all + each, 0));
    const rows = [
      ["Ran", this.ran ? chip(this.ran) : "–"],
      ["Rule", this.rule || "–"],
      ["Tokens", count(this.tokens)],
      ["Tokens per second", fixed(rate, 1)],
      ["First text after", seconds(this.first === null ? null : this.first / 1000)],
      ["Accepted drafts", Object.keys(this.counted).length ? percent(drafted) : "not told"],
      ["Decision", this.id ? h("a", { href: `#/decisions/${encodeURIComponent(this.id)}` }, "look at it") : "–"],
    ];
    replace(this.facts, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  }
}
