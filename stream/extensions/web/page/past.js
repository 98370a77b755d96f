// The past: moments of the file of --remember, with their pictures, by words, time and camera.

import { clipAddress } from "./clips.js";
import { make } from "./dom.js";
import { clock, localTime } from "./times.js";
import { readJson } from "./untrusted.js";

const HOUR_MS = 3600000;
const DAY_MS = 24 * HOUR_MS;
const TIMES = [["the last hour", HOUR_MS], ["the last day", DAY_MS], ["the last 7 days", 7 * DAY_MS], ["any time", null]];
const REFRESH_MS = 10000;

const countOf = (count) => (count === 1 ? "1 moment" : `${count} moments`);

export class Past {
  /** `root`: the section of the page; `camera`: the name of the page's camera, shown at first; "" if it has no name,
   * undefined on a page of all cameras. */
  constructor(root, camera) {
    this.root = root;
    this.camera = camera ?? "";
    this.named = camera !== "";
    this.known = new Set();
    this.asked = 0;
    this.loadedMs = 0;
    this.span = null;
    this.paged = false;
    this.build();
    root.hidden = false;
    new IntersectionObserver((entries) => entries.some((one) => one.isIntersecting) && !this.loadedMs && this.search()).observe(root);
  }

  build() {
    this.words = make("input", { type: "search", id: "past-words", maxLength: 1000, placeholder: "Words, or “two words” beside each other", enterKeyHint: "search" });
    this.time = make("select", { ariaLabel: "Time" }, ...TIMES.map(([name], at) => new Option(name, at, at === 1, at === 1)));
    this.cameras = make("select", { ariaLabel: "Camera", hidden: true });
    this.form = make("form", { autocomplete: "off", role: "search" }, make("label", { htmlFor: "past-words" }, "Search"), this.words, this.time, this.cameras, make("button", { className: "main" }, "Search"));
    this.note = make("p", { className: "note", role: "status" });
    this.bars = make("div", { className: "spans", role: "group", ariaLabel: "Moments by time" });
    this.ends = make("p", { className: "ends note" }, make("span"), make("span"));
    this.list = make("ol", { className: "moments", ariaLabel: "Moments" });
    this.older = make("button", { type: "button", hidden: true }, "Older");
    this.all = make("button", { type: "button", className: "quiet", hidden: true }, "the whole time");
    const bar = make("div", { className: "bar" }, make("h2", { id: "past-title" }, "Past"), make("span", { className: "gap" }), this.all);
    this.root.replaceChildren(bar, this.form, this.note, this.bars, this.ends, this.list, this.older);
    this.form.onsubmit = (event) => {
      event.preventDefault();
      this.search();
    };
    for (const choice of [this.time, this.cameras]) choice.onchange = () => this.search();
    this.older.onclick = () => this.page();
    this.all.onclick = () => this.search();
  }

  /** Something new may be remembered: look again, if the newest is what is shown. */
  changed() {
    const idle = !this.words.value && !this.paged && this.span === null && !document.hidden && this.loadedMs;
    if (idle && performance.now() - this.loadedMs > REFRESH_MS) this.search();
  }

  /** Show what is found, from the newest on; `span`: within this part of the time only. */
  async search(span = null) {
    const length = TIMES[Number(this.time.value)][1];
    const query = new URLSearchParams({ words: this.words.value });
    const camera = this.cameras.options.length ? this.cameras.value : this.camera;
    if (camera) query.append("camera", camera);
    if (span) [["since", span[0]], ["until", span[1]]].forEach(([name, value]) => query.append(name, Math.round(value)));
    else if (length !== null) query.append("since", Date.now() - length);
    this.span = span;
    this.query = query;
    this.loadedMs = performance.now();
    const reply = await this.fetch(query);
    if (!reply) return;
    this.known.clear();
    this.paged = false;
    this.list.replaceChildren();
    this.all.hidden = span === null;
    this.showCameras(reply.cameras, camera);
    this.showSpans(reply);
    this.note.textContent = reply.count ? countOf(reply.count) : "Nothing is found.";
    this.show(reply);
  }

  /** Show the moments before the last one. */
  async page() {
    const query = new URLSearchParams(this.query);
    query.append("before", this.lastMs);
    this.paged = true;
    const reply = await this.fetch(query);
    if (reply) this.show(reply);
  }

  /** The reply to a request; null if it failed, or another one has followed. */
  async fetch(query) {
    const number = ++this.asked;
    this.note.classList.remove("bad");
    try {
      const response = await fetch(`/past?${query}`);
      const reply = readJson(await response.text());
      if (number !== this.asked) return null;
      if (response.ok) return reply;
      this.note.textContent = reply.error;
    } catch {
      if (number !== this.asked) return null;
      this.note.textContent = "The program does not answer.";
    }
    this.note.classList.add("bad");
    return null;
  }

  show({ moments, more }) {
    for (const moment of moments) {
      this.lastMs = moment.unix_ms;
      if (!this.known.has(moment.key)) this.list.append(this.entry(moment));
      this.known.add(moment.key);
    }
    this.older.hidden = !more;
  }

  showCameras(names, camera) {
    this.cameras.hidden = names.length < 2;
    const missing = camera && !names.includes(camera) ? [camera] : [];
    this.cameras.replaceChildren(new Option("all cameras", ""), ...[...names, ...missing].map((name) => new Option(name, name, false, name === camera)));
  }

  showSpans({ since, until, spans, count }) {
    const most = Math.max(...spans);
    const width = (until - since) / spans.length;
    const bars = spans.map((number, at) => {
      const [from, to] = [since + at * width, since + (at + 1) * width];
      const words = `${localTime(from)} to ${localTime(to)}: ${countOf(number)}`;
      const bar = make("button", { type: "button", title: words, ariaLabel: words, disabled: !number, onclick: () => this.search([from, to]) }, make("span"));
      bar.firstChild.style.height = `${number ? 10 + (90 * number) / most : 0}%`;
      return bar;
    });
    this.bars.replaceChildren(...bars);
    this.bars.hidden = this.ends.hidden = !count;
    this.ends.firstChild.textContent = localTime(since);
    this.ends.lastChild.textContent = localTime(until);
  }

  entry(moment) {
    const when = localTime(moment.unix_ms);
    const picture = moment.picture
      ? make("img", { src: moment.picture, alt: `${moment.camera} at ${when}`, loading: "lazy" })
      : make("span", { className: "none", ariaHidden: "true" }, moment.kind === "outage" ? "no picture" : "picture gone");
    const held = moment.times > 1 ? `${moment.times} times until ${localTime(moment.last_ms)}` : null;
    const match = moment.kind === "match" ? `match, ${Math.round(100 * moment.yes)} % yes` : null;
    const meta = [moment.camera, match, `at ${clock(moment.pts_s)}`, held].filter(Boolean).join(" · ");
    const clip = moment.clip_video ?? moment.clip_picture;
    const facts = make("p", { className: "meta" }, meta, ...(clip ? [" · ", make("a", { href: clipAddress(clip, this.named ? moment.camera : "") }, "clip")] : []));
    const text = make("p", {}, make("time", { dateTime: new Date(moment.unix_ms).toISOString() }, when), moment.text.trim());
    return make("li", { className: moment.kind, title: moment.question }, picture, make("div", {}, text, facts));
  }
}
