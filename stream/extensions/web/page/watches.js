// The watches of the run, each with the answer that holds and the probability of a yes; new ones, and their removal.

import { byId, make, writeNote } from "./dom.js";
import { request } from "./link.js";
import { timeOf } from "./times.js";

const percent = (share) => `${Math.round(100 * share)} %`;

export class Watches {
  /** `saving` gives, once it is needed, what saves them to the run's file. */
  constructor(saving) {
    this.camera = "";
    this.parts = new Map();
    this.control = false;
    byId("watch-add").onsubmit = (event) => this.add(event);
    byId("watch-save").onclick = async () => (await saving()).watches();
  }

  show(list) {
    const shown = new Map(this.parts);
    this.parts.clear();
    for (const watch of list) {
      const { name, question } = watch;
      const before = shown.get(name);
      this.parts.set(name, before?.watch.question === question ? before : this.make(watch));
    }
    byId("watches").replaceChildren(...[...this.parts.values()].map((parts) => parts.root));
    byId("watches").hidden = !this.parts.size;
  }

  make(watch) {
    const parts = { watch, holds: make("strong", {}, "not known yet"), fill: make("div", { className: "fill" }), note: make("p", { className: "note" }, rulesOf(watch)) };
    const track = make("div", { className: "track" }, parts.fill, markAt(watch.no_below), markAt(watch.threshold));
    const remove = make("button", { type: "button", className: "quiet", ariaLabel: `Remove the watch ${watch.name}`, onclick: () => this.remove(watch.name) }, "remove");
    parts.root = make("li", {}, make("p", {}, `${watch.question} `, parts.holds, ...(this.control ? [" ", remove] : [])), track, parts.note);
    return parts;
  }

  look(look) {
    const parts = this.parts.get(look.watch);
    if (!parts) return;
    parts.holds.textContent = look.holds ?? "not known yet";
    parts.fill.style.width = `${Math.round(100 * look.yes)}%`;
    parts.note.textContent = look.warning ?? `${percent(look.yes)} yes at ${timeOf(look)}${waitsFor(look, parts.watch)} · ${rulesOf(parts.watch)}`;
  }

  async add(event) {
    event.preventDefault();
    const question = byId("watch-question").value.trim();
    if (!question) return;
    const { error } = await request("/api/watches", { method: "POST", body: JSON.stringify({ camera: this.camera, question }) });
    if (!error) byId("watch-question").value = "";
    this.write(error);
  }

  async remove(name) {
    const query = new URLSearchParams({ camera: this.camera, name });
    this.write((await request(`/api/watches?${query}`, { method: "DELETE" })).error);
  }

  write(error) {
    writeNote("watch-note", error ? `Refused: ${error.message}` : "", Boolean(error));
  }
}

/** A threshold on the bar of a watch. */
function markAt(share) {
  const mark = make("div", { className: "mark" });
  mark.style.left = percent(share).replace(" ", "");
  return mark;
}

/** What the bar's marks mean. */
function rulesOf({ threshold, no_below, hold_s }) {
  return `yes from ${percent(threshold)}, no up to ${percent(no_below)}${hold_s ? `, a match after ${hold_s} s of yes` : ""}`;
}

/** Why a check has not changed the answer. */
function waitsFor({ yes, holds }, { threshold, no_below }) {
  const says = yes >= threshold ? "yes" : yes <= no_below ? "no" : null;
  if (says === null) return ", neither yes nor no";
  return says === holds ? "" : `: ${says} if the next check agrees`;
}
