// Connection to the run: one WebSocket that is opened again when it is lost, and the layout of its messages.

import { readJson } from "./untrusted.js";

export const UNLINKED = "The program does not answer";

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 4000;
const HEADER_BYTES = 48;
const CROWDED = 4001;

/** Read a picture message; see docs/web.md. */
export function readPicture(buffer) {
  const view = new DataView(buffer);
  const u16 = (at) => view.getUint16(at, true);
  const u32 = (at) => view.getUint32(at, true);
  const frame = {
    codec: view.getUint8(1), level: view.getUint8(2), camera: view.getUint8(3), index: u32(4),
    captureMs: view.getFloat64(8, true), mediaS: view.getFloat64(16, true),
    width: u16(24), height: u16(26), rows: u16(28), cols: u16(30), tokens: u16(32), overview: u16(34),
  };
  const lengths = [u32(36), u32(40), u32(44)];
  let at = HEADER_BYTES;
  const parts = lengths.map((length) => buffer.slice(at, (at += length)));
  frame.relevance = new Uint8Array(parts[0]);
  frame.regions = new Int16Array(parts[1]);
  frame.picture = parts[2];
  return frame;
}

const CLOCK_RESOLUTION_MS = 1;
const EXCHANGES_KEPT = 8;
const FIRST_EXCHANGES = 5;
const FIRST_EVERY_MS = 200;
const LATER_EVERY_MS = 10000;

/** The difference between this browser's clock and the program's, by exchanges of messages: the quickest of the last ones counts. */
export class ClockDifference {
  /** `send` takes a message to the program, which answers with its time. */
  constructor(send) {
    this.send = send;
    this.number = 0;
    this.sent = null;
    this.exchanges = [];
    this.differenceMs = 0;
  }

  start() {
    this.exchanges = [];
    this.left = FIRST_EXCHANGES;
    this.ask();
  }

  stop() {
    clearTimeout(this.timer);
    this.sent = null;
  }

  ask() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), this.left-- > 1 ? FIRST_EVERY_MS : LATER_EVERY_MS);
    this.sent = Date.now();
    this.send({ clock: ++this.number });
  }

  /** The reply to `ask`. The program's time was read between sending and receiving, so half the round trip bounds the error;
      within it the clocks may be one and the same, as they are on one host. */
  take({ clock, unix_ns }) {
    if (clock !== this.number || this.sent === null) return;
    const now = Date.now();
    const roundMs = Math.max(0, now - this.sent);
    this.exchanges.push({ roundMs, differenceMs: (this.sent + now) / 2 - unix_ns / 1e6 });
    this.sent = null;
    if (this.exchanges.length > EXCHANGES_KEPT) this.exchanges.shift();
    const quickest = this.exchanges.reduce((a, b) => (b.roundMs < a.roundMs ? b : a));
    const sure = Math.abs(quickest.differenceMs) > quickest.roundMs / 2 + CLOCK_RESOLUTION_MS;
    this.differenceMs = sure ? quickest.differenceMs : 0;
  }
}

/** The newest picture that has come, drawn with the screen's next one. */
export class NewestPicture {
  /** `draw` takes a frame with its `bitmap`; `sent` confirms each frame, so that another one comes. */
  constructor(draw, sent) {
    Object.assign(this, { draw, sent, coming: null, epoch: 0 });
  }

  async take(frame) {
    const { epoch } = this;
    try {
      frame.bitmap = await createImageBitmap(new Blob([frame.picture], { type: "image/jpeg" }));
    } catch {
      this.sent();
      return;
    }
    if (this.coming) {
      this.coming.frame.bitmap.close();
      this.sent();
    } else {
      requestAnimationFrame(() => this.drawComing());
    }
    this.coming = { frame, epoch };
  }

  drawComing() {
    const { frame, epoch } = this.coming;
    this.coming = null;
    this.sent();
    if (epoch === this.epoch) this.draw(frame);
    else frame.bitmap.close();
  }

  /** Discard the pictures that have come: they are another run's. */
  clear() {
    this.epoch++;
  }
}

export function openSocket(path) {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(`${scheme}//${location.host}${path}`);
  socket.binaryType = "arraybuffer";
  return socket;
}

export class Link {
  /** `on` has onMessage(object), onPicture(frame), onState("connected" | "lost" | "crowded", reason). */
  constructor(on, path = "/live") {
    Object.assign(this, { on, path, wait: FIRST_WAIT_MS, stopped: false });
    this.open();
  }

  open() {
    const camera = new URLSearchParams(location.search).get("camera");
    this.socket = openSocket(camera === null ? this.path : `${this.path}?camera=${encodeURIComponent(camera)}`);
    this.socket.onopen = () => {
      this.wait = FIRST_WAIT_MS;
      this.on.onState("connected");
    };
    this.socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.on.onMessage(readJson(data));
      else this.on.onPicture(readPicture(data));
    };
    this.socket.onclose = ({ code, reason }) => {
      this.on.onState(code === CROWDED ? "crowded" : "lost", reason);
      if (this.stopped) return;
      setTimeout(() => this.open(), code === CROWDED ? 5 * LONGEST_WAIT_MS : this.wait);
      this.wait = Math.min(2 * this.wait, LONGEST_WAIT_MS);
    };
  }

  /** Open the connection no more. */
  stop() {
    this.stopped = true;
  }

  get isOpen() {
    return this.socket.readyState === WebSocket.OPEN;
  }

  send(message) {
    if (this.isOpen) this.socket.send(JSON.stringify(message));
  }
}

/** The JSON of a reply; one with an `error` if none came. */
export async function request(address, options) {
  try {
    const reply = await fetch(address, options);
    return readJson(await reply.text());
  } catch {
    return { error: { message: "the program does not answer" } };
  }
}
