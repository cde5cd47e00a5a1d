import { ask, detailsLink, el, state, table } from "./dom.js";

export const details = {
  title: "Details",
  async show(place, text) {
    place.append(el("h2", {}, "Details"));
    const answer = await ask("details", { text });
    if (!answer.found.length) {
      place.append(el("p", { class: "note" }, `Nothing here is called “${text}” (any more). An id, the beginning of one, an actor's name and a pid will do.`));
    } else if (answer.found.length > 1) {
      place.append(table("which one?", [["id", (row) => detailsLink(row.id, row.id)], ["kind", (row) => row.kind], ["name", (row) => row.name]], answer.found));
    } else {
      const [it] = answer.found;
      place.append(
        el("p", {}, `${it.kind} `, el("strong", {}, it.name), ` ${answer.brief} `, state(answer.state)),
        el("pre", {}, answer.reason),
        el("dl", { class: "facts" }, answer.facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])),
        it.kind === "worker" ? "" : el("p", {}, el("a", { href: `#graph/${it.id}` }, "its neighbours as a graph")),
      );
    }
  },
};
