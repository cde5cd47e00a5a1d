import { changes } from "./changes.js";
import { ask, count, detailsLink, el, seconds, short, state, table } from "./dom.js";
import { bars } from "./overview.js";

export const details = {
  title: "Details",
  async show(place, text) {
    place.append(el("h2", {}, "Details"));
    const answer = await ask("details", { text });
    if (!answer.found.length) {
      place.append(el("p", { class: "note" }, `Nothing here is called “${text}” (any more). An id, the beginning of one, a function's or an actor's name and a pid will do.`));
    } else if (answer.found[0].kind === "function") {
      const names = [...new Set(answer.found.map((each) => each.name))];
      place.append(el("p", { class: "legend" }, `Functions with “${text}” in their names: a link leads to their tasks. `,
        names.length === 1 ? el("a", { href: `#logs/${encodeURIComponent(names[0])}` }, `what ${names[0]} has written`) : ""), bars(answer.found.map((each) => each.progress)));
    } else if (answer.found.length > 1) {
      place.append(table("which one?", [["id", (row) => detailsLink(row.id, row.id)], ["kind", (row) => row.kind], ["name", (row) => row.name]], answer.found));
    } else {
      place.append(...described(answer));
    }
  },
};

// All that the server told of one thing: why, where, attempts, arguments, error, output.
export function described(answer) {
  const [it] = answer.found;
  const pid = answer.facts.find(([name]) => name === "pid" || name === "worker")?.[1];
  const parts = [
    el("p", {}, `${it.kind} `, el("strong", {}, it.name), ` ${answer.brief} `, state(answer.state)),
    el("pre", {}, answer.reason),
    changes(answer),
    el("dl", { class: "facts" }, answer.facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))])),
    el("p", {}, it.kind === "worker" ? "" : el("a", { href: `#graph/${it.id}` }, "its neighbours as a graph"),
      /^\d+$/.test(pid ?? "") ? [" · ", el("a", { href: `#stacks/${pid}` }, "stack"), " · ", el("a", { href: `#logs/${pid}` }, "output"), ` of process ${pid}`] : ""),
  ];
  if (answer.attempts?.length) {
    parts.push(table("attempts of the last minutes", [
      ["node", (row) => row.node || "–"], ["pid", (row) => el("a", { href: `#stacks/${row.pid}` }, row.pid), "right"],
      ["began", (row) => `${seconds(row.ago)} ago`, "right"], ["took", (row) => seconds(row.seconds), "right"], ["outcome", (row) => row.mark || "ok"],
    ], answer.attempts));
  }
  if (answer.arguments?.length) {
    parts.push(el("h3", {}, "Arguments that are objects"), table(`${count(answer.arguments.length)} objects`, [
      ["object", (row) => detailsLink(row.id, row.name)], ["state", (row) => state(row.state)],
      ["made by", (row) => (row.made_by ? detailsLink(row.made_by, short(row.made_by)) : "put")],
    ], answer.arguments));
  }
  if (answer.error) parts.push(el("h3", {}, `Error: ${answer.error.kind}`), el("pre", {}, answer.error.traceback || answer.error.text));
  if (answer.lines?.length) parts.push(el("h3", {}, `The last lines that ${it.name} wrote there`), el("pre", {}, answer.lines.join("\n")));
  return parts;
}
