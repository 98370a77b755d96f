// The message of an inspection: the maps of a frame's tiles, its regions, and pictures of its mipmap levels; see docs/web.md.

import { readJson } from "./untrusted.js";

const HEADER_BYTES = 8;
const STEPS = 65535;

/** One number for each tile, from `low` to `high`. */
class TileMap {
  constructor({ group, low, high }, steps) {
    Object.assign(this, { group, low, high, steps });
  }

  at(tile) {
    return this.low + (this.steps[tile] / STEPS) * (this.high - this.low);
  }

  /** Lowest and highest of its values. */
  reach() {
    const value = (step) => this.low + (step / STEPS) * (this.high - this.low);
    return [value(this.steps.reduce((a, b) => Math.min(a, b))), value(this.steps.reduce((a, b) => Math.max(a, b)))];
  }

  /** Place of a tile among all, 1 for the highest value. */
  rank(tile) {
    return 1 + this.steps.reduce((count, step) => count + (step > this.steps[tile] ? 1 : 0), 0);
  }
}

export class Inspection {
  /** Throws if the message has a reason instead of an inspection. */
  static read(buffer) {
    const length = new DataView(buffer).getUint32(4, true);
    const head = readJson(new TextDecoder().decode(new Uint8Array(buffer, HEADER_BYTES, length)));
    if (head.error) throw new Error(head.error);
    const made = new Inspection();
    Object.assign(made, { head, rows: head.rows, cols: head.cols, width: head.width, height: head.height, level: 0, overview: head.overview, maps: new Map(), bitmaps: new Map() });
    let at = HEADER_BYTES + length;
    const take = (bytes) => buffer.slice(at, (at += bytes));
    for (const map of head.maps) made.maps.set(map.name, new TileMap(map, new Uint16Array(take(2 * head.rows * head.cols))));
    made.regions = new Int16Array(take(6 * head.regions));
    made.tokens = new Int16Array(take(10 * (head.group?.tokens ?? 0)));
    made.pictures = head.levels.map(({ level, type, bytes }) => [level, new Blob([take(bytes)], { type })]);
    return made;
  }

  /** Decode the pictures of its levels. */
  async decode() {
    await Promise.all(this.pictures.map(async ([level, blob]) => this.bitmaps.set(level, await createImageBitmap(blob))));
    this.pictures = null;
  }

  close() {
    for (const bitmap of this.bitmaps.values()) bitmap.close();
    this.bitmaps.clear();
  }
}
