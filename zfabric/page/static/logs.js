import { ask, count, detailsLink, el, jobName, short } from "./dom.js";

const SHOWN = 2000;

// A choice whose options grow as more is read.
function chooser(name, word, chosen, onchange) {
  const list = el("select", { onchange: (event) => onchange(event.target.value) }, el("option", { value: "" }, "all"));
  const grow = (values) => {
    for (const value of values) if (![...list.options].some((each) => each.value === String(value))) list.append(el("option", { value }, word(value)));
    if (chosen) { list.value = chosen; if (list.value === chosen) chosen = ""; }
  };
  return { grow, element: el("label", {}, `${name} `, list) };
}

function clock(at) {
  return at ? new Date(1000 * at).toLocaleTimeString("en-GB") : "--:--:--";
}

export const logs = {
  title: "Logs",
  show(place, argument) {
    const pid = /^\d+$/.test(argument) ? argument : "";
    this.since = 0;
    this.text = "";
    this.pid = pid;
    this.job = "";
    this.function = pid ? "" : argument;
    this.turn = (this.turn ?? 0) + 1;
    this.out = el("pre", { tabindex: "0", role: "log", "aria-live": "off", "aria-label": "output of the workers" });
    this.note = el("p", { class: "note" });
    const again = () => { this.since = 0; this.turn += 1; this.busy = false; this.out.replaceChildren(); return this.refresh(); };
    this.jobs = chooser("job", jobName, "", (value) => { this.job = value; again(); });
    this.functions = chooser("function", (name) => name, this.function, (value) => { this.function = value; again(); });
    if (this.function) this.functions.grow([this.function]);
    place.append(el("h2", {}, "Logs"), el("div", { class: "tools" },
      el("label", {}, "search ", el("input", { type: "search", maxlength: 200, oninput: (event) => { this.text = event.target.value; again(); } })),
      this.jobs.element, this.functions.element,
      el("label", {}, "pid ", el("input", { inputmode: "numeric", size: 8, value: pid, oninput: (event) => { this.pid = event.target.value.replace(/\D/g, ""); again(); } })),
      el("label", {}, el("input", { type: "checkbox", checked: true, onchange: (event) => { this.follow = event.target.checked; } }), " follow")), this.out, this.note);
    this.follow = true;
    this.timer = setInterval(() => this.refresh(), 1000);
    return this.refresh();
  },
  hide() { clearInterval(this.timer); },
  async refresh() {
    if (this.busy) return;
    this.busy = true;
    const turn = this.turn;
    try {
      const answer = await ask("logs", { since: this.since, text: this.text, function: this.function, ...(this.job ? { job: this.job } : {}), ...(this.pid ? { pid: this.pid } : {}) });
      if (turn !== this.turn) return; // Something else is asked for by now.
      this.jobs.grow(answer.jobs);
      this.functions.grow(answer.functions);
      const rows = answer.lines.slice(-SHOWN);
      for (const [, node, pid, stream, name, text, at] of rows) {
        this.out.append(el("span", { class: "who" }, `${clock(at)} (${name ? `${name} ` : ""}${node ? `on ${node} ` : ""}pid=${pid}) `), el("span", { class: stream === "err" ? "err" : undefined }, text), "\n");
      }
      while (this.out.childNodes.length > 3 * SHOWN) this.out.firstChild.remove();
      this.since = answer.read;
      this.note.textContent = answer.dropped ? `${count(answer.dropped)} older lines are not shown here; “zfabric logs” has them.` : `${count(answer.read)} lines have been read. Times are to about a second; of output that has no writer's name and is older than this view there are none.`;
      if (this.follow) this.out.scrollTop = this.out.scrollHeight;
    } finally {
      if (turn === this.turn) this.busy = false;
    }
  },
};

function keyOf(group) {
  return `${group.kind}\u0000${group.place}`;
}

// Groups by kind and place; those that were open stay open when newer errors come.
export const errors = {
  title: "Errors",
  show(place) {
    this.open = null;
    this.shape = "";
    this.body = el("div");
    place.append(el("h2", {}, "Errors"), this.body);
    this.timer = setInterval(() => this.refresh(), 2000);
    return this.refresh();
  },
  hide() { clearInterval(this.timer); },
  async refresh() {
    const answer = await ask("errors");
    const shape = JSON.stringify(answer);
    if (shape === this.shape && this.body.childNodes.length) return;
    this.shape = shape;
    if (!answer.groups.length) {
      this.body.replaceChildren(el("p", { class: "note" }, answer.failed ? `${count(answer.failed)} tasks have failed; nobody has refs to their errors any more.` : "No task has failed."));
      return;
    }
    this.open ??= new Set([keyOf(answer.groups[0])]);
    this.body.replaceChildren(
      el("p", { class: "legend" }, `${count(answer.failed)} tasks of the jobs that run have failed. ${count(answer.counted)} errors were seen here since somebody looks, by kind and place:`),
      ...answer.groups.map((group) => this.group(group)),
    );
  },
  group(group) {
    const key = keyOf(group);
    const where = Object.entries(group.functions).map(([name, many]) => `${name} (${count(many)})`).join(", ");
    const found = el("details", { class: "group", open: this.open.has(key) },
      el("summary", {}, el("span", { class: "state-failed" }, `${count(group.count)} × ${group.kind}`), group.place ? ` at ${group.place}` : "", el("span", { class: "note" }, ` in ${where}`)),
      el("p", {}, "the newest: ", group.task_ids.map((id) => [detailsLink(id, short(id)), " "]).flat()),
      el("pre", {}, group.traceback || group.text));
    found.addEventListener("toggle", () => (found.open ? this.open.add(key) : this.open.delete(key)));
    return found;
  },
};
