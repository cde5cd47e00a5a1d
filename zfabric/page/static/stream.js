import { ask, colour, count, el, percent, renew, seconds, table } from "./dom.js";
import { described } from "./details.js";

const LANE = 22, TOP = 26, WINDOW = 60;

// The task stream: a lane for each worker, time from left to right. Times are seconds relative to the newest moment that is shown. Zooming
// asks the server for the bars of what is shown, so that they are merged less.
export const stream = {
  title: "Task stream",
  show(place) {
    this.span = WINDOW;
    this.end = 0;
    this.until = 0; // The moment at which the picture is held; 0: it moves on.
    this.data = null;
    this.chosen = null;
    this.inputs = [];
    this.canvas = el("canvas", { role: "img", tabindex: "0", "aria-label": "task stream; the table below has the same by function" });
    this.about = el("p", { class: "note" });
    this.picked = el("div", { class: "picked", "aria-live": "polite" });
    this.legend = el("div");
    this.button = el("button", { "aria-pressed": "false", onclick: () => this.hold(!this.until) }, "hold");
    const zoom = (factor) => () => this.zoom(factor, 0.5);
    place.append(el("h2", {}, "Task stream"), el("div", { class: "tools" },
      el("button", { onclick: zoom(0.5) }, "zoom in"), el("button", { onclick: zoom(2) }, "zoom out"),
      el("button", { onclick: () => { this.span = WINDOW; this.end = 0; this.hold(false); } }, "last minute"), this.button,
      el("span", { class: "note" }, "a bar is an attempt, a hatched one runs or waits now; a click explains it; + and − zoom, arrows move, n and p choose the next and previous bar")),
    this.canvas, this.about, this.picked, this.legend);
    this.canvas.addEventListener("wheel", (event) => { if (!event.ctrlKey && !event.shiftKey) return; event.preventDefault(); this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.share(event)); }, { passive: false });
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => {
      const action = { "+": zoom(0.5), "-": zoom(2), ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2), n: () => this.step(1), p: () => this.step(-1) }[event.key];
      if (action) { event.preventDefault(); action(); }
    });
    this.resized = () => this.draw();
    window.addEventListener("resize", this.resized);
    this.timer = setInterval(() => { if (!this.until) this.refresh(); }, 1000);
    return this.refresh();
  },
  hide() {
    clearInterval(this.timer);
    window.removeEventListener("resize", this.resized);
  },
  hold(held) {
    this.until = held ? (this.data?.now ?? 0) : 0;
    this.button.setAttribute("aria-pressed", held);
    this.button.textContent = held ? "go on" : "hold";
    if (!held) { this.chosen = null; this.inputs = []; this.picked.replaceChildren(); }
    return this.refresh();
  },
  async refresh() {
    if (this.busy) { this.again = true; return; }
    this.busy = true;
    try {
      const micro = (span) => Math.round(span * 1e6);
      this.data = await ask("stream", { until: micro(this.until), span: micro(this.span), ago: micro(-this.end) });
      this.draw();
      this.list();
    } finally {
      this.busy = false;
    }
    if (this.again) { this.again = false; return this.refresh(); }
    return undefined;
  },
  share(event) {
    const box = this.canvas.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left - this.left) / (box.width - this.left)));
  },
  zoom(factor, around) {
    const middle = this.end - this.span * (1 - around);
    this.span = Math.min(WINDOW, Math.max(0.001, this.span * factor));
    this.end = Math.min(0, middle + this.span * (1 - around));
    this.draw();
    this.refresh();
  },
  move(share) {
    this.end = Math.min(0, Math.max(this.span - WINDOW, this.end + share * this.span));
    this.draw();
    this.refresh();
  },
  draw() {
    if (!this.data) return;
    const { lanes, running, nodes } = this.data;
    const scale = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth || 800, height = TOP + Math.max(1, lanes.length) * LANE + 6;
    this.left = nodes > 1 ? 150 : 112;
    const left = this.left;
    this.canvas.style.setProperty("height", `${height}px`);
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    const pen = this.canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const quiet = style.getPropertyValue("--quiet"), line = style.getPropertyValue("--line"), bad = style.getPropertyValue("--bad"), text = style.getPropertyValue("--text");
    pen.scale(scale, scale);
    pen.font = "12px system-ui, sans-serif";
    const x = (time) => left + ((time - (this.end - this.span)) / this.span) * (width - left);
    const ticks = Math.max(1, Math.min(6, Math.floor((width - left) / 80)));
    for (let tick = 0; tick <= ticks; tick += 1) {
      const time = this.end - this.span + (tick * this.span) / ticks;
      pen.fillStyle = line;
      pen.fillRect(x(time), TOP - 6, 1, height);
      pen.fillStyle = quiet;
      pen.textAlign = tick === ticks ? "right" : "left";
      pen.fillText(time > -1e-9 ? (this.until ? "held" : "now") : `−${seconds(-time)}`, Math.min(x(time) + 2, width - 2), 14);
    }
    pen.textAlign = "left";
    this.drawn = [];
    const places = new Map();
    let open = []; // Ends of the bars of this lane that go on: what runs on top of one that waits is drawn lower, so that both are seen.
    const box = (lane, y, start, span, bar) => {
      open = open.filter((end) => end > start + 1e-6);
      const inset = Math.min(3, open.length) * 4;
      open.push(start + span);
      const from = Math.max(left, x(start)), to = Math.min(width, x(start + span));
      if (to < left || from > width) return null;
      pen.fillStyle = bar.mark ? bad : colour(bar.name);
      pen.globalAlpha = bar.count > 1 ? 0.75 : 1;
      pen.fillRect(from, y + 2 + inset, Math.max(1, to - from), LANE - 5 - inset);
      pen.globalAlpha = 1;
      if (bar.open) hatch(pen, from, y + 2 + inset, to - from, LANE - 5 - inset, bar.open === "blocked" ? style.getPropertyValue("--warn") : "#fff");
      if (to - from > 60) { pen.fillStyle = "#fff"; pen.fillText((bar.count > 1 ? `${bar.count} × ` : bar.open === "blocked" ? "waits: " : "") + bar.name.slice(0, Math.floor((to - from) / 7)), from + 4, y + 15 + inset / 2); }
      const found = { from, to: Math.max(to, from + 1), y, lane, bar };
      this.drawn.push(found);
      places.set(bar.task, found);
      return found;
    };
    lanes.forEach((lane, row) => {
      const y = TOP + row * LANE;
      const busy = lane.busy / this.span;
      open = [];
      pen.fillStyle = text;
      pen.fillText(`${nodes > 1 ? `${lane.node.slice(0, 6)} ` : ""}${lane.pid}`, 4, y + 14);
      pen.fillStyle = quiet;
      pen.textAlign = "right";
      pen.fillText(percent(Math.min(1, busy)), left - 6, y + 14);
      pen.textAlign = "left";
      for (const [start, span, name, mark, many, task] of lane.bars) box(lane, y, start, span, { start, span, name, mark, count: many, task });
      for (const now of running.filter((each) => each.pid === lane.pid && (nodes < 2 || each.node === lane.node) && each.task_id)) {
        box(lane, y, -now.seconds, now.seconds, { start: -now.seconds, span: now.seconds, name: now.task, mark: "", count: 1, task: now.task_id, open: now.state });
      }
    });
    this.arrows(pen, places, text);
    if (!lanes.length) { pen.fillStyle = quiet; pen.fillText("Nothing has run here.", left + 10, TOP + 15); }
    const full = this.data.full ? " Older ones are not retained here: only the newest 100,000 are." : "";
    this.about.textContent = (this.data.merged
      ? `${count(this.data.attempts)} attempts and calls; neighbours were merged, so ${count(this.data.merged)} of them have no bar of their own (“3 × f”). Zoom in to split them. The share beside a pid is that of the time in which something ran.`
      : `${count(this.data.attempts)} attempts and calls, each with its own bar. The share beside a pid is that of the time in which something ran.`) + full;
  },
  // From the bars that made its arguments to the chosen one.
  arrows(pen, places, ink) {
    const to = this.chosen && places.get(this.chosen);
    if (!to) return;
    pen.strokeStyle = pen.fillStyle = ink;
    pen.lineWidth = 2;
    pen.strokeRect(to.from, to.y + 1, to.to - to.from, LANE - 3);
    pen.lineWidth = 1.5;
    for (const from of this.inputs.map((id) => places.get(id)).filter(Boolean)) {
      const y1 = from.y + LANE / 2, y2 = to.y + LANE / 2;
      pen.beginPath(); pen.moveTo(from.to, y1); pen.bezierCurveTo(from.to + 30, y1, to.from - 30, y2, to.from - 4, y2); pen.stroke();
      pen.beginPath(); pen.moveTo(to.from, y2); pen.lineTo(to.from - 7, y2 - 4); pen.lineTo(to.from - 7, y2 + 4); pen.fill();
    }
  },
  click(event) {
    const box = this.canvas.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    const hit = this.drawn?.findLast(({ from, to, y }) => px >= from - 1 && px <= to + 1 && py >= y && py <= y + LANE);
    if (hit) this.pick(hit);
  },
  step(by) {
    if (!this.drawn?.length) return;
    const at = this.drawn.findIndex((each) => each.bar.task === this.chosen);
    this.pick(this.drawn[at < 0 ? this.drawn.length - 1 : Math.min(this.drawn.length - 1, Math.max(0, at + by))]);
  },
  async pick({ lane, bar }) {
    this.chosen = bar.task;
    this.inputs = [];
    if (!this.until) this.hold(true);
    this.draw();
    const head = el("h3", {}, `${bar.count > 1 ? `${bar.count} runs of ` : ""}${bar.name}${bar.mark ? ` (${bar.mark})` : ""}, ${bar.open ? `${bar.open} for ` : ""}${seconds(bar.span)} on pid ${lane.pid}, began ${seconds(-bar.start)} ago`);
    this.picked.replaceChildren(head);
    const answer = await ask("details", { text: bar.task }).catch((error) => ({ found: [], error: error.message }));
    if (this.chosen !== bar.task) return;
    if (answer.found.length !== 1) {
      this.picked.replaceChildren(head, el("p", { class: "note" }, answer.error ?? "No more is known of it here; “zfabric timeline” has it."));
      return;
    }
    this.inputs = (answer.arguments ?? []).map((each) => each.made_by).filter(Boolean);
    this.picked.replaceChildren(head, ...described(answer));
    this.draw();
  },
  list() {
    const by = new Map();
    for (const lane of this.data.lanes) for (const bar of lane.bars) {
      const found = by.get(bar[2]) ?? { name: bar[2], runs: 0, busy: 0, bad: 0 };
      found.runs += bar[4]; found.busy += bar[1]; found.bad += bar[3] ? bar[4] : 0;
      by.set(bar[2], found);
    }
    const rows = [...by.values()].sort((a, b) => b.busy - a.busy);
    renew(this.legend, !rows.length ? "" : table("what is shown, by function", [
      ["colour", (row) => swatch(row.name)], ["function", (row) => row.name], ["runs", (row) => count(row.runs), "right"],
      ["busy", (row) => seconds(row.busy), "right"], ["without success", (row) => count(row.bad), "right"],
    ], rows));
  },
};

function hatch(pen, x, y, width, height, ink) {
  pen.save();
  pen.beginPath(); pen.rect(x, y, width, height); pen.clip();
  pen.strokeStyle = ink;
  pen.globalAlpha = 0.6;
  pen.beginPath();
  for (let at = x - height; at < x + width; at += 8) { pen.moveTo(at, y + height); pen.lineTo(at + height, y); }
  pen.stroke();
  pen.restore();
}

function swatch(name) {
  const found = el("canvas", { width: 14, height: 14, "aria-hidden": "true" });
  found.style.setProperty("width", "14px");
  const pen = found.getContext("2d");
  pen.fillStyle = colour(name);
  pen.fillRect(0, 0, 14, 14);
  return found;
}
