import { ask, el, svg, table } from "./dom.js";

const WIDTH = 210, HEIGHT = 34, COLUMN = 270, ROW = 50;

// Columns by distance along the edges: what flows into something stands left of it.
function columns(nodes, edges) {
  const depth = new Map(nodes.map((node) => [node.id, 0]));
  for (let round = 0; round < nodes.length; round += 1) {
    let changed = false;
    for (const [from, to] of edges) {
      if (depth.get(to) < depth.get(from) + 1 && depth.get(from) < nodes.length) { depth.set(to, depth.get(from) + 1); changed = true; }
    }
    if (!changed) break;
  }
  return depth;
}

export const graph = {
  title: "Graph",
  async show(place, text) {
    const input = el("input", { type: "search", value: text, "aria-label": "task or object", maxlength: 200, placeholder: "task or object id" });
    const go = (event) => { event.preventDefault(); location.hash = `graph/${encodeURIComponent(input.value.trim())}`; };
    place.append(el("h2", {}, "Graph"), el("form", { class: "tools", onsubmit: go }, input, el("button", {}, "draw")),
      el("p", { class: "legend" }, "Solid: data. Dashed: who submitted it. Dotted: a ref inside a value. Thick: the order of an actor's calls."));
    if (!text) {
      place.append(el("p", { class: "note" }, "Give the id of a task, a call or an object; lists and the details of a thing lead here, too."));
      return;
    }
    const answer = await ask("graph", { text });
    if (!answer.nodes) {
      place.append(el("p", { class: "note" }, answer.found.length > 1 ? "That can mean several things; give more of the id." : "No task or object here is called so (any more)."));
      return;
    }
    place.append(draw(answer), el("h2", {}, "The same as a table"), table(`${answer.edges.length} ${answer.edges.length === 1 ? "edge" : "edges"}`, [
      ["from", ([from]) => name(answer, from)], ["edge", ([, , kind]) => kind], ["to", ([, to]) => name(answer, to)],
    ], answer.edges), answer.more ? el("p", { class: "note" }, `${answer.more} more neighbours are not drawn.`) : "");
  },
};

function name(answer, id) {
  return answer.nodes.find((node) => node.id === id)?.name ?? id;
}

function draw({ nodes, edges, centre }) {
  const depth = columns(nodes, edges);
  const filled = new Map();
  const at = new Map();
  for (const node of nodes) {
    const column = depth.get(node.id);
    const row = filled.get(column) ?? 0;
    filled.set(column, row + 1);
    at.set(node.id, [20 + column * COLUMN, 20 + row * ROW]);
  }
  const width = 40 + WIDTH + Math.max(...[...filled.keys()]) * COLUMN;
  const height = 40 + Math.max(...filled.values()) * ROW;
  const picture = svg("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "the graph; the table below says the same" });
  picture.append(svg("defs", {}, svg("marker", { id: "tip", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, svg("path", { d: "M0,0 L8,4 L0,8 z", class: "tip" }))));
  for (const [from, to, kind] of edges) {
    const [x1, y1] = at.get(from), [x2, y2] = at.get(to);
    const start = x1 + WIDTH, middle = (start + x2) / 2;
    picture.append(svg("path", { class: `edge ${kind}`, "marker-end": "url(#tip)", d: `M${start},${y1 + HEIGHT / 2} C${middle},${y1 + HEIGHT / 2} ${middle},${y2 + HEIGHT / 2} ${x2},${y2 + HEIGHT / 2}` }));
  }
  for (const node of nodes) {
    const [x, y] = at.get(node.id);
    const round = node.kind === "object" ? 16 : 4;
    const text = `${node.name}${node.state ? ` · ${node.state}` : ""}`;
    const shape = svg("g", {}, svg("title", {}, text),
      svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: round, class: `node ${node.kind} ${node.id === centre ? "centre" : ""}` }),
      svg("text", { x: x + 10, y: y + 21 }, text.length > 30 ? `${text.slice(0, 29)}…` : text));
    picture.append(node.kind === "process" ? shape : (() => { const link = svg("a", { href: `#graph/${node.id}` }); link.append(shape); return link; })());
  }
  return el("div", { class: "scroll" }, picture);
}
