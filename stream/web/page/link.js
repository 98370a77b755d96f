// Connection to the run: one WebSocket that is opened again when it is lost, and the layout of its messages.

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

export class Link {
  /** `on` has onMessage(object), onPicture(frame), onState("connected" | "lost" | "crowded"). */
  constructor(on) {
    this.on = on;
    this.wait = FIRST_WAIT_MS;
    this.open();
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const camera = new URLSearchParams(location.search).get("camera");
    this.socket = new WebSocket(`${scheme}//${location.host}/live${camera === null ? "" : `?camera=${encodeURIComponent(camera)}`}`);
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => {
      this.wait = FIRST_WAIT_MS;
      this.on.onState("connected");
    };
    this.socket.onmessage = ({ data }) => {
      if (typeof data === "string") this.on.onMessage(JSON.parse(data));
      else this.on.onPicture(readPicture(data));
    };
    this.socket.onclose = ({ code }) => {
      this.on.onState(code === CROWDED ? "crowded" : "lost");
      setTimeout(() => this.open(), code === CROWDED ? 5 * LONGEST_WAIT_MS : this.wait);
      this.wait = Math.min(2 * this.wait, LONGEST_WAIT_MS);
    };
  }

  send(message) {
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }
}
