// All cameras of a page: picture, state and newest answer of each, over one connection; each links to its own page.

import { byId, make, onResize, setDisabled, setPressed, writeNote, writeState } from "./dom.js";
import { drawOutlines, regionsOf, tilePx } from "./layers.js";
import { Link, NewestPicture, UNLINKED } from "./link.js";
import { Past } from "./past.js";
import { onKeys, readView, startTheme, writeView } from "./settings.js";
import { isIll, STATE_WORDS, stateOfHealth } from "./states.js";
import { pixelRatio } from "./tiles.js";
import { timeOf } from "./times.js";

const PICTURES_A_SECOND = 5;
const PICTURES_OF_ALL = 60;
const WIDTHS = [320, 640, 1280];
const STALE_MS = 1000;

startTheme();
const view = readView();
const page = { linked: "connecting", tiles: new Map() };

/** One camera: what is shown of it, and its part of the page. */
class Tile {
  constructor(name) {
    Object.assign(this, { name, run: null, shown: 0, drawnMs: null, health: null, status: null, speaking: null, shapes: [], tile: 32 });
    this.newest = new NewestPicture((frame) => this.draw(frame), () => link.send({ camera: name, ok: 1 }));
    this.picture = make("canvas", { className: "picture", width: 0, height: 0, role: "img", ariaLabel: `Picture of ${name}` });
    this.waiting = make("p", { className: "waiting" }, "no picture yet");
    this.badge = make("p", { className: "badge", hidden: true });
    this.stage = make("div", { className: "stage" }, this.picture, this.waiting, this.badge);
    this.words = make("span");
    this.state = make("p", { className: "state" }, make("span", { className: "dot" }), this.words);
    this.facts = make("p", { className: "facts" });
    this.answer = make("p", { className: "answer-text" });
    this.own = make("p", { className: "own", hidden: true });
    this.root = make("a", { className: "tile" }, this.stage, make("div", { className: "bar" }, make("h2", {}, name), this.state, this.facts), this.answer, this.own);
    this.item = make("li", {}, this.root);
    this.showAddress();
  }

  /** Apply the layers of this page. */
  showAddress() {
    const given = new URLSearchParams(location.search);
    given.set("camera", this.name);
    this.root.href = `/?${given}`;
  }

  hello(message) {
    if (this.run !== null && this.run !== message.run) {
      Object.assign(this, { health: null, status: null, speaking: null });
      this.answer.textContent = "";
    }
    Object.assign(this, { run: message.run, number: message.number, shapes: message.shapes, tile: message.tile_px });
  }

  receive(message) {
    switch (message.topic) {
      case "status": this.status = message; break;
      case "health": this.health = message; break;
      case "stats": this.facts.textContent = message.answers || message.frames ? `${message.fps.toFixed(1)} /s · ${message.tokens} tokens` : ""; break;
      case "history": this.say(message.events.filter((event) => event.topic === "answer").at(-1)); break;
      case "answer": this.say(message); break;
      case "cancelled": case "invalid": case "unchanged": this.speaking = null; break;
      case "text": {
        const before = this.speaking?.answer === message.answer ? this.speaking.text : "";
        this.speaking = { ...message, text: before + message.text };
        this.say(this.speaking);
      }
    }
  }

  say(answer) {
    if (answer?.topic === "answer") this.speaking = null;
    if (!answer) return;
    this.answer.replaceChildren(make("time", {}, timeOf(answer)), answer.text.trim());
  }

  get stateNow() {
    if (page.linked !== "connected") return ["reconnecting", null];
    return this.health ? stateOfHealth(this.health) : ["connecting", null];
  }

  showState() {
    const [state, reason] = this.stateNow;
    const failed = state === "ended" && isIll(state, reason);
    this.state.dataset.state = failed ? "failed" : state;
    const word = failed ? "failed" : (STATE_WORDS[state] ?? state);
    const words = reason ? `${word}: ${reason}` : word;
    if (this.words.textContent !== words) this.words.textContent = this.words.title = words;
    this.waiting.textContent = state === "ended" ? "no picture" : "no picture yet";
    const waited = this.drawnMs === null ? 0 : performance.now() - this.drawnMs;
    const stale = waited > STALE_MS;
    this.stage.classList.toggle("stale", stale);
    this.badge.hidden = !stale;
    if (stale) this.badge.textContent = `no new picture for ${(waited / 1000).toFixed(0)} s`;
  }

  draw(frame) {
    const { picture } = this;
    if (picture.width !== frame.width || picture.height !== frame.height) [picture.width, picture.height] = [frame.width, frame.height];
    const context = picture.getContext("2d", { alpha: false });
    context.drawImage(frame.bitmap, 0, 0);
    frame.bitmap.close();
    if (view.layers.has("t")) {
      context.globalAlpha = view.opacity / 100;
      const scale = Math.max(1, frame.width / (this.stage.clientWidth || frame.width));
      drawOutlines(context, regionsOf(frame, this.shapes), tilePx(frame, this.tile, frame.width), view.hidden, scale);
      context.globalAlpha = 1;
    }
    this.drawnMs = performance.now();
    this.shown++;
    this.waiting.hidden = true;
  }
}

const handlers = {
  hello(message) {
    if (message.past) page.past ??= new Past(byId("past"));
    if (message.cameras.join("\n") !== [...page.tiles.keys()].join("\n")) {
      page.tiles = new Map(message.cameras.map((name) => [name, new Tile(name)]));
      byId("grid").replaceChildren(...[...page.tiles.values()].map((tile) => tile.item));
      const columns = Math.ceil(Math.sqrt(page.tiles.size));
      byId("grid").style.setProperty("--columns", columns);
      byId("grid").style.setProperty("--rows", Math.ceil(page.tiles.size / columns));
    }
    page.tiles.get(message.camera).hello(message);
    byId("ask").hidden = !message.control;
    showWishes();
  },
  asked: (message) => showAsked(message.error ? `${message.camera}: refused: ${message.error}` : "", Boolean(message.error)),
  refused: (message) => showAsked(message.camera ? `${message.camera}: ${message.error}` : message.error, true),
};

const link = new Link({
  onMessage(message) {
    handlers[message.topic]?.(message);
    page.tiles.get(message.camera)?.receive(message);
    if (["status", "health"].includes(message.topic)) showState();
    if (["answer", "match", "outage"].includes(message.topic)) page.past?.changed();
  },
  onPicture(frame) {
    [...page.tiles.values()].find((tile) => tile.number === frame.camera)?.newest.take(frame);
  },
  onState(state) {
    page.linked = state;
    setDisabled(byId("ask-button"), state === "connected" ? "" : UNLINKED);
    showState();
  },
});

/** Pictures as wide as they are shown, and less often the more cameras there are. */
function showWishes() {
  const widest = Math.max(...[...page.tiles.values()].map((tile) => tile.stage.clientWidth)) * pixelRatio();
  link.send({ width: WIDTHS.find((width) => width >= widest) ?? WIDTHS.at(-1), rate: Math.min(PICTURES_A_SECOND, PICTURES_OF_ALL / page.tiles.size) });
}

function showState() {
  const tiles = [...page.tiles.values()];
  for (const tile of tiles) tile.showState();
  const ill = tiles.filter((tile) => isIll(...tile.stateNow)).length;
  const linked = { connected: null, connecting: "connecting", lost: "reconnecting: the program does not answer", crowded: "full: this page has as many viewers as it can; it tries again" }[page.linked];
  const state = page.linked !== "connected" ? { crowded: "refused", lost: "reconnecting" }[page.linked] ?? "connecting" : ill ? "stalled" : "ok";
  const words = linked ?? `${tiles.length} cameras${ill ? `, ${ill} not well` : ""}`;
  writeState(state, words);
  document.title = `${words} · ARR-COC Stream`;
  byId("facts").textContent = [...new Set(tiles.map((tile) => tile.status?.model).filter(Boolean))].join(", ");
  const questions = new Set(tiles.map((tile) => tile.status?.query).filter(Boolean));
  for (const tile of tiles) {
    tile.own.hidden = questions.size < 2 || !tile.status?.query;
    tile.own.textContent = tile.status?.query ?? "";
  }
  if (!byId("asked").classList.contains("bad")) byId("asked").textContent = questions.size > 1 ? "The cameras have different questions." : questions.size ? `The question now: ${[...questions][0]}` : "";
}

function showAsked(text, bad) {
  writeNote("asked", text, bad);
  if (!bad) showState();
}

function turnTiles() {
  view.layers.has("t") ? view.layers.delete("t") : view.layers.add("t");
  setPressed(byId("layer-t"), view.layers.has("t"));
  writeView(view);
  for (const tile of page.tiles.values()) tile.showAddress();
}

onKeys({ t: ["tiles", turnTiles], "/": ["go to the question", () => byId("question").focus()] });
byId("layer-t").onclick = turnTiles;
setPressed(byId("layer-t"), view.layers.has("t"));
byId("ask").onsubmit = (event) => {
  event.preventDefault();
  const query = byId("question").value.trim();
  if (!query) return;
  byId("question").value = "";
  writeNote("asked", `Asking all: ${query}`);
  link.send({ ask: query });
};
onResize(showWishes);
setInterval(showState, 500);

globalThis.fleet = { page, link };
