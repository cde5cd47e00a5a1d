// Which view is shown, and what is pushed to all of them. A view is {title, show(place, argument), update?(latest), hide?()}.

import { el } from "./dom.js";
import { overview, progress } from "./overview.js";
import { stream } from "./stream.js";
import { actors, tasks, workers } from "./lists.js";
import { memory } from "./memory.js";
import { graph } from "./graph.js";
import { errors, logs } from "./logs.js";
import { stacks } from "./stacks.js";
import { details } from "./details.js";

const VIEWS = { overview, progress, stream, tasks, actors, workers, memory, graph, logs, errors, stacks, details };
const IN_THE_BAR = Object.keys(VIEWS).filter((name) => name !== "details");

const place = document.getElementById("view");
const link = document.getElementById("link");
let shown = null;
let latest = null;

for (const name of IN_THE_BAR) {
  document.getElementById("views").append(el("a", { href: `#${name}`, id: `to-${name}` }, VIEWS[name].title), " ");
}

function route() {
  const [name, argument] = location.hash.slice(1).split("/");
  const view = VIEWS[name] ?? overview;
  if (shown?.hide) shown.hide();
  for (const each of IN_THE_BAR) {
    const current = VIEWS[each] === view;
    document.getElementById(`to-${each}`).toggleAttribute("aria-current", current);
    if (current) document.getElementById(`to-${each}`).setAttribute("aria-current", "page");
  }
  document.title = `${view.title} · zfabric`;
  place.replaceChildren();
  shown = view;
  guard(view.show(place, argument ? decodeURIComponent(argument) : ""));
  if (latest && view.update) view.update(latest);
}

export function guard(promise) {
  Promise.resolve(promise).catch((error) => say(error.message, true));
}

function say(text, bad = false) {
  if (link.textContent !== text) link.textContent = text; // A screen reader says what is set, also if it is the same.
  link.classList.toggle("bad", bad);
}

function listen() {
  const events = new EventSource("/api/events");
  events.addEventListener("update", (event) => {
    latest = JSON.parse(event.data);
    say(`live · session ${latest.session}`);
    if (shown?.update) shown.update(latest);
  });
  events.addEventListener("trouble", (event) => say(JSON.parse(event.data), true));
  events.addEventListener("ended", (event) => { say(JSON.parse(event.data), true); events.close(); });
  events.onerror = () => { if (events.readyState !== EventSource.CLOSED) say("not connected; trying again", true); };
}

document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = document.getElementById("wanted").value.trim();
  if (wanted) location.hash = `details/${encodeURIComponent(wanted)}`;
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // Its fragment is the name of no view.
  place.focus();
});
window.addEventListener("hashchange", () => { route(); place.focus({ preventScroll: true }); });
route();
listen();
