import { ask, bytes, count, demand, detailsLink, el, rate, renew, seconds, short, state, table } from "./dom.js";

const PAGE = 200;

// A list that is asked for anew every two seconds, and shows more rows on request. What is cut is said.
function list({ title, path, columns, caption, legend, states = [], search, beside }) {
  return {
    title,
    show(place, text) {
      this.limit = PAGE;
      this.chosen = "";
      this.text = search ? text : "";
      this.body = el("div");
      const choice = states.length
        ? el("label", {}, "state ", el("select", { onchange: (event) => { this.chosen = event.target.value; this.refresh(); } },
          el("option", { value: "" }, "all"), states.map((each) => el("option", { value: each }, each))))
        : "";
      const field = search
        ? el("label", {}, `${search} `, el("input", { type: "search", maxlength: 200, value: this.text, oninput: (event) => { this.text = event.target.value.trim(); this.refresh(); } }))
        : "";
      place.append(el("h2", {}, title), legend ? el("p", { class: "legend" }, legend) : "", el("div", { class: "tools" }, field, choice), this.body);
      this.timer = setInterval(() => this.refresh(), 2000);
      return this.refresh();
    },
    hide() { clearInterval(this.timer); },
    async refresh() {
      const text = this.text;
      const answer = await ask(path, { limit: this.limit, ...(this.chosen ? { state: this.chosen } : {}), ...(text ? { text } : {}) }).catch((error) => ({ rows: [], error: error.message }));
      if (text !== this.text) return; // The answer to the newer text comes, or has come.
      const rows = answer.rows ?? answer;
      if (beside) beside(this, rows);
      const more = answer.more
        ? el("p", { class: "note" }, `The first ${count(rows.length)}; there are more. `, el("button", { onclick: () => { this.limit = Math.min(9999, this.limit * 2); this.refresh(); } }, "show more"))
        : "";
      renew(this.body, answer.error ? el("p", { class: "problem" }, answer.error) : table(caption(rows.length, answer), columns, rows), more);
    },
  };
}

export const tasks = list({
  title: "Tasks",
  path: "tasks",
  search: "function",
  states: ["running", "blocked", "assigned", "queued", "infeasible", "waiting", "finished", "failed"],
  caption: (many) => `${count(many)} ${many === 1 ? "task" : "tasks"}, the running ones first`,
  columns: [
    ["task", (row) => detailsLink(row.task_id, short(row.task_id))],
    ["function", (row) => row.name],
    ["state", (row) => state(row.state)],
    ["for", (row) => seconds(row.seconds), "right"],
    ["attempt", (row) => row.attempt + 1, "right"],
    ["pid", (row) => row.pid || "–", "right"],
    ["node", (row) => row.node ?? "–"],
    ["demand", (row) => demand(row.demand)],
  ],
});

export const actors = list({
  title: "Actors",
  path: "actors",
  caption: (many, answer) => `${many === answer.total ? count(many) : `${count(many)} of ${count(answer.total ?? many)}`}${(answer.total ?? many) === 1 ? " actor" : " actors"}`,
  legend: "Rates and times are those of the last minute. Latency: from a call's arrival in its actor's process to its end, with its wait in the queue; measured while somebody looks. Run: the method alone.",
  // Callers are asked on their own: some take a second to answer.
  beside(view, rows) {
    if (!view.asking) {
      view.asking = ask("queues", { limit: view.limit }).then((answer) => { view.queues = answer; }, () => {}).finally(() => { view.asking = null; });
    }
    for (const row of rows) row.queue = view.queues ? (view.queues.waiting[row.actor_id] ?? 0) : null;
  },
  columns: [
    ["actor", (row) => detailsLink(row.actor_id, short(row.actor_id))],
    ["class", (row) => row.class],
    ["name", (row) => row.name || "–"],
    ["state", (row) => state(row.state)],
    ["pid", (row) => (row.pid ? el("a", { href: `#stacks/${row.pid}` }, row.pid) : "–"), "right"],
    ["node", (row) => row.node ?? "–"],
    ["calls per second", (row) => rate(row.rate), "right"],
    ["calls queued", (row) => (row.queue === null ? "…" : count(row.queue)), "right"],
    ["latency p50", (row) => seconds(row.p50), "right"],
    ["latency p99", (row) => seconds(row.p99), "right"],
    ["run p50", (row) => seconds(row.run_p50), "right"],
    ["run p99", (row) => seconds(row.run_p99), "right"],
    ["callers", (row) => row.callers.length, "right"],
    ["restarts", (row) => row.restarts, "right"],
    ["checkpoint", (row) => (row.checkpoint_every === null ? "–" : `${row.checkpoint === null ? "none yet" : `after ${count(row.checkpoint)}`}, +${count(row.since_checkpoint ?? 0)}`), "right"],
    ["why", (row) => row.reason || (row.waits_for.length ? "waits" : "")],
  ],
});

export const workers = list({
  title: "Workers",
  path: "workers",
  caption: (many) => `${count(many)} worker ${many === 1 ? "process" : "processes"}`,
  columns: [
    ["pid", (row) => el("a", { href: `#stacks/${row.pid}` }, row.pid), "right"],
    ["node", (row) => row.node ?? "–"],
    ["state", (row) => state(row.state)],
    ["for", (row) => seconds(row.seconds), "right"],
    ["actor", (row) => (row.actor ? detailsLink(row.actor_id, row.actor) : "–")],
    ["runs", (row) => (row.task_id ? detailsLink(row.task_id, row.task) : "–")],
    ["queued", (row) => row.queued, "right"],
    ["waits on its stack", (row) => row.depth, "right"],
    ["memory", (row) => (row.memory ? bytes(row.memory) : "–"), "right"],
    ["demand", (row) => demand(row.demand)],
  ],
});
