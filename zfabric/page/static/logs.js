import { ask, count, detailsLink, el, short, table } from "./dom.js";

const SHOWN = 2000;

export const logs = {
  title: "Logs",
  show(place, pid) {
    this.since = 0;
    this.text = "";
    this.pid = pid;
    this.out = el("pre", { tabindex: "0", role: "log", "aria-live": "off", "aria-label": "output of the workers" });
    this.note = el("p", { class: "note" });
    const again = () => { this.since = 0; this.out.replaceChildren(); return this.refresh(); };
    place.append(el("h2", {}, "Logs"), el("div", { class: "tools" },
      el("label", {}, "search ", el("input", { type: "search", maxlength: 200, oninput: (event) => { this.text = event.target.value; again(); } })),
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
    try {
      const answer = await ask("logs", { since: this.since, text: this.text, ...(this.pid ? { pid: this.pid } : {}) });
      const rows = answer.lines.slice(-SHOWN);
      for (const [, node, pid, stream, name, text] of rows) {
        this.out.append(el("span", { class: "who" }, `(${name ? `${name} ` : ""}pid=${pid}${node ? ` ${node}` : ""}) `), el("span", { class: stream === "err" ? "err" : undefined }, text), "\n");
      }
      while (this.out.childNodes.length > 3 * SHOWN) this.out.firstChild.remove();
      this.since = answer.read;
      this.note.textContent = answer.dropped ? `${count(answer.dropped)} older lines are not shown here; “zfabric logs” has them.` : `${count(answer.read)} lines have been read.`;
      if (this.follow) this.out.scrollTop = this.out.scrollHeight;
    } finally {
      this.busy = false;
    }
  },
};

export const errors = {
  title: "Errors",
  async show(place) {
    place.append(el("h2", {}, "Errors"));
    const answer = await ask("errors");
    if (!answer.groups.length) {
      place.append(el("p", { class: "note" }, "No task has failed whose error somebody still refers to."));
      return;
    }
    place.append(table("failed tasks by function and error", [
      ["failed", (row) => count(row.count), "right"], ["function", (row) => row.name], ["error", (row) => row.kind],
      ["tasks", (row) => row.task_ids.slice(0, 3).map((id) => [detailsLink(id, short(id)), " "]).flat()],
    ].map(([heading, cell, side]) => [heading, (row) => { const found = cell(row); return Array.isArray(found) ? el("span", {}, found) : found; }, side]), answer.groups));
    for (const group of answer.groups.slice(0, 20)) place.append(el("h2", {}, `${group.name}: ${group.count}`), el("pre", {}, group.text));
    if (answer.more) place.append(el("p", { class: "note" }, "Only the first 500 failed tasks are grouped."));
  },
};
