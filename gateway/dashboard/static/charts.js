// Drawings as SVG. Colours come from the stylesheet, by class; every drawing has its figures as words too.

import { count, h, s } from "./dom.js";

export const MODES = ["standard", "speculative", "hybrid", "none"];
const MODE_WORDS = { none: "did not run" };

/** The steps of an axis that begins at 0: round numbers, four at most. */
function ticks(top) {
  if (top <= 0) return [0, 1];
  const rough = top / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough));
  const found = [];
  for (let at = 0; at < top + step; at += step) found.push(at);
  return found;
}

/** A drawing that scrolls where there is no room for it, beginning with its newest end. */
export function wide(label, drawing) {
  const box = h("div", { class: "wide-chart", tabindex: "0", role: "region", "aria-label": label }, drawing);
  requestAnimationFrame(() => (box.scrollLeft = box.scrollWidth));
  return box;
}

/** Which series there are, with their colours. */
export function legend(entries) {
  return h(
    "ul",
    { class: "legend" },
    entries.map(([kind, text]) => h("li", {}, h("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), text)),
  );
}

export const modeLegend = (modes) => legend(modes.map((mode) => [`fill-${mode}`, MODE_WORDS[mode] || mode]));

/**
 * Stacked columns. `columns` are {label, title, values: {mode: number}}; `top` is the tallest there is
 * to be, so that several drawings can have one scale.
 */
export function stacked(columns, { label, width = 1100, height = 220, axis = true, top } = {}) {
  const left = axis ? 44 : 0;
  const bottom = axis ? 22 : 0;
  const tallest = top ?? Math.max(1, ...columns.map((column) => sum(column.values)));
  const marks = ticks(tallest);
  const most = axis ? marks.at(-1) : tallest;
  const inner = height - bottom - (axis ? 8 : 2);
  const step = (width - left) / Math.max(1, columns.length);
  const y = (value) => height - bottom - (value / most) * inner;
  const parts = [];
  if (axis) {
    for (const mark of marks) {
      parts.push(s("line", { class: "grid", x1: left, x2: width, y1: y(mark), y2: y(mark) }));
      parts.push(s("text", { class: "tick", x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, count(mark)));
    }
  } else {
    parts.push(s("line", { class: "grid", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 }));
  }
  const every = Math.ceil(columns.length / 8);
  columns.forEach((column, i) => {
    const x = left + i * step;
    let base = 0;
    const bars = MODES.filter((mode) => column.values[mode]).map((mode) => {
      const value = column.values[mode];
      const bar = s("rect", {
        class: `fill-${mode}`,
        x: x + step * 0.12,
        width: Math.max(1, step * 0.76),
        y: y(base + value),
        height: Math.max(0.75, y(base) - y(base + value)),
      });
      base += value;
      return bar;
    });
    const title = `${column.title}: ${MODES.filter((m) => column.values[m]).map((m) => `${count(column.values[m])} ${MODE_WORDS[m] || m}`).join(", ") || "none"}`;
    parts.push(s("g", { class: "column" }, s("title", {}, title), s("rect", { class: "hit", x, width: step, y: 0, height: height - bottom }), bars));
    if (axis && i % every === 0) {
      parts.push(s("text", { class: "tick", x: x + step / 2, y: height - 5, "text-anchor": "middle" }, column.label));
    }
  });
  return s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, parts);
}

const sum = (values) => Object.values(values).reduce((total, value) => total + value, 0);

/** A share as a bar with a threshold's mark, both from 0 to 1. */
export function gauge(value, { threshold, kind = "", label } = {}) {
  const at = Math.min(1, Math.max(0, value)) * 200;
  return s(
    "svg",
    { class: `gauge ${kind}`, viewBox: "0 0 200 14", preserveAspectRatio: "none", role: "img", "aria-label": label },
    s("rect", { class: "track", x: 0, y: 3, width: 200, height: 8 }),
    s("rect", { class: "value", x: 0, y: 3, width: at, height: 8 }),
    (threshold || []).map((bar) => s("line", { class: "bar", x1: bar * 200, x2: bar * 200, y1: 0, y2: 14 })),
  );
}

/** An interval around 0 (or `centre`) with its estimate. */
export function interval({ mean, low, high }, { centre = 0, span, label }) {
  const x = (value) => 100 + Math.max(-1, Math.min(1, (value - centre) / span)) * 96;
  const holds = low <= centre && centre <= high;
  return s(
    "svg",
    { class: `interval ${holds ? "holds" : "fails"}`, viewBox: "0 0 200 18", role: "img", "aria-label": label },
    s("line", { class: "track", x1: 4, x2: 196, y1: 9, y2: 9 }),
    s("line", { class: "centre", x1: 100, x2: 100, y1: 1, y2: 17 }),
    s("line", { class: "range", x1: x(low), x2: x(high), y1: 9, y2: 9 }),
    s("circle", { class: "estimate", cx: x(mean), cy: 9, r: 4 }),
  );
}

/**
 * The e-value over tokens: `points` are [tokens, log10 e], the line `alarm` is where an alarm is raised.
 * The scale is logarithmic, as the points are.
 */
export function evidenceChart(points, alarm, { label, width = 1100, height = 280 } = {}) {
  const left = 52;
  const bottom = 34;
  const right = 12;
  const known = [[0, 0], ...points.filter((point) => point[1] !== null)];
  const most = Math.max(1, ...points.map((point) => point[0]));
  const top = Math.ceil(Math.max(alarm, ...known.map((point) => point[1])) + 1);
  const floor = Math.floor(Math.max(-12, Math.min(-1, ...known.map((point) => point[1]))));
  const x = (tokens) => left + (tokens / most) * (width - left - right);
  const y = (value) => 10 + ((top - Math.max(floor, value)) / (top - floor)) * (height - bottom - 10);
  const step = Math.max(1, Math.ceil((top - floor) / 6));
  const parts = [];
  for (let mark = Math.ceil(floor / step) * step; mark <= top; mark += step) {
    parts.push(s("line", { class: mark === 0 ? "grid strong" : "grid", x1: left, x2: width - right, y1: y(mark), y2: y(mark) }));
    parts.push(
      s("text", { class: "tick", x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, "10", s("tspan", { dy: -5, "font-size": "9" }, mark)),
    );
  }
  for (const tokens of ticks(most).filter((mark) => mark <= most)) {
    parts.push(s("text", { class: "tick", x: x(tokens), y: height - 14, "text-anchor": "middle" }, count(tokens)));
  }
  parts.push(s("text", { class: "tick", x: width - right, y: height - 1, "text-anchor": "end" }, "measured tokens"));
  parts.push(s("line", { class: "alarm-line", x1: left, x2: width - right, y1: y(alarm), y2: y(alarm) }));
  parts.push(s("text", { class: "alarm-text", x: width - right - 4, y: y(alarm) - 6, "text-anchor": "end" }, "alarm at 10", s("tspan", { dy: -4, "font-size": "9" }, alarm.toFixed(0))));
  parts.push(s("polyline", { class: "line", points: known.map(([t, e]) => `${x(t).toFixed(1)},${y(e).toFixed(1)}`).join(" ") }));
  const last = known.at(-1);
  parts.push(s("circle", { class: last[1] >= alarm ? "dot bad" : "dot", cx: x(last[0]), cy: y(last[1]), r: 4 }));
  return s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, parts);
}
