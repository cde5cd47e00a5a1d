import { ask, el, seconds } from "./dom.js";

export const stacks = {
  title: "Stacks",
  async show(place, pid) {
    const again = el("button", { onclick: () => { place.replaceChildren(); this.show(place, pid); } }, "look again");
    place.append(el("h2", {}, "Stacks"), el("div", { class: "tools" }, again, el("span", { class: "note" }, "What every thread does now; frames of the fabric are left out.")));
    const found = await ask("stacks", pid ? { pid } : {});
    for (const process of found) {
      place.append(el("h2", {}, `${process.kind} ${process.pid}${process.task ? `: ${process.task}` : ""}${process.state ? ` (${process.state} for ${seconds(process.seconds)})` : ""}`));
      if (!process.answers && !process.threads.length) place.append(el("p", { class: "note" }, "It does not answer: it has ended, is stopped, or runs code that lets no Python code run."));
      for (const thread of process.threads) {
        const runs = thread.runs.map((run) => `${run.name} for ${seconds(run.seconds)}`).join(", ");
        const lines = thread.frames.map((frame) => `  File "${frame.file}", line ${frame.line}, in ${frame.function}\n${frame.source ? `    ${frame.source}\n` : ""}`).join("");
        place.append(el("pre", {}, `${thread.name}${runs ? ` runs ${runs}` : ""}\n${lines}`));
      }
      if (process.answers && !process.threads.length) place.append(el("p", { class: "note" }, "It waits for work."));
    }
  },
};
