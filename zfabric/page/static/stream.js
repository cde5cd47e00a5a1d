import { ask, colour, count, detailsLink, el, seconds, short, table } from "./dom.js";

const LANE = 22, LEFT = 130, TOP = 26;

// The task stream: a lane for each worker, time from left to right, newest at the right edge. Wheel and keys zoom and move.
export const stream = {
  title: "Task stream",
  show(place) {
    this.span = 60;
    this.end = 0;
    this.data = null;
    this.canvas = el("canvas", { role: "img", tabindex: "0", "aria-label": "task stream; the table below has the same by function" });
    this.about = el("p", { class: "note", "aria-live": "polite" });
    this.legend = el("div");
    this.frozen = false;
    const freeze = el("button", { "aria-pressed": "false", onclick: (event) => { this.frozen = !this.frozen; event.target.setAttribute("aria-pressed", this.frozen); event.target.textContent = this.frozen ? "go on" : "hold"; } }, "hold");
    const zoom = (factor) => () => { this.zoom(factor, 0.5); };
    place.append(el("h2", {}, "Task stream"), el("div", { class: "tools" },
      el("button", { onclick: zoom(0.5) }, "zoom in"), el("button", { onclick: zoom(2) }, "zoom out"),
      el("button", { onclick: () => { this.span = 60; this.end = 0; this.draw(); } }, "last minute"), freeze,
      el("span", { class: "note" }, "a bar is an attempt; a click shows it; + and − zoom, arrows move")), this.canvas, this.about, this.legend);
    this.canvas.addEventListener("wheel", (event) => { if (!event.ctrlKey && !event.shiftKey) return; event.preventDefault(); this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.share(event)); }, { passive: false });
    this.canvas.addEventListener("click", (event) => this.pick(event));
    this.canvas.addEventListener("keydown", (event) => {
      const action = { "+": () => this.zoom(0.5, 0.5), "-": () => this.zoom(2, 0.5), ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2) }[event.key];
      if (action) { event.preventDefault(); action(); }
    });
    this.resized = () => this.draw();
    window.addEventListener("resize", this.resized);
    this.timer = setInterval(() => { if (!this.frozen) this.refresh(); }, 1000);
    return this.refresh();
  },
  hide() {
    clearInterval(this.timer);
    window.removeEventListener("resize", this.resized);
  },
  async refresh() {
    this.data = await ask("stream");
    this.draw();
    this.list();
  },
  share(event) {
    const box = this.canvas.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left - LEFT) / (box.width - LEFT)));
  },
  zoom(factor, around) {
    const middle = this.end - this.span * (1 - around);
    this.span = Math.min(60, Math.max(0.001, this.span * factor));
    this.end = Math.min(0, middle + this.span * (1 - around));
    this.draw();
  },
  move(share) {
    this.end = Math.min(0, Math.max(this.span - 60, this.end + share * this.span));
    this.draw();
  },
  draw() {
    if (!this.data) return;
    const lanes = this.data.lanes;
    const scale = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth || 800, height = TOP + Math.max(1, lanes.length) * LANE + 6;
    this.canvas.style.setProperty("height", `${height}px`);
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    const pen = this.canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const quiet = style.getPropertyValue("--quiet"), line = style.getPropertyValue("--line"), bad = style.getPropertyValue("--bad"), text = style.getPropertyValue("--text");
    pen.scale(scale, scale);
    pen.font = "12px system-ui, sans-serif";
    const x = (time) => LEFT + ((time - (this.end - this.span)) / this.span) * (width - LEFT);
    for (let tick = 0; tick <= 6; tick += 1) {
      const time = this.end - this.span + (tick * this.span) / 6;
      pen.fillStyle = line;
      pen.fillRect(x(time), TOP - 6, 1, height);
      pen.fillStyle = quiet;
      pen.textAlign = tick === 6 ? "right" : "left";
      pen.fillText(time > -1e-9 ? "now" : `−${seconds(-time)}`, Math.min(x(time) + 2, width - 2), 14);
    }
    pen.textAlign = "left";
    this.drawn = [];
    lanes.forEach((lane, row) => {
      const y = TOP + row * LANE;
      pen.fillStyle = text;
      pen.fillText(`${lane.node.length > 7 ? lane.node.slice(0, 6) : lane.node} pid ${lane.pid}`, 4, y + 14);
      for (const bar of lane.bars) {
        const from = Math.max(LEFT, x(bar[0])), to = Math.min(width, x(bar[0] + bar[1]));
        if (to < LEFT || from > width) continue;
        pen.fillStyle = bar[3] ? bad : colour(bar[2]);
        pen.globalAlpha = bar[4] > 1 ? 0.75 : 1;
        pen.fillRect(from, y + 2, Math.max(1, to - from), LANE - 5);
        pen.globalAlpha = 1;
        if (to - from > 60) { pen.fillStyle = "#fff"; pen.fillText((bar[4] > 1 ? `${bar[4]} × ` : "") + bar[2].slice(0, Math.floor((to - from) / 7)), from + 4, y + 15); }
        this.drawn.push([from, Math.max(to, from + 1), y, lane, bar]);
      }
    });
    if (!lanes.length) { pen.fillStyle = quiet; pen.fillText("Nothing has run in the last minute.", LEFT + 10, TOP + 15); }
    this.about.textContent = this.data.merged
      ? `${count(this.data.attempts)} attempts and calls; neighbours were merged, so ${count(this.data.merged)} of them have no bar of their own (“3 × f”). Zooming does not split them; “zfabric timeline” has every one.`
      : `${count(this.data.attempts)} attempts and calls of the last minute, each with its own bar.`;
  },
  pick(event) {
    const box = this.canvas.getBoundingClientRect();
    const px = event.clientX - box.left, py = event.clientY - box.top;
    const hit = this.drawn?.findLast(([from, to, y]) => px >= from - 1 && px <= to + 1 && py >= y && py <= y + LANE);
    if (!hit) return;
    const [, , , lane, bar] = hit;
    this.about.replaceChildren(
      `${bar[4] > 1 ? `${bar[4]} runs of ` : ""}${bar[2]}${bar[3] ? ` (${bar[3]})` : ""}, ${seconds(bar[1])} on pid ${lane.pid}, began ${seconds(-bar[0])} ago: `,
      detailsLink(bar[5], short(bar[5])));
    this.frozen = true;
    document.querySelector("[aria-pressed]").textContent = "go on";
  },
  list() {
    const by = new Map();
    for (const lane of this.data.lanes) for (const bar of lane.bars) {
      const found = by.get(bar[2]) ?? { name: bar[2], runs: 0, busy: 0, bad: 0 };
      found.runs += bar[4]; found.busy += bar[1]; found.bad += bar[3] ? bar[4] : 0;
      by.set(bar[2], found);
    }
    const rows = [...by.values()].sort((a, b) => b.busy - a.busy);
    this.legend.replaceChildren(table("the last minute by function", [
      ["", (row) => swatch(row.name)], ["function", (row) => row.name], ["runs", (row) => count(row.runs), "right"],
      ["busy", (row) => seconds(row.busy), "right"], ["without success", (row) => count(row.bad), "right"],
    ], rows));
  },
};

function swatch(name) {
  const found = el("canvas", { width: 14, height: 14, "aria-hidden": "true" });
  found.style.setProperty("width", "14px");
  const pen = found.getContext("2d");
  pen.fillStyle = colour(name);
  pen.fillRect(0, 0, 14, 14);
  return found;
}
