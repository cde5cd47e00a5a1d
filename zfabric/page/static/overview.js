// The first screen: what is wrong, how the program does as lines over time, and what each worker does. Below are the same as tables.

import { Chart, roundUp } from "./charts.js";
import { ask, bytes, colour, count, detailsLink, el, jobName, percent, rate, renew, resources, seconds, svg, table } from "./dom.js";

const SHOWN = 8, FUNCTIONS = 6, AGAIN = 4, LEAST = 60;
const RANGES = [[1, 600, "10 minutes"], [10, 7200, "2 hours"]];

// Places of a point's numbers; the time is the first.
const [FUNCTION, FAILED, CALLS, RUNNING, QUEUED, WAITING, CPU, CPUS, MEMORY, STORE, SPILLED, COPIED] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

// A cell of a node that may not answer.
function answered(cell) {
  return (row) => (row.silent ? "–" : cell(row));
}

export const overview = {
  title: "Overview",
  show(place) {
    this.said = null;
    this.now = null;
    this.kept ??= {}; // Points by the seconds of one, so that they are there when somebody comes back.
    this.range ??= RANGES[0];
    this.cursor = null;
    this.problems = el("div", { role: "alert" });
    const onCursor = (time) => { this.cursor = time; for (const each of Object.values(this.charts)) each.point(time); this.tell(); };
    const chart = (title, height = 96) => new Chart(title, height, onCursor);
    this.charts = {
      tasks: chart("Tasks per second, by function", 150), work: chart("Running and queued", 150), cpu: chart("CPU", 150), memory: chart("Memory"),
      store: chart("Object store"), copied: chart("Between nodes"), calls: chart("Calls of actors per second"),
    };
    this.charts.tasks.element.classList.add("wide");
    for (const name of ["memory", "store", "copied", "calls"]) this.charts[name].element.classList.add("small");
    this.choice = RANGES.map((range) => el("button", { "aria-pressed": String(range === this.range), onclick: () => this.choose(range) }, range[2]));
    this.moment = el("span", { class: "note", "aria-live": "polite" });
    this.grid = el("div", { class: "charts" }, Object.values(this.charts).map((each) => each.element));
    this.numbers = el("details", { class: "numbers" }, el("summary", {}, "the lines as a table"), this.rows = el("div"));
    this.numbers.addEventListener("toggle", () => this.list());
    this.workers = el("div", { class: "workers" });
    this.rest = el("div", {}, el("p", { class: "note" }, "waiting for the first answer"));
    place.append(el("h2", { class: "hidden" }, "Overview"), this.problems,
      el("div", { class: "tools ranges" }, this.choice, this.moment), this.grid, this.numbers,
      el("h2", {}, "Workers"), this.workers, this.rest);
    this.resized = () => this.draw();
    window.addEventListener("resize", this.resized);
    return Promise.all([this.read(), this.readWorkers()]);
  },
  hide() {
    window.removeEventListener("resize", this.resized);
    this.now = null;
  },
  choose(range) {
    this.range = range;
    this.cursor = null;
    for (const each of Object.values(this.charts)) each.point(null);
    this.choice.forEach((button, number) => button.setAttribute("aria-pressed", RANGES[number] === range));
    return this.read();
  },
  // Asks for points that are new, and once more for the last ones, which may have been incomplete.
  async read() {
    const [step, span] = this.range;
    const kept = (this.kept[step] ??= { points: new Map(), now: 0, last: 0 });
    if (kept.busy) return;
    kept.busy = true;
    try {
      const after = kept.last ? Math.max(0, kept.last - AGAIN * step) : 0;
      const answer = await ask("series", { step, after: Math.floor(after) });
      if (answer.last < kept.last) kept.points.clear(); // Another machine, or another start of it.
      for (const point of answer.points) kept.points.set(point[0], point);
      for (const time of kept.points.keys()) if (time <= answer.last - span) kept.points.delete(time);
      Object.assign(kept, { now: answer.now, last: answer.last, at: Date.now() / 1000 });
    } finally {
      kept.busy = false;
    }
    this.draw();
  },
  async readWorkers() {
    if (this.asking) return;
    this.asking = true;
    // Processes of actors are asked on their own, since one that does not answer takes half a second.
    this.activity ??= ask("activity").then((rows) => { this.calls = new Map(rows.map((row) => [`${row.pid} ${row.node}`, row])); }, () => {}).finally(() => { this.activity = null; });
    try {
      this.drawWorkers(await ask("busy"));
    } finally {
      this.asking = false;
    }
  },
  update(now, live = true) {
    this.now = now;
    this.live = live;
    const problems = JSON.stringify(now.problems);
    if (problems !== this.said) { // A screen reader says what is wrong when that changes, not each second.
      this.said = problems;
      this.problems.replaceChildren(...(now.problems.length
        ? [el("h2", {}, "What is wrong"), ...now.problems.map((each) => el("p", { class: "problem" }, el("strong", {}, each.what), each.advice))]
        : [el("p", { class: "well" }, "Nothing is wrong.")]));
    }
    this.tables(now);
    if (!live) { this.draw(); return undefined; }
    this.turn = !this.turn;
    return Promise.all([this.read(), ...(this.turn ? [this.readWorkers()] : [])]);
  },
  // -- the lines --
  draw() {
    const [step, span] = this.range, kept = this.kept[step];
    if (!kept?.last || !this.now) return;
    const points = [...kept.points.values()].sort((a, b) => a[0] - b[0]);
    const known = points.filter((point) => point[1] !== null);
    const to = kept.last, now = this.now;
    const from = Math.max(to - span, Math.min(known[0]?.[0] ?? to, to - LEAST * step)); // What is known fills the picture.
    const top = (of, least = 0, binary = false) => roundUp(Math.max(least, ...known.map(of)), binary);
    this.charts.copied.element.hidden = now.nodes.length < 2;
    this.charts.calls.element.hidden = now.nodes.length > 1 && !known.some((point) => point[CALLS] > 0);
    this.grid.classList.toggle("three", this.charts.copied.element.hidden || this.charts.calls.element.hidden);
    const draw = (name, more) => this.charts[name].draw({ from, to, step, points, last: this.live ? "now" : "the end", ...more });
    const totals = new Map();
    for (const [, functions] of known) for (const [name, many] of Object.entries(functions)) totals.set(name, (totals.get(name) ?? 0) + many);
    const named = [...totals].filter(([name]) => name).sort((a, b) => b[1] - a[1]).slice(0, FUNCTIONS).map(([name]) => name);
    const other = (point) => Object.entries(point[FUNCTION]).reduce((sum, [name, many]) => sum + (named.includes(name) ? 0 : many), 0);
    this.layers = named.map((name) => ({ name, colour: colour(name), edge: false, of: (point) => point[FUNCTION][name] ?? 0 }));
    if (known.some((point) => other(point) > 0)) this.layers.push({ name: "others", className: "quiet", edge: false, of: other });
    this.known = known;
    const all = (point) => Object.values(point[FUNCTION]).reduce((sum, many) => sum + many, 0);
    const failed = known.some((point) => point[FAILED] > 0) ? [{ className: "bad", of: (point) => point[FAILED] }] : [];
    draw("tasks", { stack: this.layers, lines: failed, most: top(all, 1), label: (value) => `${rate(value)} per s` });
    this.waits = known.some((point) => point[WAITING] > 0);
    draw("work", { stack: [{ className: "busy", edge: false, of: (point) => point[RUNNING] }, { className: "quiet", edge: false, of: (point) => point[QUEUED] }, { className: "warn", edge: false, of: (point) => point[WAITING] }],
      most: top((point) => point[RUNNING] + point[QUEUED] + point[WAITING], 4), label: count });
    const cpus = now.resources.CPU || 1;
    draw("cpu", { lines: [{ className: "busy", area: true, of: (point) => point[CPU] }, { className: "claimed", of: (point) => point[CPUS] / cpus }], most: 1, label: percent });
    draw("memory", { lines: [{ className: "good", area: true, of: (point) => point[MEMORY] }], most: 1, label: percent });
    draw("store", { lines: [{ className: "good", area: true, of: (point) => point[STORE] }, ...(known.some((point) => point[SPILLED] > 0) ? [{ className: "warn", of: (point) => point[SPILLED] }] : [])],
      most: Math.max(now.store.capacity || 1, ...known.map((point) => point[SPILLED])), label: bytes });
    draw("copied", { lines: [{ className: "busy", area: true, of: (point) => point[COPIED] }], most: top((point) => point[COPIED], 1024, true), label: (value) => `${bytes(value)}/s` });
    draw("calls", { lines: [{ className: "busy", area: true, of: (point) => point[CALLS] }], most: top((point) => point[CALLS], 1), label: (value) => `${rate(value)} per s` });
    this.tell();
    this.list();
  },
  // The numbers beside the lines: at the cursor, else the newest that are complete.
  tell() {
    const kept = this.kept[this.range[0]], now = this.now;
    if (!this.known || !now || !kept?.last) return;
    const at = this.cursor === null ? null : (kept.points.get(this.cursor) ?? [this.cursor, null]);
    this.moment.textContent = at ? `${clock(kept.at - (kept.now - at[0]))}${at[1] === null ? ": nothing is known" : ""}` : "";
    const point = at ?? this.known.at(-1);
    if (!point || point[1] === null) return;
    const charts = this.charts, live = !at;
    const sum = Object.values(point[FUNCTION]).reduce((total, many) => total + many, 0);
    const keys = this.layers.map((layer) => ({ ...layer, value: rate(layer.of(point)) }));
    if (this.known.some((each) => each[FAILED] > 0)) keys.push({ name: "failed", className: "bad", value: rate(point[FAILED]) });
    const failed = now.progress.reduce((total, row) => total + row.failed, 0);
    charts.tasks.say(rate(sum), live ? `${count(now.ended)} ended${failed ? `, ${count(failed)} of them failed` : ""}` : "", keys,
      `${rate(sum)} in all; ${keys.map((key) => `${key.name} ${key.value}`).join(", ")}`);
    const [running, queued, waiting] = live ? [now.tasks.running, now.tasks.queued, now.tasks.waiting] : [point[RUNNING], point[QUEUED], point[WAITING]];
    charts.work.say(count(running), live && now.tasks.blocked ? `running; ${count(now.tasks.blocked)} wait in get` : "running", [
      { name: "running", className: "busy", value: count(running) }, { name: "queued", className: "quiet", value: count(queued) },
      ...(this.waits ? [{ name: "wait for arguments", className: "warn", value: count(waiting) }] : []),
    ], `${count(running)} running, ${count(queued)} queued, ${count(waiting)} wait for arguments`);
    const cpus = now.resources.CPU ?? 0;
    charts.cpu.say(percent(point[CPU]), now.nodes.length > 1 ? "of the machines" : "of the machine", [
      { name: "busy", className: "busy", value: percent(point[CPU]) }, { name: "held by tasks", className: "claimed", value: `${+point[CPUS].toFixed(2)} of ${cpus}` },
    ]);
    const one = now.nodes.length === 1 && live;
    charts.memory.say(percent(point[MEMORY]), one ? `${bytes(now.machine.memory)} of ${bytes(now.machine.memory_total)}` : "in use", []);
    charts.store.say(bytes(point[STORE]), `of ${bytes(now.store.capacity ?? 0)}`, [
      ...(point[SPILLED] > 0 || now.store.spilled ? [{ name: "in memory", className: "good", value: bytes(point[STORE]) }, { name: "on disk", className: "warn", value: bytes(live ? now.store.spilled ?? 0 : point[SPILLED]) }] : []),
    ]);
    charts.copied.say(`${bytes(point[COPIED])}/s`, "", []);
    const actors = Object.entries(now.actors).filter(([, many]) => many).map(([name, many]) => `${count(many)} ${name}`).join(", ");
    charts.calls.say(rate(point[CALLS]), live && actors ? `actors: ${actors}` : "", []);
  },
  list() {
    if (!this.numbers.open || !this.known) return;
    const kept = this.kept[this.range[0]], every = this.range[1] / 20;
    const chosen = this.known.filter((point) => point[0] % every === 0 || point === this.known.at(-1)).reverse();
    const number = (of, show) => [(point) => show(of(point)), "right"];
    renew(this.rows, table(`the newest moment, and one of every ${seconds(every)}`, [
      ["time", (point) => clock(kept.at - (kept.now - point[0]))],
      ["tasks per second", ...number((point) => Object.values(point[FUNCTION]).reduce((sum, many) => sum + many, 0), rate)],
      ["most of", (point) => Object.entries(point[FUNCTION]).sort((a, b) => b[1] - a[1])[0]?.[0] || "–"],
      ["failed", ...number((point) => point[FAILED], rate)], ["calls", ...number((point) => point[CALLS], rate)],
      ["running", ...number((point) => point[RUNNING], count)], ["queued", ...number((point) => point[QUEUED], count)], ["for arguments", ...number((point) => point[WAITING], count)],
      ["CPU", ...number((point) => point[CPU], percent)], ["memory", ...number((point) => point[MEMORY], percent)],
      ["store", ...number((point) => point[STORE], bytes)], ["on disk", ...number((point) => point[SPILLED], bytes)],
      ["between nodes", ...number((point) => point[COPIED], (value) => `${bytes(value)}/s`)],
    ], chosen));
  },
  // -- workers --
  drawWorkers({ workers, total, seconds: span }) {
    if (!workers.length) {
      renew(this.workers, el("p", { class: "note" }, "No worker has started yet: one does when it is needed."));
      return;
    }
    const several = new Set(workers.map((row) => row.node)).size > 1;
    for (const row of workers) {
      row.calls = this.calls?.get(`${row.pid} ${row.node}`);
      for (const [name, , time] of row.calls?.runs ?? []) { // A call that runs is in the bar, too, though it has not ended.
        const more = Math.min(time, span - row.parts.reduce((sum, [, spentTime]) => sum + spentTime, 0));
        if (more > 0.01 * span) { row.parts.push([name, more]); row.busy = Math.min(1, row.busy + more / span); }
      }
    }
    renew(this.workers,
      el("p", { class: "legend" }, `How each has spent the last ${span === 60 ? "minute" : seconds(span)}, by function, and what it does now.`),
      el("ul", { class: "lanes" }, workers.map((row) => el("li", {},
        el("a", { class: "who", href: `#stacks/${row.pid}`, "aria-label": `stack of process ${row.pid}` }, several ? `${row.pid} ${row.node}` : row.pid),
        spent(row, span), el("span", { class: "share" }, percent(row.busy)), el("span", { class: "does" }, does(row))))),
      total > workers.length ? el("p", { class: "note" }, `The ${workers.length} busiest of ${count(total)}; `, el("a", { href: "#workers" }, "all workers")) : "");
  },
  // -- tables --
  tables(now) {
    const rows = now.progress;
    const useful = (columns, rows) => columns.filter(([, cell]) => !rows.length || rows.some((row) => cell(row) !== "–"));
    const nodes = table(`${now.nodes.length} ${now.nodes.length === 1 ? "node" : "nodes"}`, useful([
      ["node", (row) => row.name ?? row.node.slice(0, 8)],
      ["role", (row) => (row.head ? "head" : "–")],
      ["address", (row) => row.address?.replace("tcp://", "") || "this machine only"],
      ["state", (row) => (row.silent ? el("span", { class: "state-failed" }, "does not answer") : "answers")],
      ["CPUs in use", answered((row) => { const all = row.resources.CPU ?? 0; return `${+(all - (row.available.CPU ?? 0)).toFixed(2)} of ${all}`; }), "right"],
      ["memory reserved", answered((row) => { const all = row.resources.memory ?? 0, used = all - (row.available.memory ?? 0); return used ? `${bytes(used)} of ${bytes(all)}` : "–"; }), "right"],
      ["running", answered((row) => count(row.running)), "right"],
      ["pending", answered((row) => count(row.pending)), "right"],
      ["memory of workers", answered((row) => bytes(row.memory)), "right"],
      ["object store", answered((row) => `${bytes(row.store_used)} of ${bytes(row.store_capacity)}`), "right"],
      ["from other nodes", answered((row) => (row.copying === null ? "–" : `${bytes(row.copying)}/s`)), "right"],
      ["resources", (row) => resources(row.resources)],
      ["labels", (row) => Object.entries(row.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(", ") || "–"],
    ], now.nodes), now.nodes);
    const jobs = table(`${now.jobs.length} ${now.jobs.length === 1 ? "job" : "jobs"}`, useful([
      ["job", (row) => jobName(row.number)],
      ["command", (row) => row.command || "–"],
      ["pid", (row) => row.pid || "–", "right"],
      ["namespace", (row) => row.namespace || "–"],
      ["submitted", (row) => count(row.submitted), "right"],
      ["for", (row) => seconds(row.seconds), "right"],
      ["state", (row) => (row.ended ? "ending" : "running")],
    ], now.jobs), now.jobs);
    const more = rows.length > SHOWN ? [el("p", { class: "note" }, `The first ${SHOWN} of ${count(rows.length)} functions; `, el("a", { href: "#progress" }, "all of them"))] : [];
    renew(this.rest, el("h2", {}, "Progress"), bars(rows.slice(0, SHOWN)), ...more, el("h2", {}, "Nodes"), nodes, el("h2", {}, "Jobs"), jobs);
  },
};

function clock(time) {
  return new Date(1000 * time).toLocaleTimeString("en-GB");
}

// A bar of what a worker did, by function.
function spent(row, span) {
  const text = row.parts.map(([name, time]) => `${name || "others"} ${percent(time / span)}`).join(", ") || "nothing";
  const found = svg("svg", { class: "bar", viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img", "aria-label": `process ${row.pid}: ${text}` }, svg("title", {}, text));
  let x = 0;
  for (const [name, time] of row.parts) {
    const width = (1000 * time) / span;
    found.append(svg("rect", { x, y: 0, width, height: 16, ...(name ? { fill: colour(name) } : { class: "fill-waiting" }) }));
    x += width;
  }
  return found;
}

function does(row) {
  const queued = row.queued ? `, ${count(row.queued)} queued there` : "";
  if (row.actor && !row.task) {
    const run = row.calls?.runs[0], waiting = row.calls?.waiting ? `, ${count(row.calls.waiting)} ${row.calls.waiting === 1 ? "call waits" : "calls wait"}` : "";
    return [detailsLink(row.actor_id, row.actor), run ? [` runs ${run[0]}`, ` for ${seconds(run[2])}`] : ": no call runs", waiting];
  }
  if (row.task) return [row.actor ? `${row.actor}: ` : "", row.task_id ? detailsLink(row.task_id, row.task) : row.task, ` for ${seconds(row.seconds)}`, queued];
  return row.state === "blocked" ? ["waits in get", queued] : [row.seconds < 1 ? row.state : `${row.state} for ${seconds(row.seconds)}`, queued];
}

export function bars(rows) {
  if (!rows.length) return el("p", { class: "note" }, "No tasks have been submitted by the jobs that run.");
  return table("tasks by function", [
    ["function", (row) => el("a", { href: `#tasks/${encodeURIComponent(row.name)}` }, row.name)],
    ["job", (row) => jobName(parseInt(row.job, 16))],
    ["progress", (row) => bar(row), "broad"],
    ["queued", (row) => count(row.waiting - row.arguments), "right"],
    ["for arguments", (row) => count(row.arguments), "right"],
    ["running", (row) => count(row.running), "right"],
    ["done", (row) => count(row.finished), "right"],
    ["failed", (row) => count(row.failed), "right"],
    ["per second", (row) => ((row.rate ?? null) === null ? "–" : rate(row.rate)), "right"],
    ["mean", (row) => seconds(row.mean_seconds), "right"],
    ["left", (row) => seconds(row.seconds_left), "right"],
  ], rows);
}

function bar(row) {
  const parts = [["finished", "done"], ["running", "running"], ["waiting", "pending"], ["failed", "failed"]];
  const total = parts.reduce((sum, [name]) => sum + row[name], 0) || 1;
  const text = `${row.name}: ${parts.map(([name, word]) => `${row[name]} ${word}`).join(", ")}`;
  const found = svg("svg", { class: "bar", viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img", "aria-label": text });
  let x = 0;
  for (const [name] of parts) {
    const width = (1000 * row[name]) / total;
    if (width > 0) found.append(svg("rect", { x, y: 0, width, height: 16, class: `fill-${name}` }));
    x += width;
  }
  return found;
}

export const progress = {
  title: "Progress",
  show(place) {
    this.place = place;
  },
  update({ progress: rows }) {
    const done = rows.reduce((sum, row) => sum + row.finished + row.failed, 0);
    const all = rows.reduce((sum, row) => sum + row.waiting + row.running, done);
    renew(this.place,
      el("h2", {}, "Progress"),
      el("p", { class: "legend" }, `${count(done)} of ${count(all)} tasks have ended. The time left is the work that is left, by the mean of past runs, over as many as run now.`),
      bars(rows),
    );
  },
};
