// Zones and watches saved to the configuration file of the run, after a question; without a file, downloaded.

import { byId, make } from "./dom.js";
import { download } from "./files.js";
import { request } from "./link.js";

const OTHERWISE = "camera.toml"; // name of a download if the run has no file

export class Saving {
  /** `camera`: the name of the page's camera, "" if it has none. */
  constructor(camera) {
    this.camera = camera;
    this.note = make("p", { className: "note", role: "status" });
    this.text = make("pre");
    this.title = make("h2", { id: "saving-title" });
    this.save = make("button", { type: "button", className: "main" }, "Save");
    this.file = make("button", { type: "button" }, "Download");
    this.close = make("button", { type: "button", onclick: () => this.dialog.close() }, "Cancel");
    this.dialog = make("dialog", { id: "saving", className: "keys" }, this.title, this.text, this.note, make("p", { className: "group" }, this.save, this.file, this.close));
    this.dialog.setAttribute("aria-labelledby", "saving-title");
    document.body.append(this.dialog);
  }

  /** Ask whether to save a zone of this name and text. */
  async zone(name, toml) {
    const settings = await this.settings();
    const there = settings.zones.includes(name);
    this.ask(settings, toml, there ? `The file has a zone ${name}, which is replaced.` : "It counts from the next start on.", { zone: toml, replace: there });
  }

  /** Ask whether to save the watches that were added and removed. */
  async watches() {
    const settings = await this.settings();
    const { added, removed, toml } = settings.watches;
    if (!added.length && !removed.length) return this.ask({ ...settings, problem: "No watch has changed since the run began." }, "", "", null);
    this.ask(settings, toml, removed.length ? `Taken out: ${removed.join(", ")}.` : "", { watches: true });
  }

  async settings() {
    const query = this.camera ? `?camera=${encodeURIComponent(this.camera)}` : "";
    const answer = await request(`/api/settings${query}`);
    return answer.error ? { file: null, problem: answer.error.message, zones: [], watches: { added: [], removed: [], toml: "" } } : answer;
  }

  ask({ file, problem }, toml, words, body) {
    this.title.textContent = file ? `Save to ${file}?` : "Nothing to save to";
    this.text.textContent = toml;
    this.text.hidden = !toml;
    this.write(problem ?? words, Boolean(problem));
    this.save.hidden = Boolean(problem);
    this.file.hidden = !toml;
    this.save.disabled = false;
    this.close.textContent = "Cancel";
    this.file.onclick = () => download(new Blob([toml], { type: "application/toml" }), file ?? OTHERWISE);
    this.save.onclick = () => this.send(body);
    if (!this.dialog.open) this.dialog.showModal();
  }

  async send(body) {
    this.save.disabled = true;
    const { saved, file, error } = await request("/api/settings", { method: "POST", body: JSON.stringify({ camera: this.camera, ...body }) });
    this.save.hidden = !error;
    this.close.textContent = error ? "Cancel" : "Close";
    this.save.disabled = false;
    if (body.zone) this.save.onclick = () => this.send({ ...body, replace: true }); // what another page saved meanwhile was named
    this.write(error ? error.message : `Saved ${saved} to ${file}; it counts from the next start on.`, Boolean(error));
  }

  write(words, bad) {
    this.note.textContent = words;
    this.note.classList.toggle("bad", bad);
  }
}
