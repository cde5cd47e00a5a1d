// Buttons that change something: there are none unless the page was started with --allow-changes. Each asks before it does what it says.

import { ask, el } from "./dom.js";

let token = "";

export async function loadChanges() {
  const answer = await ask("changes");
  token = answer.allowed ? answer.token : "";
}

async function post(path, parameters) {
  const answer = await fetch(`/api/${path}?${new URLSearchParams(parameters)}`, { method: "POST", credentials: "same-origin", headers: { "X-Zfabric-Token": token } }).catch(() => {
    throw new Error("no answer from the page's server");
  });
  const body = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(body.error || answer.statusText);
  return body.text;
}

// The buttons for a thing that was explained: {found: [{kind, id, name}], state, brief}.
export function changes(answer) {
  const [it] = answer.found;
  const ended = ["finished", "failed", "dead", "crashed", "cancelled"].includes(answer.state);
  if (!token || ended) return "";
  const said = el("span", { class: "note", role: "status" });
  if (it.kind === "task") {
    return el("p", { class: "tools" }, button("cancel", `Cancel ${it.name} ${answer.brief}?`, "Who waits for its value gets TaskCancelledError. Tasks that it has submitted are cancelled, too.", () => post("cancel", { id: it.id }), said),
      button("cancel by force", `Kill the worker of ${it.name} ${answer.brief}?`, "Its process is killed, with all that it has in memory. Tasks that it has submitted are cancelled, too.", () => post("cancel", { id: it.id, force: 1 }), said), said);
  }
  if (it.kind === "actor") {
    return el("p", { class: "tools" }, button("kill", `Kill the actor ${it.name} ${answer.brief}?`, "It ends at once and does not restart: what it has in memory is lost, and its calls raise ActorDiedError.", () => post("kill", { id: it.id }), said), said);
  }
  return "";
}

function button(name, question, what, act, said) {
  return el("button", { class: "danger", onclick: () => {
    const box = el("dialog", { "aria-labelledby": "question" }, el("h3", { id: "question" }, question), el("p", {}, what),
      el("form", { method: "dialog", class: "tools" }, el("button", { value: "no", autofocus: true }, "leave it"), el("button", { value: "yes", class: "danger" }, name)));
    box.addEventListener("close", () => {
      if (box.returnValue === "yes") act().then((text) => { said.textContent = text; }, (error) => { said.textContent = error.message; });
      box.remove();
    });
    document.body.append(box);
    box.showModal();
  } }, `${name} …`);
}
