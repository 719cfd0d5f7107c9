// Completion in a text area: keys and values of the policy's schema, by where the cursor stands.

import { call } from "./api.js";
import { h, replace } from "./dom.js";

let schema = null;

async function known() {
  schema ||= await call("v1/policy/schema");
  return schema;
}

function resolve(node, root) {
  let found = node || {};
  while (found.$ref) found = root.$defs[found.$ref.split("/").at(-1)];
  return found;
}

/** The mappings that a schema allows here: itself, or its alternatives' and its items'. */
function shapes(node, root) {
  const found = resolve(node, root);
  const inner = [...(found.anyOf || []), ...(found.items ? [found.items] : [])];
  return [found, ...inner.flatMap((each) => shapes(each, root))];
}

/** The keys that lead to a line, outermost first, told from its indentation. */
export function pathTo(lines, line) {
  const indent = (text) => /^[ ]*(?:- )?/.exec(text)[0].length;
  let depth = indent(lines[line]);
  const path = [];
  for (let at = line - 1; at >= 0; at -= 1) {
    const match = /^[ ]*(?:- )?([\w-]+):/.exec(lines[at]);
    if (match && indent(lines[at]) < depth) {
      path.unshift(match[1]);
      depth = indent(lines[at]);
    }
    if (depth === 0) break;
  }
  return path;
}

/** What may stand at the cursor: [text, description] each. */
export function offers(root, before) {
  const lines = before.split("\n");
  const current = lines.at(-1);
  const value = /([\w-]+):[ ]+([\w-]*)$/.exec(current);
  // Of a flow mapping, such as {domain: {is: …}}, only the keys that are open count.
  const flow = [...current.matchAll(/([\w-]+):\s*\{/g)].map((match) => match[1]);
  const closed = (current.match(/\}/g) || []).length;
  let nodes = [root];
  for (const key of [...pathTo(lines, lines.length - 1), ...flow.slice(0, Math.max(0, flow.length - closed))]) {
    nodes = nodes.flatMap((node) => shapes(node, root)).map((node) => node.properties?.[key]).filter(Boolean);
  }
  const wanted = /[\w-]*$/.exec(current)[0];
  const here = nodes.flatMap((node) => shapes(node, root));
  const found = new Map();
  if (value) {
    for (const node of here.map((each) => each.properties?.[value[1]]).filter(Boolean)) {
      for (const shape of shapes(node, root)) {
        for (const each of shape.enum || (shape.type === "boolean" ? [true, false] : [])) found.set(String(each), "");
      }
    }
  } else {
    for (const shape of here) for (const [key, node] of Object.entries(shape.properties || {})) found.set(`${key}: `, node.description || resolve(node, root).description || "");
  }
  return [...found].filter(([text]) => text.startsWith(wanted) && text !== wanted).map(([text, description]) => ({ text, description, wanted }));
}

/** The text area with completion; Control+Space opens it, the arrows choose, Enter takes, Escape closes. */
export function completing(text) {
  const list = h("ul", { class: "completions", id: "completions", role: "listbox", "aria-label": "Completions", hidden: true });
  let shown = [];
  let chosen = 0;
  text.setAttribute("aria-controls", "completions");
  text.setAttribute("aria-autocomplete", "list");

  function close() {
    shown = [];
    list.hidden = true;
    text.removeAttribute("aria-activedescendant");
  }
  function draw() {
    replace(
      list,
      shown.map((offer, i) =>
        h(
          "li",
          { role: "option", id: `completion-${i}`, "aria-selected": String(i === chosen), onmousedown: (event) => (event.preventDefault(), take(i)) },
          h("code", {}, offer.text),
          offer.description && ` ${offer.description}`,
        ),
      ),
    );
    list.hidden = false;
    text.setAttribute("aria-activedescendant", `completion-${chosen}`);
    list.children[chosen].scrollIntoView({ block: "nearest" });
  }
  async function open() {
    try {
      shown = offers(await known(), text.value.slice(0, text.selectionStart));
    } catch {
      return close();
    }
    chosen = 0;
    if (!shown.length) return close();
    const line = text.value.slice(0, text.selectionStart).split("\n").length;
    const height = parseFloat(getComputedStyle(text).lineHeight);
    list.style.top = `${Math.min(line * height - text.scrollTop + 12, text.clientHeight - 40)}px`;
    list.style.left = "3rem";
    draw();
  }
  function take(i) {
    const { text: word, wanted } = shown[i];
    text.setRangeText(word.slice(wanted.length), text.selectionStart, text.selectionStart, "end");
    close();
    text.dispatchEvent(new Event("input", { bubbles: true }));
  }
  text.addEventListener("keydown", (event) => {
    if (event.ctrlKey && event.code === "Space") {
      event.preventDefault();
      open();
    } else if (!shown.length) {
      return;
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : shown.length - 1)) % shown.length;
      draw();
    } else if (event.key === "Enter" || event.key === "Tab") {
      event.preventDefault();
      take(chosen);
    } else if (event.key === "Escape") {
      event.preventDefault();
      close();
    }
  });
  text.addEventListener("input", close);
  text.addEventListener("blur", close);
  return h("div", { class: "editor" }, text, list);
}
