// Lines over time, drawn as SVG in the colours of the style sheet. All charts of a page share one cursor: a moment that was pointed at.

import { el, svg } from "./dom.js";

const NS_LEFT = 2, BOTTOM = 16, TOP = 4;

// A scale that ends at a round number: 1, 2 or 5 times a power of ten; of bytes, a power of two.
export function roundUp(number, binary = false) {
  if (!(number > 0)) return 1;
  if (binary) return 2 ** Math.ceil(Math.log2(number));
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= number * 0.999);
}

function ago(span) {
  if (span < 120 && span % 60) return `−${Math.round(span)} s`;
  if (span < 7200 && span % 3600) return `−${Math.round(span / 60)} min`;
  return `−${span / 3600} h`;
}

// One chart. `draw` gets {from, to, last, step, points, lines, stack, most, label(value)}: `lines` are {name, of(point), className | colour,
// area}, `stack` the same, one on top of the other; `last` is the word for `to`. A point without data is a gap.
export class Chart {
  constructor(title, height, onCursor) {
    this.height = height;
    this.number = el("span", { class: "number" });
    this.more = el("span", { class: "more" });
    this.picture = svg("svg", { class: "chart", role: "img", tabindex: "0", height });
    this.legend = el("ul", { class: "keys" });
    this.element = el("section", { class: "card" }, el("h3", {}, title), el("p", { class: "figures" }, this.number, " ", this.more), this.picture, this.legend);
    this.title = title;
    this.picture.addEventListener("pointermove", (event) => onCursor(this.time(event)));
    this.picture.addEventListener("pointerleave", () => onCursor(null));
    this.picture.addEventListener("blur", () => onCursor(null));
    this.picture.addEventListener("keydown", (event) => {
      if (!this.data) return;
      const { from, to, step } = this.data, at = this.cursor ?? to;
      const next = { ArrowLeft: Math.max(from, at - step), ArrowRight: Math.min(to, at + step), Home: from, End: to, Escape: null }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      onCursor(next);
    });
  }
  time(event) {
    if (!this.data) return null;
    const box = this.picture.getBoundingClientRect(), { from, to, step } = this.data;
    const share = Math.min(1, Math.max(0, (event.clientX - box.left - NS_LEFT) / (box.width - 2 * NS_LEFT)));
    return from + Math.round((share * (to - from)) / step) * step;
  }
  draw(data) {
    this.data = data;
    const width = Math.max(120, this.picture.clientWidth || 300), inner = this.height - TOP - BOTTOM;
    const { from, to, step, points, stack = [], lines = [], most, label } = data;
    this.x = (time) => NS_LEFT + ((time - from) / (to - from || 1)) * (width - 2 * NS_LEFT);
    const y = (value) => TOP + inner * (1 - Math.min(1, Math.max(0, value / most)));
    this.picture.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    const parts = [];
    for (const share of [0, 0.5, 1]) parts.push(svg("line", { class: "grid", x1: 0, x2: width, y1: y(share * most), y2: y(share * most) }));
    const shown = points.filter((point) => point[0] >= from);
    const paths = (of, base, line) => runs(shown, step).map((run) => {
      const top = run.map((point) => `${this.x(point[0]).toFixed(1)},${y(of(point)).toFixed(1)}`);
      const bottom = base && run.map((point) => `${this.x(point[0]).toFixed(1)},${y(base(point)).toFixed(1)}`).reverse();
      const paint = line.colour ? { fill: line.colour, stroke: line.colour } : {};
      const found = [];
      if (bottom) found.push(svg("polygon", { class: `area ${line.className ?? ""}`, points: [...top, ...bottom].join(" "), ...paint }));
      if (!bottom || line.edge !== false) found.push(svg("polyline", { class: `line ${line.className ?? ""}`, points: top.join(" "), ...paint, fill: "none" }));
      return found;
    }).flat();
    let base = () => 0;
    for (const layer of stack) {
      const below = base, of = (point) => below(point) + layer.of(point);
      parts.push(...paths(of, below, layer));
      base = of;
    }
    for (const line of lines) parts.push(...paths(line.of, line.area ? () => 0 : null, line));
    parts.push(svg("text", { class: "mark", x: 4, y: TOP + 11 }, label(most)));
    for (const [time, anchor] of [[from, "start"], [(from + to) / 2, "middle"], [to, "end"]]) {
      parts.push(svg("text", { class: "mark", x: anchor === "start" ? 4 : anchor === "end" ? width - 4 : this.x(time), y: this.height - 4, "text-anchor": anchor }, time === to ? data.last : ago(to - time)));
    }
    this.rule = svg("line", { class: "cursor", y1: TOP, y2: TOP + inner, visibility: "hidden" });
    this.picture.replaceChildren(...parts, this.rule);
    if (this.cursor !== null && this.cursor !== undefined) this.point(this.cursor);
  }
  point(time) {
    this.cursor = time;
    if (!this.rule || !this.data) return;
    const x = this.x(Math.max(this.data.from, time ?? this.data.from));
    this.rule.setAttribute("visibility", time === null ? "hidden" : "visible");
    this.rule.setAttribute("x1", x);
    this.rule.setAttribute("x2", x);
  }
  // What the chart says, as numbers: at the cursor, else of the newest point.
  say(number, more, keys, spoken) {
    this.number.textContent = number;
    this.more.textContent = more;
    this.picture.setAttribute("aria-label", `${this.title}: ${spoken ?? `${number} ${more}`}. Arrow keys move a cursor; the table below has the numbers.`);
    this.legend.replaceChildren(...keys.map(({ name, value, colour, className }) => {
      const swatch = svg("svg", { class: `swatch ${className ?? ""}`, viewBox: "0 0 10 10", width: 10, height: 10, "aria-hidden": "true" },
        svg("rect", { width: 10, height: 10, rx: 2, ...(colour ? { fill: colour } : {}) }));
      return el("li", {}, swatch, el("span", { class: "key" }, name), value === "" ? "" : el("span", { class: "value" }, value));
    }));
  }
}

// Points that follow each other without a gap.
function runs(points, step) {
  const found = [];
  let last = null;
  for (const point of points) {
    if (point[1] === null) { last = null; continue; }
    if (last === null || point[0] - last > step) found.push([]);
    found.at(-1).push(point);
    last = point[0];
  }
  return found.map((run) => (run.length > 1 ? run : [run[0], [run[0][0] + step / 2, ...run[0].slice(1)]]));
}
