// Which view is shown, and what is pushed to all of them. A view is {title, show(place, argument), update?(latest), hide?()}.

import { el, nameJobs } from "./dom.js";
import { loadChanges } from "./changes.js";
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
const banner = document.getElementById("ended");
const STALE_SECONDS = 5;
let shown = null;
let latest = null;
let answered = 0; // When the last update came.
let ended = false;

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
  if (ended && !view.update) {
    place.append(el("h2", {}, view.title), el("p", { class: "note" }, "This view was not loaded before the end."));
    return;
  }
  const loaded = view.show(place, argument ? decodeURIComponent(argument) : "");
  if (ended) Promise.resolve(loaded).catch(() => {}); // What it would ask for is gone; what it has is drawn.
  else guard(loaded);
  if (latest && view.update) guard(view.update(latest, !ended));
}

export function guard(promise) {
  Promise.resolve(promise).catch((error) => say(error.message, true));
}

function say(text, bad = false) {
  if (link.textContent !== text) link.textContent = text; // A screen reader says what is set, also if it is the same.
  link.classList.toggle("bad", bad);
}

// What is shown is the past: it is greyed, and the banner says since when.
function grey(text) {
  document.body.classList.toggle("past", Boolean(text));
  if (banner.textContent !== text) banner.textContent = text;
  banner.hidden = !text;
}

function time(seconds) {
  const at = new Date(1000 * seconds), day = at.toDateString() === new Date().toDateString() ? "" : ` on ${at.toLocaleDateString("en-CA")}`;
  return `${at.toLocaleTimeString("en-GB")}${day}`;
}

function listen() {
  const events = new EventSource("/api/events");
  events.addEventListener("update", (event) => {
    latest = JSON.parse(event.data);
    answered = Date.now() / 1000;
    nameJobs(latest.jobs);
    grey("");
    say(`live · session ${latest.session}`);
    if (shown?.update) guard(shown.update(latest));
  });
  events.addEventListener("trouble", (event) => say(JSON.parse(event.data), true));
  events.addEventListener("ended", (event) => {
    ended = true;
    events.close();
    shown?.hide?.();
    if (latest && shown?.update) shown.update(latest, false);
    say("ended", true);
    grey(`The cluster has ended at ${time(JSON.parse(event.data))}. This is what was seen of it.`);
  });
  events.onerror = () => {
    if (ended) return;
    say("not connected; trying again", true);
    if (answered && Date.now() / 1000 - answered > STALE_SECONDS) grey(`Nothing has been heard from the page's server since ${time(answered)}: it was stopped, with its cluster or without. Trying again.`);
  };
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
loadChanges().catch(() => {}).finally(() => { route(); listen(); });
