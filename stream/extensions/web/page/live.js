// The live page: brings the link, the picture, the answers, the question and the figures together.

import { Answers } from "./answers.js";
import { Camera } from "./camera.js";
import { Clips } from "./clips.js";
import { byId, make, onResize, setDisabled, setPressed, writeNote, writeState } from "./dom.js";
import { Figures } from "./figures.js";
import { ClockDifference, Link, UNLINKED } from "./link.js";
import { LAYERS, readView, remember, remembered, startKeys, startTheme, writeView } from "./settings.js";
import { Sources } from "./sources.js";
import { Stage } from "./stage.js";
import { STATE_WORDS, stateOfHealth } from "./states.js";
import { clock, localTime } from "./times.js";
import { Watches } from "./watches.js";
import { Zones } from "./zones.js";

const QUESTIONS_KEPT = 20;
const REMEMBERED = ["answer", "match", "outage"];
const WAITS = "The last question has not been taken yet";
const MARKED = ["cut", "outage", "restarted", "discontinuity"];

startTheme();
const view = readView();
const clockDifference = new ClockDifference((message) => link.send(message));
const stage = new Stage(view, clockDifference, () => link.send({ ok: 1 }));
const saving = async () => (run.saving ??= new (await import("./saving.js")).Saving(run.name ?? ""));
const zones = new Zones(stage, saving);
const watches = new Watches(saving);
const answers = new Answers();
const figures = new Figures();
const camera = new Camera();
const clips = new Clips();
const sources = new Sources((message) => link.send(message));
const questions = { past: remembered("questions", []), at: null, pending: null };
const run = { linked: "connecting", health: null, status: null, ended: null };
let shownBefore = 0;
let statsBefore = performance.now();

const handlers = {
  hello(message) {
    if (run.number !== undefined && run.number !== message.run) startAfresh();
    run.number = message.run;
    clips.camera = watches.camera = message.camera ?? "";
    watches.control = message.control;
    byId("watch-add").hidden = !message.control;
    byId("zone-save").hidden = !message.control;
    byId("to-compare").hidden = !message.compare || !message.control;
    sources.control = message.control;
    stage.shapes = message.shapes;
    stage.tile = message.tile_px;
    watches.show(message.watches);
    run.ended = null;
    zones.show(message.zones);
    byId("ask").hidden = !message.control;
    run.camera = message.browser_camera;
    byId("camera").hidden = !run.camera;
    showCameras(message.cameras, message.camera);
    if (message.past) showPast(message.camera ?? "");
    showMirror();
    if (!run.camera && camera.on) camera.stop("The camera is off.");
    if (!message.control) byId("asked").textContent = "This page only shows the run; it takes no questions.";
    showWidth();
  },
  sources(message) {
    sources.take(message);
    showState();
  },
  status(message) {
    run.status = message;
    byId("question").setAttribute("list", message.known_world ? "scene-presets" : "presets");
    showState();
    if (!questions.pending && byId("ask").hidden === false) showAsked(`The question now: ${message.query}`);
  },
  health(message) {
    run.health = message;
    showState();
  },
  stats(message) {
    const passed = (performance.now() - statsBefore) / 1000;
    const measured = passed > 0 && !document.hidden; // a hidden page draws nothing
    const own = { shown: measured ? (stage.shown - shownBefore) / passed : null, age: measured && stage.shown > shownBefore ? stage.lastAgeMs : null };
    [shownBefore, statsBefore] = [stage.shown, performance.now()];
    figures.add(message, own);
    showState();
  },
  viewers: ({ count }) => (byId("viewers").textContent = count === 1 ? "1 viewer" : `${count} viewers`),
  history: ({ events }) => answers.history(events),
  text: (message) => answers.text(message),
  match: (message) => clips.take(message),
  clip: (message) => clips.take(message),
  matches: ({ events }) => clips.history(events),
  look: (message) => watches.look(message),
  watches: (message) => watches.show(message.watches),
  why: (message) => (stage.why = message),
  answer: () => stage.locate(null),
  cut: () => stage.locate(null),
  discontinuity: () => stage.locate(null),
  detections: (message) => stage.locate(message),
  asked(message) {
    if (questions.pending !== null) {
      questions.pending = null;
      setDisabled(byId("ask-button"), "");
    }
    showAsked(message.error ? `Refused: ${message.error}` : `The question now: ${message.query}`, Boolean(message.error));
  },
  refused(message) {
    if (message.choice) return sources.refused(message.error);
    questions.pending = null;
    setDisabled(byId("ask-button"), "");
    showAsked(message.error, true);
  },
  clock: (message) => clockDifference.take(message),
  missed: ({ count }) => answers.add({ topic: "notice", code: "missed", message: `${count} messages came too fast for this page` }),
  summary(message) {
    run.ended = message.error ?? message.ended;
    showState();
  },
};

const link = new Link({
  onMessage(message) {
    handlers[message.topic]?.(message);
    if (!["history", "text"].includes(message.topic)) answers.add(message);
    if (REMEMBERED.includes(message.topic)) run.past?.changed();
    if (MARKED.includes(message.topic)) figures.mark(message.topic);
  },
  onPicture: (frame) => stage.newest.take(frame),
  onState(state) {
    run.linked = state;
    state === "connected" ? clockDifference.start() : clockDifference.stop();
    if (state === "lost") questions.pending = null;
    setDisabled(byId("ask-button"), state === "connected" ? "" : UNLINKED);
    showState();
  },
});

/** Links to the other cameras of this page, and to the grid of all. */
function showCameras(names, own) {
  run.name = own;
  if (own) byId("microscope").href = `/microscope?camera=${encodeURIComponent(own)}`;
  byId("cameras").hidden = names.length < 2;
  const cameras = names.map((name) => make("a", { className: "link", href: `/?camera=${encodeURIComponent(name)}`, ariaCurrent: name === own ? "page" : null }, name));
  byId("cameras").replaceChildren(make("a", { className: "link", href: "/" }, "All cameras"), ...cameras);
}

/** Another run has begun, or the present one is over: nothing of it is to look like the next one's. */
function startAfresh() {
  Object.assign(run, { health: null, status: null });
  questions.pending = null;
  setDisabled(byId("ask-button"), "");
  stage.clear();
  figures.clear();
  clips.clear();
  watches.show([]);
  byId("facts").textContent = "";
  showAsked("");
}

function stateOf() {
  if (run.linked === "crowded") return ["refused", "this page has as many viewers as it can; it tries again"];
  if (run.linked === "lost") return run.ended ? ["ended", `${run.ended}; the program is gone`] : ["reconnecting", "the program does not answer"];
  if (run.linked === "connected" && sources.state && sources.state !== "running") return [sources.state, sources.name];
  if (run.linked === "connecting" || !run.health) return ["connecting", null];
  return stateOfHealth(run.health);
}

function showState() {
  const [state, reason] = stateOf();
  const words = [STATE_WORDS[state] ?? state];
  if (state === "ok" && stage.frame) words.push(run.status?.live === false ? clock(stage.frame.mediaS).replace(/\.\d$/, "") : localTime(stage.frame.captureMs));
  writeState(state, reason ? `${words.join(" ")}: ${reason}` : words.join(" "));
  stage.quiet = ["ok", "loading", "connecting"].includes(state) ? null : STATE_WORDS[state];
  stage.showWaiting(STATE_WORDS[state] ?? state, run.camera);
  const status = run.status;
  document.title = `${STATE_WORDS[state]} · ${run.name || (run.camera ? "camera" : status?.source) || "ARR-COC Stream"}`;
  if (!status) return;
  const size = status.width_px ? `${status.width_px}×${status.height_px}` : null;
  byId("facts").textContent = byId("facts").title = [run.camera ? "a viewer’s camera" : status.source, size, status.model, status.backend].filter(Boolean).join(" · ");
}

const showAsked = (words, bad) => writeNote("asked", words, bad);

/** The past is loaded only for runs that remember it. */
async function showPast(camera) {
  const { Past } = await import("./past.js");
  run.past ??= new Past(byId("past"), camera);
}

function showWidth() {
  link.send({ width: stage.wantedWidth() });
}

function showLayers() {
  for (const name of LAYERS) setPressed(byId(`layer-${name}`), view.layers.has(name));
  setPressed(byId("layer-b"), view.boxes);
  byId("scale").hidden = !view.layers.has("h");
  setPressed(byId("scale"), view.relative);
  byId("opacity").value = view.opacity;
  writeView(view);
  stage.draw();
}

function showMirror() {
  setPressed(byId("mirror"), view.mirror);
  stage.setMirrored(view.mirror && Boolean(run.camera));
}

function turnLayer(name) {
  view.layers.has(name) ? view.layers.delete(name) : view.layers.add(name);
  showLayers();
}

function turnBoxes() {
  view.boxes = !view.boxes;
  showLayers();
}

function turnFull() {
  document.fullscreenElement ? document.exitFullscreen() : stage.root.requestFullscreen?.();
}

function ask(event) {
  event.preventDefault();
  const query = byId("question").value.trim();
  if (!query || questions.pending !== null) return;
  questions.pending = query;
  questions.past = [query, ...questions.past.filter((one) => one !== query)].slice(0, QUESTIONS_KEPT);
  questions.at = null;
  remember("questions", questions.past);
  byId("question").value = "";
  setDisabled(byId("ask-button"), WAITS);
  showAsked(`Asking: ${query}`);
  link.send({ ask: query });
}

function recall(event) {
  const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  if (!step || !questions.past.length) return;
  event.preventDefault();
  const at = (questions.at ?? -1) + step;
  questions.at = at < 0 ? null : Math.min(at, questions.past.length - 1);
  byId("question").value = questions.at === null ? "" : questions.past[questions.at];
}

startKeys({
  t: ["tiles", () => turnLayer("t")], h: ["heat map", () => turnLayer("h")], d: ["dim", () => turnLayer("d")],
  m: ["as the model sees it", () => turnLayer("m")], b: ["boxes of the answer", turnBoxes], " ": ["freeze; the run goes on", () => stage.setFrozen(!stage.frozen)],
  z: ["zones", () => zones.turn()], f: ["full screen", turnFull], s: ["save the picture", () => stage.save()], "/": ["go to the question", () => byId("question").focus()],
  "↑ ↓": ["in the question: recall earlier ones"], "← → ↑ ↓": ["on the picture: move over its tiles"],
});
for (const name of LAYERS) byId(`layer-${name}`).onclick = () => turnLayer(name);
byId("layer-b").onclick = turnBoxes;
stage.onLevel = (level) => {
  view.hidden.has(level) ? view.hidden.delete(level) : view.hidden.add(level);
  byId("legend").dataset.key = "";
  showLayers();
};
byId("scale").onclick = () => {
  view.relative = !view.relative;
  showLayers();
};
byId("mirror").onclick = () => {
  view.mirror = !view.mirror;
  writeView(view);
  showMirror();
};
byId("opacity").oninput = ({ target }) => {
  view.opacity = Number(target.value);
  showLayers();
};
byId("freeze").onclick = () => stage.setFrozen(!stage.frozen);
byId("full").onclick = turnFull;
byId("save").onclick = () => stage.save();
byId("ask").onsubmit = ask;
byId("question").onkeydown = recall;
onResize(showWidth);
setInterval(() => stage.showAge(), 250);
setInterval(() => stage.frame && sources.remember(stage.picture), 1000);
showLayers();

globalThis.live = { stage, zones, answers, figures, camera, clips, sources, run, link };
