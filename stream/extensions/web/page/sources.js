// The source of the run, if viewers choose it: what is offered, what runs, and why the last one ended.

import { byId, make, setPressed, writeNote } from "./dom.js";

const KINDS = [["named", "Named sources"], ["browser", "This browser"], ["camera", "Cameras of the server"], ["scene", "Drawn scenes"]];
const THUMBNAIL = [64, 36];

export class Sources {
  /** `send` takes a message to the server. */
  constructor(send) {
    this.send = send;
    this.state = null;
    this.name = null;
    this.control = false;
    this.problem = null;
    this.open = false;
    this.thumbnails = new Map();
    byId("source-stop").onclick = () => this.choose({ stop: true });
    byId("source-change").onclick = () => {
      this.open = !this.open;
      this.show();
    };
    byId("source-open").onsubmit = (event) => {
      event.preventDefault();
      const address = byId("source-address").value.trim();
      if (address) this.choose({ open: address });
    };
  }

  choose(message) {
    this.problem = null;
    this.open = false;
    this.send(message);
    this.show();
  }

  take(message) {
    this.last = message;
    this.state = message.state;
    this.name = message.now?.name ?? null;
    if (message.state !== "idle") this.problem = null;
    this.show();
  }

  /** Keep the picture of the running source, as a thumbnail for when another one runs. */
  remember(picture) {
    const thumbnail = this.thumbnails.get(this.last?.now?.key);
    if (this.state !== "running" || this.last.now.kind === "scene" || !thumbnail || !picture.width) return;
    thumbnail.getContext("2d").drawImage(picture, 0, 0, thumbnail.width, thumbnail.height);
    thumbnail.hidden = false;
  }

  refused(error) {
    this.problem = error;
    this.show();
  }

  show() {
    const { last } = this;
    if (!last) return;
    byId("sources").hidden = false;
    const idle = last.state === "idle";
    const choosing = this.control && (idle || this.open);
    byId("source-now").textContent = last.now ? [last.now.name, last.now.note].filter(Boolean).join(" · ") : "none is chosen";
    byId("source-stop").hidden = idle || !this.control;
    byId("source-change").hidden = idle || !this.control;
    byId("source-change").setAttribute("aria-expanded", String(choosing));
    byId("source-choices").hidden = !choosing;
    byId("source-open").hidden = !last.free;
    const problem = this.problem ?? last.error;
    const words = problem ?? last.remark ?? (this.control ? "" : "This page only shows the run; it is started elsewhere.");
    writeNote("source-note", words, Boolean(problem));
    byId("source-note").hidden = !words;
    const key = JSON.stringify([last.offered, last.now?.key]);
    if (key === this.shown) return;
    this.shown = key;
    byId("source-groups").replaceChildren(...KINDS.flatMap(([kind, title]) => this.group(kind, title)));
  }

  group(kind, title) {
    const offered = this.last.offered.filter((one) => one.kind === kind);
    if (!offered.length) return [];
    const list = make("ul", { ariaLabel: title }, ...offered.map((one) => this.entry(one)));
    return [make("div", {}, make("h3", {}, title), list)];
  }

  /** The drawn scene itself, or the last picture of the source. */
  thumbnail(one) {
    if (!this.thumbnails.has(one.key)) {
      const [width, height] = THUMBNAIL;
      const scene = one.kind === "scene";
      this.thumbnails.set(one.key, scene ? make("img", { width, height, alt: "", loading: "lazy", src: `/scene/${one.name}` }) : make("canvas", { width, height, hidden: true, ariaHidden: "true" }));
    }
    return this.thumbnails.get(one.key);
  }

  entry(one) {
    const note = one.problem ?? one.note;
    const words = make("span", {}, one.name, ...(note ? [make("small", {}, note)] : []));
    const button = make("button", { type: "button", disabled: Boolean(one.problem), title: one.problem ?? "", onclick: () => this.choose({ choose: one.key }) }, this.thumbnail(one), words);
    setPressed(button, one.key === this.last.now?.key);
    return make("li", {}, button);
  }
}
