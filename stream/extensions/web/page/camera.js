// This browser's camera as the source of the run: asks for it, sends its pictures, and shows why it cannot.

import { byId, setPressed, writeNote } from "./dom.js";
import { openSocket } from "./link.js";

const QUALITY = 0.8;
const CREDITS = 2;
const IN_USE = 4002;

const PROBLEMS = {
  NotAllowedError: "The camera was not allowed. Allow it in the browser’s address bar, and try again.",
  NotFoundError: "This machine has no camera.",
  NotReadableError: "The camera is there, but another program uses it.",
  OverconstrainedError: "The camera has no such size.",
};
const INSECURE = "Browsers give their camera to secure pages only. Open the page at 127.0.0.1 (from another machine by ssh -L), or serve it with a certificate.";

/** Open this browser's camera. Throws an error whose message is why it cannot be used. */
export async function openCamera(video) {
  if (!navigator.mediaDevices?.getUserMedia) throw new Error(INSECURE);
  try {
    return await navigator.mediaDevices.getUserMedia({ video });
  } catch (error) {
    throw new Error(PROBLEMS[error.name] ?? `The camera cannot be used: ${error.message}`);
  }
}

export class Camera {
  constructor() {
    this.on = false;
    this.sent = 0;
    byId("camera-start").onclick = () => (this.on ? this.stop("The camera is off.") : this.start());
    for (const id of ["camera-device", "camera-size", "camera-rate"]) byId(id).onchange = () => this.on && this.restart();
  }

  showState(words, bad = false) {
    writeNote("camera-state", words, bad);
    byId("camera-start").textContent = this.on ? "Stop the camera" : "Start this browser’s camera";
    setPressed(byId("camera-start"), this.on);
  }

  async restart() {
    this.stop("Changing …");
    await this.start();
  }

  async start() {
    this.showState("Asking for the camera …");
    const [width, height] = byId("camera-size").value.split("×").map(Number);
    const device = byId("camera-device").value;
    this.rate = Number(byId("camera-rate").value);
    try {
      this.stream = await openCamera({ ...(device && { deviceId: { exact: device } }), width: { ideal: width }, height: { ideal: height }, frameRate: { ideal: this.rate } });
    } catch (error) {
      return this.showState(error.message, true);
    }
    this.on = true;
    this.stream.getVideoTracks()[0].onended = () => this.stop("The camera is gone.", true);
    this.video = Object.assign(document.createElement("video"), { muted: true, playsInline: true, srcObject: this.stream });
    await this.video.play();
    this.listDevices();
    this.connect();
  }

  connect() {
    this.credits = CREDITS;
    this.socket = openSocket("/camera");
    this.socket.onopen = () => {
      this.showState("Sending the camera’s pictures.");
      this.timer = setInterval(() => this.send(), 1000 / this.rate);
    };
    this.socket.onmessage = () => this.credits++;
    this.socket.onclose = ({ code, reason }) => {
      if (!this.on) return;
      this.stop(code === IN_USE ? "Another viewer’s camera is in use." : `The program takes no pictures now${reason ? `: ${reason}` : ""}.`, true);
    };
  }

  async send() {
    const { videoWidth: width, videoHeight: height } = this.video;
    if (this.credits < 1 || !width || this.socket.readyState !== WebSocket.OPEN) return;
    this.credits--;
    this.canvas ??= document.createElement("canvas");
    if (this.canvas.width !== width || this.canvas.height !== height) [this.canvas.width, this.canvas.height] = [width, height];
    this.canvas.getContext("2d", { alpha: false }).drawImage(this.video, 0, 0);
    const jpeg = await new Promise((done) => this.canvas.toBlob(done, "image/jpeg", QUALITY));
    if (!jpeg || this.socket.readyState !== WebSocket.OPEN) return;
    this.socket.send(new Blob([Uint16Array.of(width, height), jpeg]));
    this.sent++;
  }

  stop(words, bad = false) {
    this.on = false;
    clearInterval(this.timer);
    this.stream?.getTracks().forEach((track) => track.stop());
    this.socket?.close();
    this.showState(words, bad);
  }

  async listDevices() {
    const found = (await navigator.mediaDevices.enumerateDevices()).filter((one) => one.kind === "videoinput");
    const list = byId("camera-device");
    const chosen = list.value;
    list.replaceChildren(...found.map((one, at) => new Option(one.label || `camera ${at + 1}`, one.deviceId)));
    const current = chosen || this.stream.getVideoTracks()[0].getSettings().deviceId;
    list.value = found.some((one) => one.deviceId === current) ? current : (found[0]?.deviceId ?? "");
  }
}
