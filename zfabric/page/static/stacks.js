import { ask, colour, count, el, percent, seconds, table } from "./dom.js";

const SLICES = 10, ROW = 20, AT_ONCE = 8, ROWS = 40;

// What every thread does now, and where processes spend ten seconds: a flame graph, which grows as each second comes.
export const stacks = {
  title: "Stacks",
  async show(place, pid) {
    this.round = (this.round ?? 0) + 1;
    const again = el("button", { onclick: () => { place.replaceChildren(); this.show(place, pid); } }, "look again");
    const sample = el("button", { disabled: true, onclick: () => this.sample(found, flame, sample) }, "flame graph of ten seconds");
    const flame = el("div");
    place.append(el("h2", {}, pid ? `Stacks of ${pid}` : "Stacks"), el("div", { class: "tools" }, again, sample,
      pid ? el("a", { href: "#stacks" }, "all processes") : "",
      el("span", { class: "note" }, "What every thread does now; frames of the fabric are left out.")), flame);
    const found = await ask("stacks", pid ? { pid } : {});
    sample.disabled = found.length === 0;
    const several = new Set(found.map((each) => each.node)).size > 1;
    for (const process of found) {
      place.append(el("h2", {}, el("a", { href: `#stacks/${process.pid}` }, `${process.kind} ${process.pid}`),
        `${several ? ` on ${process.node}` : ""}${process.task ? `: ${process.task}` : ""}${process.state ? ` (${process.state} for ${seconds(process.seconds)})` : ""}`));
      if (!process.answers && !process.threads.length) place.append(el("p", { class: "note" }, "It does not answer: it has ended, is stopped, or runs code that lets no Python code run."));
      for (const thread of process.threads) {
        const runs = thread.runs.map((run) => `${run.name} for ${seconds(run.seconds)}`).join(", ");
        const lines = thread.frames.map((frame) => `  File "${frame.file}", line ${frame.line}, in ${frame.function}\n${frame.source ? `    ${frame.source}\n` : ""}`).join("");
        place.append(el("pre", {}, `${thread.name}${runs ? ` runs ${runs}` : ""}\n${lines}`));
      }
      if (process.answers && !process.threads.length) place.append(el("p", { class: "note" }, process.state === "busy" ? "It is between two tasks." : "It waits for work."));
    }
  },
  hide() { this.round += 1; },
  async sample(processes, place, button) {
    const round = this.round;
    const rank = (each) => ["busy", "blocked", "actor", "", "idle"].indexOf(each.state) + 1 || 9;
    const chosen = [...processes].sort((a, b) => rank(a) - rank(b)).slice(0, AT_ONCE);
    const root = { name: "all", self: 0, total: 0, children: new Map() };
    const picture = new Flame(root);
    const about = el("p", { class: "note", role: "status" }, "sampling …");
    const list = el("div");
    place.replaceChildren(el("h2", {}, "Flame graph"), about, picture.place, list);
    button.disabled = true;
    let idle = 0, silent = new Set();
    for (let slice = 1; slice <= SLICES && round === this.round; slice += 1) {
      const answers = await Promise.all(chosen.map((each) => ask("samples", { pid: each.pid, node: each.node }).catch(() => { silent.add(each.pid); return null; })));
      for (const answer of answers.filter(Boolean)) {
        idle += answer.idle;
        for (const row of answer.stacks) add(root, chosen.length > 1 ? [[`pid ${answer.pid}`, 0, `pid ${answer.pid}`], ...row.frames] : row.frames, row.samples);
      }
      const share = root.total + idle ? root.total / (root.total + idle) : 0;
      about.textContent = `${count(root.total)} samples in ${slice} s of ${chosen.length === 1 ? `process ${chosen[0].pid}` : `${chosen.length} processes`}`
        + `${processes.length > AT_ONCE ? ` (of ${processes.length}, busy ones first)` : ""}; ${percent(1 - share)} of all were threads without user code. Time that passes is counted, also that of waiting.`
        + (silent.size ? ` No answer from ${[...silent].join(", ")}.` : "");
      picture.draw();
      list.replaceChildren(functions(root));
    }
    button.disabled = false;
  },
};

function add(root, frames, samples) {
  let node = root;
  root.total += samples;
  for (const [file, line, name] of frames) {
    const key = `${name}\u0000${file}:${line}`;
    if (!node.children.has(key)) node.children.set(key, { name, place: line ? `${file}:${line}` : "", self: 0, total: 0, children: new Map() });
    node = node.children.get(key);
    node.total += samples;
  }
  node.self += samples;
}

// The same as a table: by function, what it spent itself and with all that it called.
function functions(root) {
  const found = new Map();
  const walk = (node, above) => {
    const key = `${node.name}\u0000${node.place}`;
    const row = found.get(key) ?? { name: node.name, place: node.place, self: 0, total: 0 };
    row.self += node.self;
    if (!above.has(key)) row.total += node.total; // A function that calls itself is counted once.
    found.set(key, row);
    const inside = new Set(above).add(key);
    for (const child of node.children.values()) walk(child, inside);
  };
  for (const child of root.children.values()) walk(child, new Set());
  const rows = [...found.values()].filter((row) => row.place).sort((a, b) => b.self - a.self || b.total - a.total);
  return table(rows.length > ROWS ? `the first ${ROWS} of ${rows.length} functions` : "where the time goes", [
    ["itself", (row) => percent(row.self / root.total), "right"], ["with what it calls", (row) => percent(row.total / root.total), "right"],
    ["function", (row) => row.name], ["defined at", (row) => row.place],
  ], rows.slice(0, ROWS));
}

// A canvas: outermost functions above, width by samples. A click, or Enter on the one chosen with the arrows, shows only what is below it.
class Flame {
  constructor(root) {
    this.root = this.top = root;
    this.path = [root];
    this.boxes = [];
    this.canvas = el("canvas", { role: "img", tabindex: "0", "aria-label": "flame graph; the table below has the same by function" });
    this.hint = el("p", { class: "legend", "aria-live": "polite" }, "A click on a function shows only what is below it; a click on the top row, or Escape, goes back.");
    this.place = el("div", {}, this.canvas, this.hint);
    this.canvas.addEventListener("click", (event) => this.pick(event, true));
    this.canvas.addEventListener("mousemove", (event) => this.pick(event, false));
    this.canvas.addEventListener("keydown", (event) => {
      const chosen = this.boxes[this.at ?? 0];
      const near = (step) => { this.at = Math.min(this.boxes.length - 1, Math.max(0, (this.at ?? 0) + step)); this.say(this.boxes[this.at].node); this.draw(); };
      const action = { ArrowRight: () => near(1), ArrowLeft: () => near(-1), ArrowDown: () => near(1), ArrowUp: () => near(-1), Enter: () => chosen && this.enter(chosen), Escape: () => this.leave() }[event.key];
      if (action) { event.preventDefault(); action(); }
    });
  }
  leave() {
    if (this.path.length > 1) this.path.pop();
    this.top = this.path.at(-1);
    this.at = undefined;
    this.draw();
  }
  enter(box) {
    if (box.node === this.top) { this.leave(); return; }
    this.path.push(box.node);
    this.top = box.node;
    this.at = undefined;
    this.draw();
  }
  say(node) {
    this.hint.textContent = `${node.name} ${node.place ? `(${node.place})` : ""}: ${percent(node.total / this.root.total)} of the samples, ${percent(node.self / this.root.total)} in itself`;
  }
  pick(event, enters) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const hit = this.boxes.find((each) => x >= each.x && x < each.x + each.width && y >= each.y && y < each.y + ROW);
    if (!hit) return;
    this.say(hit.node);
    if (enters) this.enter(hit);
  }
  draw() {
    const width = this.canvas.clientWidth || 800, scale = window.devicePixelRatio || 1;
    this.boxes = [];
    const lay = (node, x, span, depth) => {
      if (span < 0.5) return;
      this.boxes.push({ node, x, y: depth * ROW, width: span });
      let from = x;
      for (const child of [...node.children.values()].sort((a, b) => b.total - a.total)) {
        const part = (span * child.total) / node.total;
        lay(child, from, part, depth + 1);
        from += part;
      }
    };
    lay(this.top, 0, width, 0);
    const height = Math.max(...this.boxes.map((box) => box.y)) + ROW + 2;
    this.canvas.style.setProperty("height", `${height}px`);
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    const pen = this.canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    pen.scale(scale, scale);
    pen.font = "12px system-ui, sans-serif";
    this.boxes.forEach(({ node, x, y, width: wide }, index) => {
      const root = node === this.root;
      pen.fillStyle = root ? style.getPropertyValue("--line") : colour(node.name + node.place);
      pen.fillRect(x, y, Math.max(0.5, wide - 1), ROW - 1);
      if (index === this.at) { pen.strokeStyle = style.getPropertyValue("--text"); pen.lineWidth = 2; pen.strokeRect(x + 1, y + 1, Math.max(1, wide - 3), ROW - 3); }
      if (wide > 34) {
        pen.save();
        pen.beginPath(); pen.rect(x, y, wide - 4, ROW); pen.clip();
        pen.fillStyle = root ? style.getPropertyValue("--text") : "#fff";
        pen.fillText(node.name, x + 4, y + 14);
        pen.restore();
      }
    });
  }
}
