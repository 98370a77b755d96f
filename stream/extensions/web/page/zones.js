// Zones over the picture: those of the run, and one that is drawn by pointer or keys, copied as TOML or saved.

import { byId, setDisabled, setPressed, writeNote } from "./dom.js";
import { pixelRatio } from "./tiles.js";

const CLOSE_PX = 12; // a click this near to the first corner closes the polygon
const STEP = 0.01, LONG_STEP = 0.1; // of the picture, for an arrow key, and with Shift
const POINTS_MAX = 256;
const MOVES = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
const COLOURS = { mask: "255,110,100", more: "120,230,150", less: "255,200,90", same: "130,180,255" };

const inside = (value) => Math.min(1, Math.max(0, value));
const share = (value) => String(Number(value.toFixed(3)));
const colourOf = (zone) => COLOURS[zone.mask ? "mask" : zone.weight > 1 ? "more" : zone.weight < 1 ? "less" : "same"];

/** The table of a zone in a configuration file. */
export function tomlOf({ name, points, weight, mask }) {
  const corners = points.map(([x, y]) => `[${share(x)}, ${share(y)}]`).join(", ");
  const rest = mask ? "mask = true" : `weight = ${weight.toFixed(2).replace(/0$/, "")}`;
  return `[zones.${name}]\npoints = [${corners}]\n${rest}\n`;
}

export class Zones {
  /** `stage` has the picture; it calls `draw` with its layers. `saving` gives, once it is needed, what saves a zone. */
  constructor(stage, saving) {
    this.stage = stage;
    this.active = this.closed = false;
    this.ofRun = [];
    this.points = [];
    this.cursor = this.hover = null;
    stage.zones = this;
    byId("zones-button").onclick = () => this.turn();
    byId("zone-close").onclick = () => this.close();
    byId("zone-undo").onclick = () => this.undo();
    byId("zone-anew").onclick = () => this.startAnew();
    byId("zone-copy").onclick = () => this.copy();
    byId("zone-save").onclick = async () => (await saving()).zone(this.drawn.name, byId("zone-toml").value);
    for (const id of ["zone-name", "zone-weight", "zone-mask"]) byId(id).oninput = () => this.update();
    // before the stage's own listeners, which describe tiles
    const listen = (kind, call) => stage.root.addEventListener(kind, (event) => this.active && call(event), { capture: true });
    listen("pointerdown", (event) => event.stopImmediatePropagation());
    listen("pointermove", (event) => this.follow(event));
    listen("click", (event) => this.click(event));
    listen("keydown", (event) => this.key(event));
    this.update();
  }

  /** Take the zones of the run. */
  show(zones) {
    this.ofRun = zones;
    this.stage.drawLayers();
  }

  turn() {
    this.active = !this.active;
    setPressed(byId("zones-button"), this.active);
    byId("zones").hidden = !this.active;
    this.stage.root.classList.toggle("drawing", this.active);
    this.stage.point(null);
    this.update();
  }

  startAnew() {
    this.points = [];
    this.closed = false;
    this.cursor = this.hover = null;
    this.update();
  }

  /** Shares of the picture under the pointer. */
  placeOf(event) {
    const { picture, frame, mirrored } = this.stage;
    const box = picture.getBoundingClientRect();
    if (!frame || !box.width) return null;
    const across = mirrored ? box.right - event.clientX : event.clientX - box.left;
    return [inside(across / box.width), inside((event.clientY - box.top) / box.height)];
  }

  follow(event) {
    event.stopImmediatePropagation();
    this.hover = event.pointerType === "mouse" ? this.placeOf(event) : null;
    this.cursor = null;
    this.stage.drawLayers();
  }

  click(event) {
    const place = this.placeOf(event);
    if (!place || this.closed) return;
    const { width, height } = this.stage.picture.getBoundingClientRect();
    const [first] = this.points;
    const isFirst = this.points.length > 2 && Math.hypot((place[0] - first[0]) * width, (place[1] - first[1]) * height) < CLOSE_PX;
    event.detail > 1 || isFirst ? this.close() : this.add(place);
  }

  add(place) {
    if (this.closed || this.points.length >= POINTS_MAX) return;
    this.points.push(place);
    this.update();
  }

  undo() {
    if (this.closed) this.closed = false;
    else this.points.pop();
    this.update();
  }

  close() {
    this.closed = this.points.length > 2;
    this.update(this.closed ? "" : "A polygon has three corners or more.");
    if (this.closed) byId("zone-name").focus();
  }

  key(event) {
    const step = MOVES[event.key];
    const act = { Enter: () => this.add(this.cursor ?? [0.5, 0.5]), Backspace: () => this.undo(), c: () => this.close() }[event.key];
    if ((!step && !act) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    if (!step) return act();
    const [x, y] = this.cursor ?? [0.5, 0.5];
    const far = event.shiftKey ? LONG_STEP : STEP;
    this.cursor = [inside(x + (this.stage.mirrored ? -step[0] : step[0]) * far), inside(y + step[1] * far)];
    this.hover = null;
    this.update(`Cross at ${Math.round(100 * this.cursor[0])} %, ${Math.round(100 * this.cursor[1])} %; Enter sets a corner.`);
  }

  get drawn() {
    const mask = byId("zone-mask").checked;
    const weight = Math.min(4, Math.max(0, Number(byId("zone-weight").value)));
    return { name: byId("zone-name").value, points: this.points, weight, mask };
  }

  /** What is still to be done. */
  get advice() {
    const count = this.points.length;
    if (!count) return "Click on the corners of a zone, one after another.";
    if (!this.closed) return `${count} ${count === 1 ? "corner" : "corners"}. A double click, or the first corner again, closes the polygon.`;
    if (!byId("zone-name").checkValidity()) return "Give it a name: letters, digits, _ and -.";
    return "Save it, or put it into the configuration; it counts from the next start on.";
  }

  update(words = "") {
    const ready = this.closed && byId("zone-name").checkValidity();
    setDisabled(byId("zone-weight"), byId("zone-mask").checked ? "A mask has no weight" : "");
    for (const id of ["zone-undo", "zone-anew"]) setDisabled(byId(id), this.points.length ? "" : "It has no corner yet");
    setDisabled(byId("zone-close"), this.closed ? "It is closed" : this.points.length < 3 ? "A zone has three corners or more" : "");
    for (const id of ["zone-copy", "zone-save"]) setDisabled(byId(id), ready ? "" : this.advice);
    byId("zone-toml").hidden = !ready;
    byId("zone-toml").value = ready ? tomlOf(this.drawn) : "";
    writeNote("zone-note", words || this.advice);
    this.stage.drawLayers();
  }

  async copy() {
    const text = byId("zone-toml");
    text.select();
    try {
      await navigator.clipboard.writeText(text.value); // absent without HTTPS
    } catch {
      if (!document.execCommand("copy")) return writeNote("zone-note", "This browser copies nothing; the text is selected.");
    }
    writeNote("zone-note", "Copied. Put it into the configuration; it counts from the next start on.");
  }

  draw(context, width, height) {
    if (!this.active) return;
    const ratio = pixelRatio();
    for (const zone of this.ofRun) this.drawOne(context, zone, width, height, ratio, true);
    const { hover, cursor } = this;
    const end = !this.closed && this.points.length && (cursor ?? hover);
    const points = end ? [...this.points, end] : this.points;
    if (points.length) this.drawOne(context, { ...this.drawn, points }, width, height, ratio, this.closed);
    context.fillStyle = "#fff";
    for (const [x, y] of this.points) context.fillRect(x * width - 3 * ratio, y * height - 3 * ratio, 6 * ratio, 6 * ratio);
    if (cursor) {
      context.strokeStyle = "#fff";
      context.lineWidth = 2 * ratio;
      context.beginPath();
      for (const [x, y] of [[10, 0], [0, 10]]) {
        context.moveTo(cursor[0] * width - x * ratio, cursor[1] * height - y * ratio);
        context.lineTo(cursor[0] * width + x * ratio, cursor[1] * height + y * ratio);
      }
      context.stroke();
    }
  }

  drawOne(context, zone, width, height, ratio, closed) {
    const corners = zone.points.map(([x, y]) => [x * width, y * height]);
    context.beginPath();
    for (const corner of corners) context.lineTo(...corner);
    if (closed) context.closePath();
    context.fillStyle = `rgba(${colourOf(zone)},${zone.mask ? 0.45 : 0.22})`;
    if (closed) context.fill("evenodd");
    for (const [style, line] of [["rgba(10,14,20,.7)", 4], [`rgb(${colourOf(zone)})`, 2]]) {
      [context.strokeStyle, context.lineWidth] = [style, line * ratio];
      context.stroke();
    }
    if (!closed) return;
    const words = [zone.name, zone.mask ? "mask" : `×${share(zone.weight)}`].filter(Boolean).join(" ");
    context.font = `${13 * ratio}px system-ui, sans-serif`;
    const [wide, high] = [context.measureText(words).width + 10 * ratio, 20 * ratio];
    const left = Math.min(width - wide, ...corners.map(([x]) => x));
    const top = Math.min(height - high, ...corners.map(([, y]) => y));
    context.fillStyle = "rgba(10,14,20,.8)";
    context.fillRect(left, top, wide, high);
    context.fillStyle = "#fff";
    context.fillText(words, left + 5 * ratio, top + 14.5 * ratio);
  }
}
