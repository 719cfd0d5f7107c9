// Policy: what is in force and what its rules did, what was, and a candidate that changes nothing yet.

import { call, failure, query } from "./api.js";
import { completing } from "./completion.js";
import { announce, badge, button, card, chip, count, fixed, h, input, loading, moment, percent, replace, select, table, tile } from "./dom.js";

const NEEDS = "policy:write";
const SPAN = "30d";

export function show(root, { title }) {
  const ending = new AbortController();
  const body = h("div", { class: "stack" }, loading());
  replace(root, h("div", { class: "page-head" }, h("h1", {}, title)), body);
  async function load(said) {
    try {
      const policy = await call("v1/policy", { signal: ending.signal });
      const [versions, hits] = await Promise.all([
        call("v1/policy/versions", { signal: ending.signal }),
        call(`v1/decisions/stats?${query({ since: SPAN, by: "rule", policy: policy.hash })}`, { signal: ending.signal }).catch(() => null),
      ]);
      replace(body, said && h("p", { class: "notice good", role: "status" }, said), parts(policy, versions.data, hits, load));
    } catch (error) {
      if (error.name !== "AbortError") replace(body, failure(error, { retry: () => load(), needs: NEEDS }));
    }
  }
  load();
  return () => ending.abort();
}

function parts(policy, versions, hits, reload) {
  const byRule = new Map((hits?.groups || []).map((group) => [group.by.rule, group.requests]));
  const total = [...byRule.values()].reduce((all, each) => all + each, 0);
  return [
    h(
      "dl",
      { class: "tiles few" },
      tile("In force", policy.name, { note: h("code", {}, policy.hash.slice(0, 12)) }),
      tile("Since", moment(versions.find((version) => version.active)?.changed_at), { note: `by ${versions.find((version) => version.active)?.by || "a file or the start"}` }),
      tile("Rules", count(policy.rules.length), { note: `${count(policy.rules.filter((rule) => rule.kind === "ban").length)} of them ban` }),
      tile("Decided by it", hits ? count(total) : "–", { note: "in the last 30 days" }),
    ),
    policy.warning && h("p", { class: "notice" }, policy.warning),
    h("div", { class: "columns" }, active(policy, byRule), rules(policy, byRule, total)),
    candidate(policy, reload),
    history(policy, versions, reload),
  ];
}

/** The text as it is, each rule with how often it decided. */
function active(policy, byRule) {
  let inComment;
  const lines = policy.text.replace(/\n$/, "").split("\n").map((line, i) => {
    const rule = /^\s*-\s*\{?\s*id:\s*["']?([\w.-]+)/.exec(line)?.[1];
    const [, space, key, rest] = /^(\s*(?:- )?)([\w-]+:)(.*)$/.exec(line) || [];
    inComment = /^\s*#/.test(line);
    return h(
      "li",
      { class: rule ? "rule" : "" },
      h("span", { class: "no", "aria-hidden": "true" }, i + 1),
      inComment ? h("span", { class: "comment" }, line) : key ? h("span", {}, space, h("span", { class: "key" }, key), rest) : h("span", {}, line || " "),
      rule ? badge(`${count(byRule.get(rule) || 0)} hits`, byRule.get(rule) ? "calm" : "") : h("span"),
    );
  });
  return card(
    "Policy in force",
    { note: "hits: requests that the rule decided, last 30 days" },
    h("div", { class: "yaml", tabindex: "0", role: "region", "aria-label": "The policy's text" }, h("ol", {}, lines)),
  );
}

function rules(policy, byRule, total) {
  const bars = new Map(policy.bans.map((ban) => [ban.rule, ban]));
  const listed = [...policy.rules.map((rule) => [rule.id, rule.kind]), ...[...byRule.keys()].filter((id) => !policy.rules.some((rule) => rule.id === id)).map((id) => [id, "default"])];
  const rows = listed.map(([id, kind]) => {
    const hits = byRule.get(id) || 0;
    const ban = bars.get(id);
    return [
      h("a", { href: `#/decisions?${query({ rule: id, since: SPAN })}`, class: "mono" }, id),
      badge(kind),
      count(hits),
      percent(total ? hits / total : null, 1),
      ban ? (ban.recall ? `catches ${percent(ban.recall.share, 1)} at ${fixed(ban.threshold)}` : `${ban.domain} at ${fixed(ban.threshold)}`) : "–",
    ];
  });
  return card("Rules", {}, table("Rules and how often they decided", [{ name: "Rule" }, { name: "Kind" }, { name: "Hits", class: "number" }, { name: "Share", class: "number" }, { name: "Bar" }], rows, { hideCaption: true }));
}

// ---- A candidate ------------------------------------------------------------------------------

function candidate(policy, reload) {
  const text = h("textarea", { id: "candidate", spellcheck: "false", autocapitalize: "off", wrap: "off", rows: "20", "aria-describedby": "candidate-help" });
  text.value = policy.text;
  const answer = h("div", { class: "stack", "aria-live": "polite" });
  const problems = h("div", { "aria-live": "polite" });
  const apply = button("Apply it …", () => confirm(), { disabled: true });
  let turn = 0;
  let timer;

  const check = async () => {
    const mine = ++turn;
    apply.disabled = true;
    try {
      const found = await call("v1/policy/validate", { method: "POST", body: { policy: text.value } });
      if (mine !== turn) return;
      const isSame = found.hash === policy.hash;
      text.setAttribute("aria-invalid", String(!found.valid));
      replace(problems, found.valid ? verdict(found, isSame) : listed(found.problems, text));
      apply.disabled = !found.valid || isSame;
    } catch (error) {
      if (mine === turn) replace(problems, failure(error, { needs: NEEDS }));
    }
  };
  text.addEventListener("input", () => {
    clearTimeout(timer);
    // A check under way is of the text as it was.
    turn += 1;
    apply.disabled = true;
    timer = setTimeout(check, 500);
  });

  const compare = async () => {
    replace(answer, h("p", { class: "note" }, "Comparing over every request there can be …"));
    try {
      const found = await call("v1/policy/compare", { method: "POST", body: { policy: text.value } });
      replace(answer, changes(found, "the candidate"), lineDiff(policy.text, text.value));
    } catch (error) {
      replace(answer, failure(error, { needs: NEEDS }));
    }
  };

  function confirm() {
    const sure = button("Yes, bring it into force", bring, { class: "primary" });
    replace(
      answer,
      h("div", { class: "notice" }, h("p", {}, `It replaces ${policy.hash.slice(0, 12)} at once, for every request from now on. The change is recorded with your name.`), h("p", { class: "actions" }, sure, button("No", () => replace(answer)))),
    );
    sure.focus();
  }

  /** After another's change: compare with and replace what is in force now; the text stays. */
  async function catchUp() {
    try {
      policy = await call("v1/policy");
      await check();
      await compare();
    } catch (error) {
      replace(answer, failure(error, { needs: NEEDS, retry: catchUp }));
    }
  }

  async function bring() {
    try {
      const found = await call("v1/policy", { method: "PUT", body: { policy: text.value }, headers: { "if-match": `"${policy.hash}"` } });
      announce("The candidate is in force.");
      reload(`${found.name} ${found.hash.slice(0, 12)} is in force.`);
    } catch (error) {
      replace(answer, failure(error, { needs: NEEDS, retry: error.status === 412 ? catchUp : null }));
    }
  }

  return card(
    "Candidate",
    { note: "nothing changes until it is applied" },
    h("p", { class: "note", id: "candidate-help" }, "Control+Space offers keys and values of the schema. It is checked as you write, with the tests and proofs that are in force."),
    h("div", { class: "field" }, h("label", { for: "candidate" }, "The candidate's text"), completing(text)),
    problems,
    h("p", { class: "actions" }, button("Check", check), button("What would change", compare), apply, button("Take the policy in force", () => ((text.value = policy.text), check()))),
    answer,
    tryIt(() => (text.value === policy.text ? null : text.value)),
  );
}

const verdict = (found, isSame) => h("p", { class: "notice good" }, isSame ? "Valid: it is the policy in force." : `Valid, and its tests and proofs hold: ${found.hash.slice(0, 12)}.`);

function listed(problems, text) {
  return h(
    "ul",
    { class: "problems", "aria-label": "Problems" },
    problems.map((problem) =>
      h(
        "li",
        {},
        problem.line > 0 && problem.file.endsWith(".yaml") && !problem.file.includes("_test") ? button(`line ${problem.line}`, () => goTo(text, problem), { class: "small" }) : badge(problem.file || "policy"),
        problem.message,
        problem.hint && h("span", { class: "hint" }, problem.hint),
      ),
    ),
  );
}

function goTo(text, { line, column }) {
  const lines = text.value.split("\n");
  const at = lines.slice(0, line - 1).reduce((total, each) => total + each.length + 1, 0);
  text.focus();
  text.setSelectionRange(at + Math.max(0, column - 1), at + (lines[line - 1] || "").length);
  text.scrollTop = (text.scrollHeight / lines.length) * Math.max(0, line - 5);
}

function changes(found, what) {
  if (!found.changes.length) return h("p", { class: "notice good" }, `No change: ${what} decides every request alike.`);
  return h(
    "div",
    { class: "stack" },
    h("p", {}, `${count(found.changes.length)} ${found.changes.length > 1 ? "changes" : "change"}, `, badge(found.looser ? "looser" : "none looser", found.looser ? "warn" : "good")),
    h(
      "ul",
      { class: "changes" },
      found.changes.map((change) => {
        const asks = change.requested_modes.includes("none") ? [] : [`where callers ask for ${change.requested_modes.join(" or ")}`];
        const [was, now] = [change.old_rules.join(" or "), change.new_rules.join(" or ")];
        return h(
          "li",
          { class: change.looser ? "looser" : "" },
          h("p", {}, h("strong", {}, change.effects.join(", ")), " ", change.looser && badge("looser", "warn"), h("span", { class: "note" }, was === now ? ` by ${was}` : ` was ${was}, now ${now}`)),
          h("p", { class: "note" }, [...change.where, ...asks].join("; ") || "every request"),
        );
      }),
    ),
  );
}

/** The lines that differ, with two around; the longest common subsequence, or whole where too long. */
export function lineDiff(old, now) {
  const [a, b] = [old.split("\n"), now.split("\n")];
  if (old === now) return null;
  if (a.length * b.length > 4e6) return h("p", { class: "note" }, "The texts are too long to show line by line.");
  const lengths = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) lengths[i][j] = a[i] === b[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  }
  const lines = [];
  for (let i = 0, j = 0; i < a.length || j < b.length; ) {
    if (i < a.length && j < b.length && a[i] === b[j]) lines.push([" ", a[i++], j++]);
    else if (j >= b.length || (i < a.length && lengths[i + 1][j] >= lengths[i][j + 1])) lines.push(["−", a[i++]]);
    else lines.push(["+", b[j++]]);
  }
  const isNear = (at) => lines.slice(Math.max(0, at - 2), at + 3).some(([sign]) => sign !== " ");
  const shown = [];
  lines.forEach(([sign, line], at) => {
    if (isNear(at)) shown.push(h("div", { class: { "+": "plus", "−": "minus" }[sign] || "" }, `${sign} ${line}`));
    else if (shown.at(-1)?.className !== "gap") shown.push(h("div", { class: "gap" }, "⋯"));
  });
  return h("div", { class: "diff", tabindex: "0", role: "region", "aria-label": "Lines that differ" }, shown);
}

/** Explain: what would be decided for a prompt, by the candidate (null: it is what is in force) or by what is in force. */
function tryIt(candidateText) {
  const prompt = h("textarea", { id: "try-prompt", class: "prose", rows: "3" }, "What is the highest daily dose of ibuprofen?");
  const which = select("Judged by", "try-policy", [["candidate", "the candidate"], ["active", "the policy in force"]], "candidate");
  const wish = select("The caller asks for", "try-mode", [["", "no mode"], ["standard", "standard"], ["speculative", "speculative"], ["hybrid", "hybrid"]], "");
  const model = input("Model", "try-model", "", { placeholder: "the first served" });
  const answer = h("div", { "aria-live": "polite" });
  async function explain(event) {
    event.preventDefault();
    const form = event.target;
    try {
      const name = form.elements["try-model"].value.trim() || (await call("v1/models")).data[0]?.id;
      const body = { request: { model: name, messages: [{ role: "user", content: prompt.value }] } };
      const candidate = candidateText();
      if (form.elements["try-policy"].value === "candidate" && candidate !== null) body.policy = candidate;
      const asked = form.elements["try-mode"].value;
      const found = await call("v1/decisions/explain", { method: "POST", body, headers: asked ? { "x-draftgate-mode": asked } : {} });
      replace(answer, explained(found));
    } catch (error) {
      replace(answer, failure(error, { needs: NEEDS }));
    }
  }
  return h(
    "form",
    { class: "stack try", onsubmit: explain, "aria-label": "Try a prompt" },
    h("h3", {}, "Try a prompt"),
    h("div", { class: "field" }, h("label", { for: "try-prompt" }, "Prompt; nothing is generated or recorded"), prompt),
    h("div", { class: "form-row" }, which, wish, model, h("button", { type: "submit", class: "primary" }, "Explain")),
    answer,
  );
}

function explained({ decision, signals }) {
  const rows = decision.trace.map((line) => [badge(line.kind), h("span", { class: "mono" }, line.rule), line.matched ? badge("held", "good") : badge("no"), line.detail]);
  const domains = signals.items.filter((signal) => signal.name === "domain" && signal.score >= 0.05).sort((a, b) => b.score - a.score);
  return h(
    "div",
    { class: "stack" },
    h("p", {}, "It would be decided ", decision.deny ? badge("denied", "bad") : chip(decision.mode), " by ", h("strong", { class: "mono" }, decision.rule), decision.reason && `: ${decision.reason}`),
    domains.length > 0 && h("p", { class: "badges" }, domains.map((signal) => badge(`${signal.value.replaceAll("_", " ")} ${signal.score.toFixed(2)}`))),
    table("Rules, in order", [{ name: "Kind" }, { name: "Rule" }, { name: "Held" }, { name: "On which value" }], rows, { hideCaption: true }),
  );
}

// ---- Versions ---------------------------------------------------------------------------------

function history(policy, versions, reload) {
  const answer = h("div", { class: "stack", "aria-live": "polite" });
  const textOf = async (hash) => {
    const { files, name } = await call(`v1/policy/versions/${hash}`);
    const names = Object.keys(files);
    return files[names.find((file) => !/_(test|proof|proofs)\.ya?ml$/.test(file)) ?? names[0]] ?? name;
  };
  async function compare(version) {
    replace(answer, h("p", { class: "note" }, "Comparing …"));
    try {
      const old = await textOf(version.hash);
      const found = await call("v1/policy/compare", { method: "POST", body: { policy: policy.text, old } });
      replace(answer, h("h3", {}, `From ${version.hash.slice(0, 12)} to the policy in force`), changes(found, "the policy in force"), lineDiff(old, policy.text));
    } catch (error) {
      replace(answer, failure(error, { needs: NEEDS }));
    }
  }
  function ask(version) {
    const sure = button("Yes, roll back", () => back(version), { class: "primary" });
    replace(answer, h("div", { class: "notice" }, h("p", {}, `${version.hash.slice(0, 12)} replaces ${policy.hash.slice(0, 12)} at once, with the tests and proofs that it had. The change is recorded with your name.`), h("p", { class: "actions" }, sure, button("No", () => replace(answer)))));
    sure.focus();
  }
  async function back(version) {
    try {
      await call("v1/policy/rollback", { method: "POST", body: { hash: version.hash }, headers: { "if-match": `"${policy.hash}"` } });
      announce("Rolled back.");
      reload(`${version.hash.slice(0, 12)} is in force again.`);
    } catch (error) {
      replace(answer, failure(error, { needs: NEEDS }));
    }
  }
  const rows = versions.map((version) => [
    moment(version.changed_at),
    h("code", {}, version.hash.slice(0, 12)),
    version.name,
    version.source,
    version.by || "–",
    version.active
      ? badge("in force", "good")
      : h("span", { class: "actions" }, button("Compare", () => compare(version), { class: "small", "aria-label": `Compare ${version.hash.slice(0, 12)}` }), button("Roll back …", () => ask(version), { class: "small", "aria-label": `Roll back to ${version.hash.slice(0, 12)}` })),
  ]);
  return card("Versions", { note: "the last hundred changes" }, table("Versions, newest first", [{ name: "Since" }, { name: "Hash" }, { name: "Name" }, { name: "Came from" }, { name: "By" }, { hidden: "Actions" }], rows, { hideCaption: true }), answer);
}
