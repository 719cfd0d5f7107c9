// Elements and words. Text only ever enters the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** An HTML element; strings among the children are text, whatever they say. */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function replace(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

const known = (element) => element.id || element.getAttribute("href") || element.getAttribute("aria-label") || element.textContent;

/** Replace what is drawn again and again; whoever had come to a part of it by keyboard stays there. */
export function redraw(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement : null;
  replace(element, ...children);
  if (!focused) return;
  const same = [...element.querySelectorAll(focused.tagName)].find((each) => known(each) === known(focused));
  same?.focus({ preventScroll: true });
}

/** Said to screen readers, and to nobody else. */
export function announce(text) {
  document.getElementById("live").textContent = text;
}

const whole = new Intl.NumberFormat("en");
const NONE = "–";

export const count = (value) => (value == null ? NONE : whole.format(value));

export function short(value) {
  if (value == null) return NONE;
  if (value < 10000) return whole.format(value);
  return value < 1e6 ? `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)} k` : `${(value / 1e6).toFixed(2)} M`;
}

export const fixed = (value, digits = 2) => (value == null || !Number.isFinite(value) ? NONE : value.toFixed(digits));

export const percent = (value, digits = 0) =>
  value == null || !Number.isFinite(value) ? NONE : `${(value * 100).toFixed(digits)} %`;

export function seconds(value) {
  if (value == null || !Number.isFinite(value)) return NONE;
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 1) return `${(value * 1e3).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  return value < 7200 ? `${(value / 60).toFixed(0)} min` : `${(value / 3600).toFixed(1)} h`;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const full = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** A moment in seconds since the epoch, in the reader's own zone; the title has all of it. */
export function moment(at) {
  if (at == null) return NONE;
  const date = new Date(at * 1000);
  const isToday = date.toDateString() === new Date().toDateString();
  const text = isToday ? clock.format(date) : `${day.format(date)}, ${clock.format(date)}`;
  return h("time", { datetime: date.toISOString(), title: full.format(date) }, text);
}

export const words = (name) => (name == null ? "none" : String(name).replaceAll("_", " "));

/** A mode as a chip; null: nothing ran. */
export const chip = (mode) =>
  h("span", { class: `chip mode-${mode || "none"}` }, mode || "did not run");

export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);

/** A section with a heading; `note` stands beside it. */
export function card(title, { note, actions, kind = "", level = 2 } = {}, ...children) {
  const id = `card-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  return h(
    "section",
    { class: `card ${kind}`, "aria-labelledby": id },
    h("div", { class: "card-head" }, h(`h${level}`, { id }, title), note && h("span", { class: "note" }, note), actions),
    children,
  );
}

/** A figure with its name. */
export function tile(name, value, { note, kind = "" } = {}) {
  return h(
    "div",
    { class: `tile ${kind}` },
    h("dt", {}, name),
    h("dd", {}, h("span", { class: "figure" }, value), note && h("span", { class: "note" }, note)),
  );
}

/** A table; a cell is a node, a text, or {value, class}. Rows are arrays, or {cells, class}. */
export function table(caption, columns, rows, { kind = "", hideCaption = false } = {}) {
  const head = columns.map((column) =>
    h("th", { scope: "col", class: column.class }, column.name || h("span", { class: "hidden" }, column.hidden)),
  );
  const body = rows.map((row) => {
    const cells = Array.isArray(row) ? row : row.cells;
    return h(
      "tr",
      { class: row.class },
      cells.map((cell, i) => h("td", { class: columns[i].class, "data-name": columns[i].name }, cell)),
    );
  });
  return h(
    "div",
    { class: `scroll ${kind}`, tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: hideCaption ? "hidden" : "" }, caption),
      h("thead", {}, h("tr", {}, head)),
      h("tbody", {}, body),
    ),
  );
}

/** What stands in place of figures. */
export function state(title, text, { action, kind = "" } = {}) {
  return h(
    "div",
    { class: `state ${kind}`, role: kind === "bad" ? "alert" : null },
    h("p", { class: "state-title" }, title),
    text && h("p", {}, text),
    action,
  );
}

export const loading = () => h("p", { class: "state loading", "aria-busy": "true" }, "Loading …");

/** An option list with a label. */
export function select(label, name, options, value, onchange) {
  const id = `f-${name}`;
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    h(
      "select",
      { id, name, onchange },
      options.map(([key, text]) => h("option", { value: key, selected: key === (value || "") }, text)),
    ),
  );
}

export function input(label, name, value, attributes = {}) {
  const id = `f-${name}`;
  return h("div", { class: "field" }, h("label", { for: id }, label), h("input", { id, name, value, ...attributes }));
}

export const button = (text, onclick, attributes = {}) => h("button", { type: "button", onclick, ...attributes }, text);
