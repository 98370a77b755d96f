// The picture and its layers: draws the newest frame, describes a tile, freezes, saves, and marks an old picture.

import { byId, make, setPressed } from "./dom.js";
import { download } from "./files.js";
import { drawAsModelSees, drawDetections, drawDimming, drawHeat, drawOutlines, regionAt, regionsOf, relevanceOf, tilePx } from "./layers.js";
import { NewestPicture } from "./link.js";
import { fitCanvases, nextTile, pixelRatio, tileAt } from "./tiles.js";

const STALE_MS = 1000;
const SMALLEST_WIDTH = 640;
const DETAIL = ["full", "half", "quarter", "⅛", "1⁄16", "1⁄32"];
const RESOLUTION = DETAIL.map((share) => `${share} resolution`);
const MODEL_VIEW = document.createElement("canvas");

export class Stage {
  /** `view` has the viewer's layers; `clock` its difference from the program's; `sent` is called for each picture that has been drawn. */
  constructor(view, clock, sent) {
    this.view = view;
    this.clock = clock;
    this.newest = new NewestPicture((frame) => this.show(frame), sent);
    this.root = byId("stage");
    this.picture = byId("picture");
    this.layers = byId("layers");
    this.shapes = [];
    this.tile = 32;
    this.frame = null;
    this.frozen = this.mirrored = false;
    this.quiet = null;
    this.pointer = null;
    this.why = null;
    this.detections = null;
    this.shown = 0;
    this.drawnMs = 0;
    new ResizeObserver(() => this.fit()).observe(this.root);
    for (const kind of ["pointermove", "pointerdown"]) {
      this.root.addEventListener(kind, (event) => this.frame && this.point(tileAt(event, this.picture, this.frame, this.tile, this.mirrored)));
    }
    this.root.addEventListener("pointerleave", () => this.point(null));
    this.root.addEventListener("keydown", (event) => this.move(event));
    this.root.addEventListener("blur", () => this.point(null));
  }

  /** Milliseconds since the capture of a frame. */
  age(frame) {
    return Date.now() - frame.captureMs - this.clock.differenceMs;
  }

  show(frame) {
    this.drawnMs = performance.now();
    this.lastAgeMs = this.age(frame);
    this.shown++;
    if (this.frozen) {
      frame.bitmap.close();
      return;
    }
    this.frame?.bitmap.close();
    this.frame = frame;
    frame.all = regionsOf(frame, this.shapes);
    byId("waiting").hidden = true;
    this.draw();
  }

  /** Show no picture: those so far are another run's. */
  clear() {
    this.newest.clear();
    this.frame?.bitmap.close();
    this.frame = this.pointer = this.why = null;
    this.locate(null);
    this.lastAgeMs = undefined;
    for (const canvas of [this.picture, this.layers]) canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    this.picture.width = this.picture.height = 0;
    this.root.classList.remove("stale");
    byId("badge").hidden = byId("tip").hidden = true;
    byId("waiting").hidden = false;
    byId("legend").replaceChildren();
    Object.assign(byId("legend").dataset, { key: "", levels: "" });
    this.setFrozen(false);
  }

  /** Show why there is no picture, in its place. */
  showWaiting(words, camera) {
    const text = { "no source": "choose a source", opening: camera ? "waiting for a viewer’s camera" : "opening the source" }[words];
    byId("waiting").textContent = text ?? "no picture yet";
  }

  /** Show the picture mirrored. Tiles keep their numbers, and the saved picture is not mirrored. */
  setMirrored(mirrored) {
    this.mirrored = mirrored;
    this.root.classList.toggle("mirrored", mirrored);
    this.drawLayers();
    this.showTile();
  }

  fit() {
    if (!this.frame) return;
    fitCanvases(this.root, this.picture, this.layers, this.frame);
    this.drawLayers();
  }

  draw() {
    const { frame, picture } = this;
    if (!frame) return;
    if (picture.width !== frame.width || picture.height !== frame.height) {
      [picture.width, picture.height] = [frame.width, frame.height];
      this.root.style.aspectRatio = `${frame.width} / ${frame.height}`;
      this.fit();
    }
    const context = picture.getContext("2d", { alpha: false });
    if (this.view.layers.has("m")) drawAsModelSees(context, frame.bitmap, frame, frame.all, this.tile);
    else context.drawImage(frame.bitmap, 0, 0);
    this.drawLayers();
    this.showTile();
  }

  drawLayers() {
    const { frame, layers } = this;
    if (!frame) return;
    const context = layers.getContext("2d");
    context.clearRect(0, 0, layers.width, layers.height);
    this.drawOn(context, layers.width, pixelRatio());
    this.zones?.draw(context, layers.width, layers.height);
    this.showLegend();
  }

  drawOn(context, width, ratio) {
    const { frame, view } = this;
    const side = tilePx(frame, this.tile, width);
    context.globalAlpha = view.opacity / 100;
    if (view.layers.has("d")) drawDimming(context, frame, frame.all, side);
    if (view.layers.has("h")) drawHeat(context, frame, side, view.relative);
    if (view.layers.has("t")) drawOutlines(context, frame.all, side, view.hidden, ratio);
    context.globalAlpha = 1;
    if (view.boxes && this.detections) drawDetections(context, this.detections, width, ratio, this.mirrored && context.canvas === this.layers);
    if (this.pointer) {
      const one = regionAt(frame.all, ...this.pointer);
      const [top, left, bottom, right] = one ? [one.top, one.left, one.bottom, one.right] : [...this.pointer, this.pointer[0] + 1, this.pointer[1] + 1];
      context.lineWidth = 2.5 * ratio;
      context.strokeStyle = "#fff";
      context.strokeRect(left * side, top * side, (right - left) * side, (bottom - top) * side);
    }
  }

  /** Show the boxes and points of the newest answer; null if it has none. */
  locate(detections) {
    this.detections = detections;
    if (detections) byId("layer-b").hidden = false;
    this.drawLayers();
  }

  showLegend() {
    const counts = [0, 0, 0, 0, 0, 0];
    for (const one of this.frame.all) if (!one.overview) counts[one.level]++;
    const key = this.view.layers.has("t") ? counts.map((count, level) => (count ? `${level}:${count}` : "")).join() : "";
    const legend = byId("legend");
    if (legend.dataset.key === key) return;
    const had = legend.dataset.levels;
    legend.dataset.key = key;
    const levels = counts.map((_, level) => level).filter((level) => key && (counts[level] || this.view.hidden.has(level)));
    if (had !== String(levels)) {
      legend.dataset.levels = String(levels);
      legend.replaceChildren(...levels.map((level) => this.legendButton(level)));
    }
    for (const button of legend.children) {
      const level = Number(button.dataset.level);
      setPressed(button, !this.view.hidden.has(level));
      button.lastChild.data = `${DETAIL[level]} ${counts[level]}`;
      button.setAttribute("aria-label", `${DETAIL[level]} ${counts[level]}: tokens of ${RESOLUTION[level]}`);
    }
  }

  legendButton(level) {
    const shows = level ? `${2 ** level} tiles on its longer side` : "one tile";
    const title = `A token of ${RESOLUTION[level]} shows ${shows}`;
    const button = make("button", { type: "button", title, onclick: () => this.onLevel(level) }, make("span", { className: `swatch l${level}` }), "");
    button.dataset.level = level;
    return button;
  }

  move(event) {
    if (event.key === "Escape") this.point(null);
    const tile = this.frame && nextTile(event, this.pointer ?? [Math.floor(this.frame.rows / 2), Math.floor(this.frame.cols / 2)], this.frame, this.mirrored);
    if (tile) this.point(tile);
  }

  point(tile) {
    this.pointer = tile;
    this.drawLayers();
    this.showTile();
  }

  showTile() {
    const tip = byId("tip");
    tip.hidden = !this.pointer || !this.frame;
    if (tip.hidden) return;
    const { frame } = this;
    const [row, col] = this.pointer;
    if (row >= frame.rows || col >= frame.cols) return;
    const one = regionAt(frame.all, row, col);
    const facts = [["relevance", (frame.relevance[row * frame.cols + col] / 255).toFixed(2)]];
    let title = "not shown";
    if (one) {
      const [tall, wide] = [one.bottom - one.top, one.right - one.left];
      title = one.overview ? `overview, ${RESOLUTION[one.level]}` : RESOLUTION[one.level];
      if (tall * wide > 1) {
        title += ` · ${tall}×${wide} tiles`;
        facts.push(["of the whole part", relevanceOf(frame, one).toFixed(2)]);
      }
      facts.push(...this.reasons(one));
    }
    const list = make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
    tip.replaceChildren(make("b", {}, title), ` · row ${row}, column ${col}`, list);
    this.placeTip(tip);
  }

  placeTip(tip) {
    const box = this.picture.getBoundingClientRect();
    const root = this.root.getBoundingClientRect();
    const side = tilePx(this.frame, this.tile, box.width);
    const [row, col] = this.pointer;
    const right = this.mirrored ? box.right - col * side : box.left + (col + 1) * side;
    const [x, y] = [right - root.left + 10, box.top - root.top + (row + 1) * side + 10];
    const left = x + tip.offsetWidth > root.width ? x - tip.offsetWidth - side - 20 : x;
    const top = y + tip.offsetHeight > root.height ? y - tip.offsetHeight - side - 20 : y;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }

  /** Scores of a region at the last answer, if the run explains its tokens (--why). */
  reasons(region) {
    const index = this.why?.tokens.findLastIndex((one) => one.level === region.shape && one.row === region.row && one.col === region.col);
    const [found, kept] = [this.why?.tokens[index], this.why?.memory?.[index]];
    if (!found) return this.why ? [["at the last answer", "not shown so"]] : [];
    const weight = (name) => (name in this.why.weights ? ` × ${this.why.weights[name].toFixed(2)}` : "");
    return [
      ["rank at the last answer", `${found.rank} of ${this.why.tokens.length}`],
      ...Object.entries(found.scores).map(([name, score]) => [name, `${score.toFixed(2)}${weight(name)}`]),
      ["from before", (found.memory + 0).toFixed(2).replace("-0.00", "0.00")],
      ...(kept ? [["in the memory", kept.state === "new" ? "new" : `since ${kept.since_s.toFixed(1)} s${kept.state === "superseded" ? ", superseded" : ""}`]] : []),
    ];
  }

  /** Show how old the picture is; `quiet` explains why none comes. */
  showAge() {
    if (!this.frame) return;
    const waited = performance.now() - this.drawnMs;
    const stale = waited > STALE_MS;
    this.root.classList.toggle("stale", stale && !this.frozen);
    const badge = byId("badge");
    badge.hidden = !stale && !this.frozen;
    const age = this.frozen ? this.age(this.frame) : waited + (this.lastAgeMs ?? 0);
    const words = this.frozen ? "frozen" : this.quiet ?? "no new picture";
    badge.textContent = `${words} · ${(age / 1000).toFixed(age < 10000 ? 1 : 0)} s old`;
  }

  setFrozen(frozen) {
    this.frozen = frozen;
    setPressed(byId("freeze"), frozen);
    this.showAge();
  }

  /** Width of pictures that suits this window. */
  wantedWidth() {
    return this.root.clientWidth * pixelRatio() <= SMALLEST_WIDTH ? 640 : 1280;
  }

  save() {
    if (!this.frame) return;
    const whole = MODEL_VIEW;
    [whole.width, whole.height] = [this.frame.width, this.frame.height];
    const context = whole.getContext("2d");
    context.drawImage(this.picture, 0, 0);
    this.drawOn(context, whole.width, Math.max(1, whole.width / 1000));
    whole.toBlob((blob) => download(blob, `frame-${this.frame.index}.png`), "image/png");
  }
}
