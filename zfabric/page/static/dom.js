// Small helpers for building elements. Text is always set as text: nothing that a program wrote becomes markup.

export function el(name, attributes = {}, ...children) {
  const found = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) found.addEventListener(key.slice(2), value);
    else found.setAttribute(key, value === true ? "" : value);
  }
  found.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined).map(String_or_node));
  return found;
}

function String_or_node(each) {
  return each instanceof Node ? each : document.createTextNode(plain(String(each)));
}

// Control characters (terminal escapes too) are shown as symbols, and what would turn the direction of text is left out.
export function plain(text) {
  return text
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (each) => String.fromCharCode(0x2400 + each.charCodeAt(0)))
    .replace(/[\u202a-\u202e\u2066-\u2069]/g, "");
}

export function svg(name, attributes = {}, ...children) {
  const found = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) found.setAttribute(key, value);
  found.append(...children.map(String_or_node));
  return found;
}

// columns: [heading, cell(row) -> text or node, "right" | "broad" | undefined]. On a telephone each row is a card with named cells: the
// roles say that it is a table all the same.
export function table(caption, columns, rows) {
  const head = el("tr", { role: "row" }, columns.map(([name, , side]) => el("th", { scope: "col", role: "columnheader", class: side }, name)));
  const cell = ([name, content, side], row) => {
    const found = content(row);
    return el("td", { role: "cell", "data-label": name, class: [side, found === "–" || found === "" ? "none" : null].filter(Boolean).join(" ") || null }, found);
  };
  const body = rows.map((row) => el("tr", { role: "row" }, columns.map((column) => cell(column, row))));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { role: "table" }, el("caption", {}, caption), el("thead", { role: "rowgroup" }, head), el("tbody", { role: "rowgroup" }, body)));
}

// What an element is, whatever comes and goes beside it: where a link leads, or the caption of a table, which may count its rows.
function named(each) {
  return each.getAttribute("href") ?? each.getAttribute("aria-label")?.replace(/\d[\d,]*/g, "#");
}

// Replaces what is in a place. What had the focus has it again, and tables stay where they were scrolled to.
export function renew(place, ...children) {
  const active = document.activeElement;
  const inside = active !== place && place.contains(active);
  const name = inside ? named(active) : null;
  const route = [];
  for (let each = active; inside && each !== place; each = each.parentNode) route.unshift([...each.parentNode.children].indexOf(each));
  const scrolled = new Map([...place.querySelectorAll(".scroll")].map((each) => [named(each), each.scrollLeft]));
  place.replaceChildren(...children);
  for (const each of place.querySelectorAll(".scroll")) each.scrollLeft = scrolled.get(named(each)) ?? 0;
  if (!inside) return;
  const same = name && [...place.querySelectorAll(active.tagName)].find((each) => named(each) === name);
  const there = same || route.reduce((each, number) => each?.children[number], place);
  if (there?.tagName === active.tagName) there.focus({ preventScroll: true });
}

export function state(name) {
  return el("span", { class: `state-${name}` }, name);
}

export function count(number) {
  return Math.round(number).toLocaleString("en");
}

export function rate(number) {
  return number < 0.05 ? "0" : number < 10 ? String(+number.toFixed(1)) : count(number);
}

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${unit === 0 || number >= 100 ? number.toFixed(0) : number.toFixed(1)} ${units[unit]}`;
}

export function seconds(span) {
  if (span === null || span === undefined) return "–";
  if (span < 0.001) return `${(span * 1e6).toFixed(0)} µs`;
  if (span < 1) return `${(span * 1000).toFixed(span < 0.01 ? 1 : 0)} ms`;
  if (span < 60) return `${span.toFixed(1)} s`;
  if (span < 3600) return `${Math.floor(span / 60)} min ${Math.floor(span % 60)} s`;
  return `${Math.floor(span / 3600)} h ${Math.floor((span % 3600) / 60)} min`;
}

export function percent(share) {
  return `${Math.round(100 * share)} %`;
}

export function detailsLink(id, text) {
  return el("a", { href: `#details/${encodeURIComponent(id)}` }, text);
}

// The id of a task or an object as the command line has it: values of an actor's call end in "c0", those that were put in "p0".
export function short(hex) {
  const task = `${parseInt(hex.slice(0, 8), 16)}-${hex.slice(8, 12)}-${parseInt(hex.slice(24, 32), 16)}`;
  if (hex.length <= 32) return task;
  const index = parseInt(hex.slice(32), 16);
  return `${task}-${index >= 2 ** 31 ? `p${index - 2 ** 31}` : index >= 2 ** 30 ? `c${index - 2 ** 30}` : index}`;
}

const jobs = new Map();

// Notes how jobs are called: by their script, and by their id if they were submitted.
export function nameJobs(rows) {
  for (const row of rows) {
    const known = [row.script, row.submission_id].filter(Boolean).join(", ");
    if (known) jobs.set(row.number, `${row.number} (${known})`);
    if (jobs.size > 1000) jobs.delete(jobs.keys().next().value);
  }
}

export function jobName(number) {
  return jobs.get(number) ?? String(number);
}

export function demand(amounts) {
  return Object.entries(amounts).map(([name, amount]) => `${name === "memory" ? bytes(amount) : amount} ${name}`).join(", ") || "–";
}

// What a node has: without its address and its object store, which other columns show.
export function resources(amounts) {
  return demand(Object.fromEntries(Object.entries(amounts).filter(([name]) => name !== "object_store_memory" && !name.startsWith("node:"))));
}

// A colour for a name, the same everywhere on the page, dark enough for white text on it, and light enough for dark ground. The next name has
// the next one, so that those of few functions differ much. No red: that is failure.
const PALETTE = [215, 30, 145, 280, 185, 325, 60, 245, 95, 300, 200, 45].map((hue) => `hsl(${hue} ${hue === 280 ? 50 : 65}% ${hue > 40 && hue < 200 ? 33 : 45}%)`);
const COLOURS_MOST = 1000;
const given = new Map();

export function colour(name) {
  if (!given.has(name)) {
    if (given.size >= COLOURS_MOST) given.clear();
    given.set(name, PALETTE[given.size % PALETTE.length]);
  }
  return given.get(name);
}

export async function ask(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).flatMap(([name, value]) => [value].flat().map((each) => [name, each])));
  const answer = await fetch(`/api/${path}?${query}`, { credentials: "same-origin" }).catch(() => {
    throw new Error("no answer from the page's server: does it run, and has this device a network?");
  });
  const body = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(body.error || answer.statusText);
  return body;
}
