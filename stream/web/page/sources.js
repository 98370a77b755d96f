// The source of the run, where viewers choose it: what is offered, what runs, and why the last one ended.

const KINDS = [["named", "Named sources"], ["browser", "This browser"], ["camera", "Cameras of the server"], ["scene", "Drawn scenes"]];
const THUMBNAIL = [64, 36];
const byId = (id) => document.getElementById(id);

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
    byId("source-note").textContent = words;
    byId("source-note").hidden = !words;
    byId("source-note").classList.toggle("bad", Boolean(problem));
    const key = JSON.stringify([last.offered, last.now?.key]);
    if (key === this.shown) return;
    this.shown = key;
    byId("source-groups").replaceChildren(...KINDS.flatMap(([kind, title]) => this.group(kind, title)));
  }

  group(kind, title) {
    const offered = this.last.offered.filter((one) => one.kind === kind);
    if (!offered.length) return [];
    const list = document.createElement("ul");
    list.setAttribute("aria-label", title);
    list.append(...offered.map((one) => this.entry(one)));
    const box = document.createElement("div");
    box.append(Object.assign(document.createElement("h3"), { textContent: title }), list);
    return [box];
  }

  /** The drawn scene itself, or the picture that was seen last. */
  thumbnail(one) {
    if (!this.thumbnails.has(one.key)) {
      const scene = one.kind === "scene";
      const made = document.createElement(scene ? "img" : "canvas");
      Object.assign(made, { width: THUMBNAIL[0], height: THUMBNAIL[1], hidden: !scene });
      if (scene) Object.assign(made, { alt: "", loading: "lazy", src: `/scene/${one.name}` });
      else made.setAttribute("aria-hidden", "true");
      this.thumbnails.set(one.key, made);
    }
    return this.thumbnails.get(one.key);
  }

  entry(one) {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.setAttribute("aria-pressed", String(one.key === this.last.now?.key));
    const words = Object.assign(document.createElement("span"), { textContent: one.name });
    const note = one.problem ?? one.note;
    if (note) words.append(Object.assign(document.createElement("small"), { textContent: note }));
    button.append(this.thumbnail(one), words);
    button.disabled = Boolean(one.problem);
    button.onclick = () => this.choose({ choose: one.key });
    const item = document.createElement("li");
    item.append(button);
    return item;
  }
}
