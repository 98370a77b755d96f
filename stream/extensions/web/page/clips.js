// Matches of a run: a list with thumbnails, and a player.

import { byId, make } from "./dom.js";
import { clock, timeOf } from "./times.js";

const MATCHES_MAX = 100;

/** Address of a file of a match of a camera; "" for the only one, which has no name. */
export const clipAddress = (name, camera) => `/clips/${encodeURIComponent(name)}${camera ? `?camera=${encodeURIComponent(camera)}` : ""}`;

export class Clips {
  constructor() {
    this.section = byId("clips");
    this.list = byId("clip-list");
    this.player = byId("clip-player");
    this.camera = "";
    this.items = new Map();
    byId("clip-close").onclick = () => this.player.close();
    this.player.onclose = () => byId("clip-shown").replaceChildren();
    this.player.onclick = ({ target }) => target === this.player && this.player.close();
  }

  clear() {
    this.items.clear();
    this.list.replaceChildren();
    this.section.hidden = true;
    if (this.player.open) this.player.close();
  }

  history(events) {
    this.clear();
    for (const event of events) this.take(event);
  }

  /** A match, or what was written of it: the picture comes first, the video when it is complete. */
  take(event) {
    if (event.topic !== "match" && event.topic !== "clip") return;
    const match = { ...this.items.get(event.match)?.match, ...event, topic: "match" };
    const before = this.items.get(event.match);
    const item = this.itemOf(match);
    this.items.set(event.match, { match, item });
    before ? before.item.replaceWith(item) : this.list.prepend(item);
    if (this.items.size > MATCHES_MAX) this.forget(this.items.keys().next().value);
    this.section.hidden = false;
    byId("clip-count").textContent = this.items.size === 1 ? "1 match" : `${this.items.size} matches`;
  }

  forget(number) {
    this.items.get(number)?.item.remove();
    this.items.delete(number);
    this.section.hidden = !this.items.size;
  }

  itemOf(match) {
    const words = match.question ?? match.watch;
    const state = match.error ?? this.videoState(match);
    const parts = [make("span", {}, make("time", {}, timeOf(match)), " ", words, " ", make("small", {}, state))];
    if (match.picture) {
      const image = make("img", { src: this.placeOf(match.picture), alt: "", loading: "lazy" });
      image.onerror = () => this.forget(match.match); // it was deleted: the folder has a limit
      parts.unshift(image);
    }
    const empty = !match.picture && !match.video;
    const button = make("button", { type: "button", disabled: empty, title: empty ? "There is no picture of it and no video" : "" }, ...parts);
    button.onclick = () => this.show(match);
    return make("li", {}, button);
  }

  /** A match within the clip of another one has the same video. */
  videoState(match) {
    if (!match.video) return match.picture ? "the video is being written" : "";
    const first = [...this.items.values()].find((one) => one.match.video === match.video)?.match.match ?? match.match;
    return first < match.match ? `in the video of match ${first}` : "with video";
  }

  show(match) {
    const shown = match.video
      ? make("video", { src: this.placeOf(match.video), controls: true, autoplay: true, muted: true, playsInline: true, ariaLabel: "Clip of the match" })
      : make("img", { src: this.placeOf(match.picture), alt: "Picture of the match with the regions that the model was given" });
    if (match.video && match.picture) shown.poster = this.placeOf(match.picture);
    byId("clip-title").textContent = match.question ?? match.watch;
    const chance = match.yes === undefined ? "" : `${Math.round(100 * match.yes)} % yes`;
    byId("clip-facts").textContent = [this.camera, this.timesOf(match), chance, match.error].filter(Boolean).join(" · ");
    const links = [match.picture, match.video].filter(Boolean);
    byId("clip-links").replaceChildren(...links.map((name) => make("a", { href: this.placeOf(name), download: name }, name)));
    byId("clip-shown").replaceChildren(shown);
    this.player.showModal();
  }

  timesOf(match) {
    if (!match.video) return timeOf(match);
    return match.time ? `${timeOf(match)}, video of ${Math.round(match.end_s - match.start_s)} s` : `${clock(match.start_s)} to ${clock(match.end_s)}`;
  }

  placeOf(name) {
    return clipAddress(name, this.camera);
  }
}
