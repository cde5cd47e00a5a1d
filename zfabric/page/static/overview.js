import { bytes, count, demand, el, percent, renew, seconds, svg, table } from "./dom.js";

const SHOWN = 8;

// A cell of a node that may not answer.
function answered(cell) {
  return (row) => (row.silent ? "–" : cell(row));
}

function card(name, number, more = "") {
  return el("div", { class: "card" }, el("div", { class: "name" }, name), el("div", { class: "number" }, number), el("div", { class: "more" }, more));
}

function used(overview, resource) {
  const total = overview.resources[resource] ?? 0;
  return [total - (overview.available[resource] ?? 0), total];
}

export const overview = {
  title: "Overview",
  show(place) {
    this.said = "";
    this.problems = el("div", { role: "alert" });
    this.rest = el("div", {}, el("p", { class: "note" }, "waiting for the first answer"));
    place.append(this.problems, this.rest);
  },
  update(now) {
    const rows = now.progress;
    const tasks = now.tasks;
    const [cpus, cpusTotal] = used(now, "CPU");
    const waiting = tasks.waiting;
    const problems = JSON.stringify(now.problems);
    if (problems !== this.said) { // A screen reader says what is wrong when that changes, not each second.
      this.said = problems;
      const heading = now.problems.length ? [el("h2", {}, "What is wrong")] : [];
      this.problems.replaceChildren(...heading, ...now.problems.map((each) => el("p", { class: "problem" }, el("strong", {}, each.what), each.advice)));
    }
    const cards = [
      card("tasks done per second", count(now.rate), `${count(now.ended)} have ended, of the jobs that run`),
      card("running", count(tasks.running), `${count(tasks.blocked)} wait inside get()`),
      card("waiting", count(waiting), tasks.infeasible ? `${count(tasks.infeasible)} infeasible` : ""),
      card("failed", count(rows.reduce((sum, row) => sum + row.failed, 0)), `${count(tasks.failed)} of their errors are held`),
      card("CPUs in use", `${+cpus.toFixed(2)} of ${cpusTotal}`, `this machine: ${percent(now.machine.cpu)}`),
      card("object store", bytes(now.store.used ?? 0), `of ${bytes(now.store.capacity ?? 0)}; ${bytes(now.store.spilled ?? 0)} on disk`),
      card("memory of this machine", bytes(now.machine.memory), `of ${bytes(now.machine.memory_total)}`),
      card("actors", count(now.actors.alive ?? 0), Object.entries(now.actors).filter(([name]) => name !== "alive").map(([name, many]) => `${many} ${name}`).join(", ")),
    ];
    const nodes = table(`${now.nodes.length} ${now.nodes.length === 1 ? "node" : "nodes"}`, [
      ["node", (row) => row.name ?? row.node.slice(0, 8)],
      ["role", (row) => (row.head ? "head" : "–")],
      ["address", (row) => row.address || "this machine only"],
      ["state", (row) => (row.silent ? el("span", { class: "state-failed" }, "does not answer") : "answers")],
      ["CPUs in use", answered((row) => { const all = row.resources.CPU ?? 0; return `${+(all - (row.available.CPU ?? 0)).toFixed(2)} of ${all}`; }), "right"],
      ["running", answered((row) => count(row.running)), "right"],
      ["queued", answered((row) => count(row.queued)), "right"],
      ["memory of workers", answered((row) => bytes(row.memory)), "right"],
      ["object store", answered((row) => `${bytes(row.store_used)} of ${bytes(row.store_capacity)}`), "right"],
      ["from other nodes", answered((row) => (row.copying === null ? "–" : `${bytes(row.copying)}/s`)), "right"],
      ["resources", (row) => demand(row.resources)],
      ["labels", (row) => Object.entries(row.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(", ") || "–"],
    ], now.nodes);
    const jobs = table(`${now.jobs.length} ${now.jobs.length === 1 ? "job" : "jobs"}`, [
      ["job", (row) => row.number],
      ["pid", (row) => row.pid || "–", "right"],
      ["namespace", (row) => row.namespace || "–"],
      ["submitted", (row) => count(row.submitted), "right"],
      ["for", (row) => seconds(row.seconds), "right"],
      ["state", (row) => (row.ended ? "ending" : "running")],
    ], now.jobs);
    const pools = Object.entries(now.workers).map(([name, many]) => `${many} ${name}`).join(", ");
    const more = rows.length > SHOWN ? [el("p", { class: "note" }, `The first ${SHOWN} of ${count(rows.length)} functions; `, el("a", { href: "#progress" }, "all of them"))] : [];
    renew(this.rest,
      el("h2", {}, "Overview"),
      el("div", { class: "cards" }, cards),
      el("h2", {}, "Progress"), bars(rows.slice(0, SHOWN)), ...more,
      el("h2", {}, "Nodes"), nodes, el("h2", {}, "Jobs"), jobs,
      el("p", { class: "note" }, `workers: ${pools || "none"}`),
    );
  },
};

export function bars(rows) {
  if (!rows.length) return el("p", { class: "note" }, "No tasks have been submitted by the jobs that run.");
  return table("tasks by function", [
    ["function", (row) => row.name],
    ["job", (row) => parseInt(row.job, 16)],
    ["progress", (row) => bar(row)],
    ["waiting", (row) => count(row.waiting), "right"],
    ["for arguments", (row) => count(row.arguments), "right"],
    ["running", (row) => count(row.running), "right"],
    ["done", (row) => count(row.finished), "right"],
    ["failed", (row) => count(row.failed), "right"],
    ["per second", (row) => (row.rate === null ? "–" : row.rate < 10 ? row.rate.toFixed(1) : count(row.rate)), "right"],
    ["mean", (row) => seconds(row.mean_seconds), "right"],
    ["left", (row) => seconds(row.seconds_left), "right"],
  ], rows);
}

function bar(row) {
  const parts = ["finished", "running", "waiting", "failed"];
  const total = parts.reduce((sum, name) => sum + row[name], 0) || 1;
  const text = `${row.name}: ${parts.map((name) => `${row[name]} ${name}`).join(", ")}`;
  const found = svg("svg", { class: "bar", viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img", "aria-label": text });
  let x = 0;
  for (const name of parts) {
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
