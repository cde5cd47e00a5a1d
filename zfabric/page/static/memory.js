import { ask, bytes, count, detailsLink, el, renew, short, table } from "./dom.js";

const sums = [
  ["values", (row) => count(row.values), "right"], ["bytes", (row) => bytes(row.bytes), "right"],
  ["in use", (row) => bytes(row.pinned), "right"], ["on disk", (row) => bytes(row.spilled), "right"],
];

export const memory = {
  title: "Memory",
  show(place) {
    this.place = el("div");
    this.limit = 100;
    place.append(el("h2", {}, "Memory"), this.place);
    this.timer = setInterval(() => this.refresh(), 3000);
    return this.refresh();
  },
  hide() { clearInterval(this.timer); },
  async refresh() {
    const now = await ask("memory", { limit: this.limit });
    const store = now.store;
    renew(this.place,
      el("p", { class: "legend" }, `The object store of ${store.nodes === 1 ? "this node" : `${store.nodes} nodes`} has ${bytes(store.used ?? 0)} of ${bytes(store.capacity ?? 0)} in use; ${bytes(store.pinned ?? 0)} are pinned by readers, ${bytes(store.spilled ?? 0)} are on disk.`),
      now.cut ? el("p", { class: "note" }, `There are more values than the ${count(now.counted)} that are counted here.`) : "",
      table("bytes by the function that made them", [
        ["made by", (row) => row.made_by], ["where", (row) => row.where],
        ...sums,
      ], now.makers),
      el("h2", {}, "Who holds them"),
      table("bytes by the processes that have refs; what several hold is counted with each", [["held by", (row) => row.held_by], ...sums], now.owners),
      el("h2", {}, "The largest values"),
      table(now.objects.more ? `the ${now.objects.rows.length} largest of ${count(now.counted)}` : `${now.objects.rows.length} values`, [
        ["object", (row) => detailsLink(row.object_id, short(row.object_id))],
        ["made by", (row) => row.made_by], ["known on", (row) => row.node ?? "–"], ["state", (row) => row.state], ["where", (row) => row.where],
        ["size", (row) => bytes(row.size), "right"], ["held by", (row) => (row.holders ? row.held_by.join(", ") + (row.holders > row.held_by.length ? ` and ${row.holders - row.held_by.length} more` : "") : "–")],
        ["needed by", (row) => row.pins, "right"], ["in use by", (row) => row.in_use_by, "right"],
      ], now.objects.rows),
      el("h2", {}, "Workers"),
      table("resident memory", [
        ["pid", (row) => row.pid, "right"], ["node", (row) => row.node ?? "–"], ["state", (row) => row.state], ["runs", (row) => row.task || "–"],
        ["memory", (row) => (row.memory ? bytes(row.memory) : "–"), "right"],
      ], [...now.workers].sort((a, b) => b.memory - a.memory)),
    );
  },
};
