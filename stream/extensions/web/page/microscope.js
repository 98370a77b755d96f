// The texture microscope: every map that a frame's allocation was made from, over the picture, and a tile's values in all.

import { byId, make, setDisabled, setPressed, writeNote, writeState } from "./dom.js";
import { download, onFile } from "./files.js";
import { Inspection } from "./inspection.js";
import { drawOutlines, heatTable, regionAt, regionsOf, tilePx, tokensOf } from "./layers.js";
import { remember, remembered, startKeys, startTheme, writeAddress } from "./settings.js";
import { fitCanvases, nextTile, pixelRatio, tileAt } from "./tiles.js";
import { readJson } from "./untrusted.js";

const RETRY_MS = 1000;
const REFUSAL_MS = 5000; // live frames go on meanwhile
const GROUPS = { texture: "Texture", scores: "Scores", relevance: "Relevance", memory: "What answers taught", change: "Change and motion" };
const CHOICE = "relevance, blended";
const short = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(3)).replace("-0.000", "0.000");

startTheme();
const stage = byId("stage");
const given = new URLSearchParams(location.search);
const view = { map: given.get("map") ?? CHOICE, regions: given.get("tiles") !== "0", relative: given.get("scale") === "relative", opacity: Number(given.get("op") ?? 60) };
if (given.has("camera")) byId("to-live").href = `/?camera=${encodeURIComponent(given.get("camera"))}`;
const scope = { shown: null, frozen: false, picture: null, pointer: null, pinned: null, rounds: 0, busy: false, refusalEnds: 0 };

function remembersView() {
  writeAddress(["map", view.map, CHOICE], ["tiles", view.regions ? "" : "0"], ["scale", view.relative ? "relative" : ""], ["op", String(view.opacity), "60"]);
}

function showState(state, words, facts = "") {
  writeState(state, words);
  byId("facts").textContent = facts;
}

const levels = () => (byId("mips-box").open ? "012345" : "0");

/** Ask for one inspection; the newest frame's, or that of a picture. */
async function ask(picture) {
  const address = picture ? "/microscope/picture" : "/microscope/frame";
  const camera = given.has("camera") ? `&camera=${encodeURIComponent(given.get("camera"))}` : "";
  const reply = await fetch(`${address}?levels=${levels()}${camera}`, picture ? { method: "POST", body: picture } : {});
  if (!reply.ok) throw new Error((await reply.text().then(readJson).catch(() => ({}))).error ?? `the program answers ${reply.status}`);
  return Inspection.read(await reply.arrayBuffer());
}

/** Inspect repeatedly, one request at a time, and not while the page is hidden or its content is frozen. */
async function watch() {
  for (;;) {
    const begun = performance.now();
    await new Promise((done) => requestAnimationFrame(done));
    if (!scope.frozen && !scope.picture && !scope.busy) {
      try {
        const seen = await ask(null);
        if (!scope.frozen && !scope.picture) await show(seen);
        else seen.close();
      } catch (error) {
        if (!scope.picture) showState("reconnecting", error.message === "Failed to fetch" ? "the program does not answer" : error.message);
        await new Promise((done) => setTimeout(done, RETRY_MS));
      }
    }
    const left = 1000 / Number(byId("rate").value) - (performance.now() - begun);
    await new Promise((done) => setTimeout(done, Math.max(30, left)));
  }
}

async function look(picture) {
  if (scope.busy) return;
  scope.busy = true;
  scope.refusalEnds = 0;
  showState("loading", `looking at ${picture.name || "the picture"} …`);
  try {
    const seen = await ask(picture);
    scope.picture = picture;
    byId("live").hidden = false;
    setDisabled(byId("freeze"), "This is a picture, not the run");
    await show(seen);
  } catch (error) {
    writeNote("verdict", error.message, true);
    scope.refusalEnds = performance.now() + REFUSAL_MS;
    showState("refused", "not a picture that can be looked at");
  }
  scope.busy = false;
}

function backToTheRun() {
  scope.picture = null;
  byId("live").hidden = true;
  setDisabled(byId("freeze"), "");
  setFrozen(false);
}

function setFrozen(frozen) {
  scope.frozen = frozen;
  setPressed(byId("freeze"), frozen);
  if (scope.shown) showShown();
}

async function show(seen) {
  await seen.decode();
  scope.shown?.close();
  scope.shown = seen;
  seen.all = regionsOf(seen, seen.head.shapes);
  seen.held = tokensOf(seen, seen.head.shapes);
  scope.rounds++;
  byId("waiting").hidden = true;
  if (performance.now() >= scope.refusalEnds) byId("verdict").classList.remove("bad"); // long enough to be read
  if (!seen.maps.has(view.map)) view.map = CHOICE;
  showShown();
  layMaps();
  drawPicture();
  drawMaps();
  drawMips();
  showTile();
}

function showShown() {
  const { head } = scope.shown;
  const facts = [`${head.width}×${head.height}`, `${head.tokens} of ${head.rows * head.cols} tokens`, head.strategy, head.profile];
  if (head.query) facts.push(`“${head.query}”`);
  if (head.group) facts.push(`memory: ${head.group.tokens} tokens, ${head.group.appended} new, ${head.group.superseded} superseded`);
  const words = scope.picture ? scope.picture.name || "a picture" : `${scope.frozen ? "frozen" : "live"} · frame ${head.frame_index} · ${head.media_s?.toFixed(1)} s`;
  showState(scope.picture || scope.frozen ? "kept" : "ok", words, facts.join(" · "));
  byId("badge").hidden = !(scope.frozen || scope.picture);
  byId("badge").textContent = scope.picture ? "a picture of your own" : "frozen";
}

function fit() {
  const { shown } = scope;
  if (!shown) return;
  stage.style.aspectRatio = `${shown.width} / ${shown.height}`;
  fitCanvases(stage, byId("picture"), byId("layers"), shown);
  drawLayers();
}

function drawPicture() {
  const { shown } = scope;
  const picture = byId("picture");
  [picture.width, picture.height] = [shown.head.width, shown.head.height];
  picture.getContext("2d", { alpha: false }).drawImage(shown.bitmaps.get(0), 0, 0, shown.head.width, shown.head.height);
  fit();
}

function drawLayers() {
  const { shown } = scope;
  const layers = byId("layers");
  const context = layers.getContext("2d");
  context.clearRect(0, 0, layers.width, layers.height);
  const map = shown.maps.get(view.map);
  const side = tilePx(shown, shown.head.tile_px, layers.width);
  if (map) {
    context.globalAlpha = view.opacity / 100;
    context.imageSmoothingEnabled = false;
    context.drawImage(coloured(map, shown, ...bounds(map, view.relative)), 0, 0, shown.cols * side, shown.rows * side);
    context.globalAlpha = 1;
  }
  if (view.regions) drawOutlines(context, shown.head.group ? shown.held : shown.all, side, new Set(), pixelRatio());
  const tile = scope.pinned ?? scope.pointer;
  if (tile) {
    for (const [width, colour] of [[4, "#000"], [2, "#fff"]]) {
      [context.lineWidth, context.strokeStyle] = [width, colour];
      context.strokeRect(tile[1] * side, tile[0] * side, side, side);
    }
  }
  showScale(map);
}

/** Lowest and highest value that the colours spread over. */
function bounds(map, relative) {
  if (!relative) return [map.low, map.high];
  const [low, high] = map.reach();
  const most = Math.max(Math.abs(low), Math.abs(high), 1e-6);
  return map.low < 0 ? [-most, most] : [low, Math.max(high, low + 1e-6)];
}

function colourOf(share, signed) {
  const at = Math.max(0, Math.min(255, Math.round(255 * share)));
  if (!signed) return heatTable.subarray(3 * at, 3 * at + 3);
  const away = Math.abs(2 * share - 1);
  const end = share < 0.5 ? [60, 130, 255] : [255, 110, 50];
  return end.map((value) => 25 + (value - 25) * Math.min(1, away));
}

function coloured(map, { rows, cols }, low, high) {
  const canvas = make("canvas", { width: cols, height: rows });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(cols, rows);
  for (let at = 0; at < rows * cols; at++) {
    pixels.data.set(colourOf((map.at(at) - low) / (high - low), map.low < 0), 4 * at);
    pixels.data[4 * at + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function showScale(map) {
  byId("scale").hidden = !map;
  if (!map) return;
  const [low, high] = bounds(map, view.relative);
  byId("scale-low").textContent = short(low);
  byId("scale-high").textContent = short(high);
  byId("scale-name").textContent = view.map;
  byId("scale-bar").getContext("2d").drawImage(coloured({ at: (step) => step, low: map.low }, { rows: 1, cols: 256 }, 0, 255), 0, 0);
}

/** Titles of the groups of maps, each with its maps' names. */
function groups() {
  return Object.entries(GROUPS).map(([group, title]) => [title, [...scope.shown.maps.keys()].filter((name) => scope.shown.maps.get(name).group === group)]).filter(([, names]) => names.length);
}

/** Make a button for each map if the maps have changed. */
function layMaps() {
  const names = [...scope.shown.maps.keys()].join("|");
  if (byId("maps").dataset.names === names) return;
  byId("maps").dataset.names = names;
  byId("maps").replaceChildren();
  for (const [title, names] of groups()) {
    byId("maps").append(make("div", {}, make("h3", { className: "group-title" }, title), make("div", { className: "row" }, ...names.map(mapButton))));
  }
}

function mapButton(name) {
  const onclick = () => choose(view.map === name ? "" : name);
  const button = make("button", { className: "map", type: "button", onclick }, make("canvas", { ariaHidden: "true" }), make("b", {}, name), make("span"));
  button.dataset.map = name;
  return button;
}

function choose(name) {
  view.map = name;
  remembersView();
  drawLayers();
  markChosen();
  showTile();
}

function markChosen() {
  for (const button of byId("maps").querySelectorAll(".map")) setPressed(button, button.dataset.map === view.map);
}

function drawMaps() {
  const { shown } = scope;
  for (const button of byId("maps").querySelectorAll(".map")) {
    const map = shown.maps.get(button.dataset.map);
    const [low, high] = map.reach();
    const small = coloured(map, shown, ...bounds(map, true));
    const [canvas, , range] = button.children;
    [canvas.width, canvas.height] = [shown.cols, shown.rows];
    canvas.getContext("2d").drawImage(small, 0, 0);
    const weight = shown.head.weights[button.dataset.map];
    range.textContent = `${short(low)} … ${short(high)}${weight === undefined ? "" : ` · weight ${weight.toFixed(2)}`}`;
  }
  markChosen();
}

function drawMips() {
  const { shown } = scope;
  const row = byId("mips");
  if (row.children.length !== 6) {
    row.replaceChildren(...[0, 1, 2, 3, 4, 5].map((level) => make("div", { className: "mip" }, make("canvas", { role: "img", ariaLabel: `Mipmap level ${level}` }), make("p"))));
  }
  for (const [level, box] of [...row.children].entries()) {
    const bitmap = shown.bitmaps.get(level);
    box.hidden = !bitmap;
    if (!bitmap) continue;
    const [canvas, words] = box.children;
    [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    words.textContent = `level ${level} · ${bitmap.width}×${bitmap.height} · a tile is ${shown.head.tile_px >> level}×${shown.head.tile_px >> level}`;
  }
}

const DULL = 0.1; // as in arr_coc/texture/regions.py

/** What the cover of a frame is refined by: the sum over a square's tiles of (relevance + 0.1)³. */
function worthOf(relevance, { top, left, bottom, right }) {
  let sum = 0;
  for (let row = top; row < bottom; row++) {
    for (let col = left; col < right; col++) sum += (relevance.at(row * scope.shown.cols + col) + DULL) ** 3;
  }
  return sum;
}

/** The squares that were split, each in two by two: those around every square region of the cover. */
function splitSquares(regions) {
  const found = new Map();
  for (const one of regions) {
    for (let size = 2 * 2 ** one.level; size <= 32; size *= 2) {
      const [top, left] = [Math.floor(one.top / size) * size, Math.floor(one.left / size) * size];
      found.set(`${size} ${top} ${left}`, { top, left, bottom: Math.min(top + size, scope.shown.rows), right: Math.min(left + size, scope.shown.cols), size });
    }
  }
  const coarsest = Math.max(...regions.map((one) => 2 ** one.level));
  return [...found.values()].filter(({ size }) => size <= coarsest);
}

/** Why a tile is not shown in full detail, by the strategy that chose the regions. */
function whyNotFiner(relevance, at, one, rank) {
  const { head, all, maps } = scope.shown;
  const chosen = all.filter((region) => !region.overview);
  const other = maps.has("worth exploring") ? "had not been shown for longest (explore), or were shown before (steadiness)" : "were shown before (steadiness)";
  if (head.strategy === "grid") return "Coverage: there is no structure to choose by, so every n-th tile is shown, whatever its relevance.";
  if (["uniform", "random"].includes(head.strategy)) return `The strategy ${head.strategy} chooses without relevance.`;
  if (head.strategy === "fixation") return "Distance: detail falls off from the one place of most relevance.";
  if (head.strategy === "foveated" && one && !one.overview) {
    if (!one.square) return "A line of text: one token shows two of its tiles.";
    const worth = worthOf(relevance, one);
    const splits = splitSquares(chosen.filter((region) => region.square)).map((square) => worthOf(relevance, square));
    const less = splits.filter((split) => split < worth).length;
    const words = [`Budget and neighbours: the ${head.tokens} tokens cover the whole frame, and squares of most worth are split, the sum of (relevance + 0.1)³ over their tiles. The square of this tile has ${short(worth)}`];
    if (!splits.length) return `${words[0]}; none could be split.`;
    words.push(less ? `, and ${less} of ${splits.length} split squares had less: they ${other}.` : `; the least that was split has ${short(Math.min(...splits))}.`);
    return words.join("");
  }
  const tiles = chosen.filter((region) => region.level === 0).length;
  if (rank > tiles) return `Budget: ${tiles} ${tiles === 1 ? "tile is" : "tiles are"} shown in full detail, and ${rank - 1} ${rank === 2 ? "is" : "are"} more relevant.`;
  if (head.strategy === "mixed") return `Coverage and diversity: of the tiles with less that are shown, a share is spread evenly over the frame (coverage), and others ${other}.`;
  return `Diversity: the tiles with less that are shown ${other}.`;
}

/** Why a tile is shown as it is, in words. */
function verdictOf(row, col) {
  const { shown } = scope;
  const relevance = shown.maps.get(CHOICE);
  const at = row * shown.cols + col;
  const one = regionAt(shown.all, row, col);
  const fine = shown.all.filter((region) => region.level === 0);
  const [rank, tiles] = [relevance.rank(at), shown.rows * shown.cols];
  const words = [];
  if (!one) words.push("Not shown: no token covers it.");
  else if (one.overview) words.push(`Shown in the overview only, at level ${one.level}.`);
  else if (one.level === 0) words.push("Shown at full detail.");
  else words.push(`Shown coarsely, at level ${one.level}: one token for ${one.bottom - one.top}×${one.right - one.left} tiles.`);
  words.push(`Its relevance of ${short(relevance.at(at))} is number ${rank} of ${tiles}; there are ${shown.head.tokens} tokens.`);
  if (fine.length && (!one || one.level > 0)) {
    const least = Math.min(...fine.map((region) => relevance.at(region.top * shown.cols + region.left)));
    words.push(`The least relevant tile at full detail has ${short(least)}.`);
  }
  if (!one || one.level > 0) words.push(whyNotFiner(relevance, at, one, rank));
  const scores = Object.entries(shown.head.weights).filter(([name]) => shown.maps.has(name));
  const [most] = scores.sort(([, a], [, b]) => b - a);
  if (most) words.push(`What counts most here is ${most[0]} (${most[1].toFixed(2)} of the balance), of which this tile has ${short(shown.maps.get(most[0]).at(at))}.`);
  return words.join(" ");
}

/** Whether the model's memory shows a tile, and since when; empty without a memory. */
function memoryOf(row, col) {
  const { head, held } = scope.shown;
  if (!head.group) return "";
  const here = held.filter((one) => one.top <= row && row < one.bottom && one.left <= col && col < one.right);
  const detail = (one) => (one.level ? `at level ${one.level}` : "at full detail");
  const best = here.filter((one) => one.state !== "superseded").sort((a, b) => a.level - b.level)[0];
  const old = here.filter((one) => one.state === "superseded").sort((a, b) => b.since - a.since);
  const words = [];
  if (best) words.push(best.state === "new" ? `New to the memory, ${detail(best)}.` : `In the memory since ${best.since.toFixed(1)} s, ${detail(best)}.`);
  if (old.length) words.push(`Superseded: as it was at ${old.map((one) => `${one.since.toFixed(1)} s`).slice(0, 3).join(", ")}.`);
  return words.length ? words.join(" ") : "Not in the memory.";
}

function showTile() {
  const { shown } = scope;
  const tile = scope.pinned ?? scope.pointer;
  if (!shown || byId("verdict").classList.contains("bad")) return;
  byId("values").hidden = !tile;
  byId("tile-title").textContent = tile ? `Tile in row ${tile[0]}, column ${tile[1]}${scope.pinned ? " · stays" : ""}` : "Tile";
  byId("verdict").textContent = tile ? [verdictOf(...tile), memoryOf(...tile)].filter(Boolean).join(" ") : "Point at a tile, or click one to stay there.";
  if (!tile) return;
  const at = tile[0] * shown.cols + tile[1];
  const body = byId("values").tBodies[0];
  if (body.dataset.names !== byId("maps").dataset.names) layValues(body);
  for (const line of body.querySelectorAll("tr[data-map]")) {
    const map = shown.maps.get(line.dataset.map);
    line.children[1].textContent = short(map.at(at));
    line.children[2].textContent = map.rank(at);
    line.classList.toggle("chosen", line.dataset.map === view.map);
  }
}

function layValues(body) {
  body.dataset.names = byId("maps").dataset.names;
  body.replaceChildren();
  for (const [title, names] of groups()) {
    body.append(make("tr", { className: "group" }, make("th", { scope: "rowgroup", colSpan: 3 }, title)));
    for (const name of names) {
      const button = make("button", { type: "button", onclick: () => choose(name) }, name);
      const line = make("tr", {}, make("th", { scope: "row" }, button), make("td"), make("td"));
      line.dataset.map = name;
      body.append(line);
    }
  }
}

function point(tile) {
  scope.pointer = tile;
  if (!scope.shown || scope.pinned) return;
  drawLayers();
  showTile();
}

function pin(tile) {
  const same = scope.pinned && tile && scope.pinned[0] === tile[0] && scope.pinned[1] === tile[1];
  scope.pinned = same ? null : tile;
  drawLayers();
  showTile();
}

function saveValues() {
  const { shown } = scope;
  if (!shown) return;
  const names = [...shown.maps.keys()];
  const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
  const lines = [["row", "column", "level", ...names.map(quoted)].join(",")];
  for (let at = 0; at < shown.rows * shown.cols; at++) {
    const [row, col] = [Math.floor(at / shown.cols), at % shown.cols];
    lines.push([row, col, regionAt(shown.all, row, col)?.level ?? "", ...names.map((name) => shown.maps.get(name).at(at).toPrecision(5))].join(","));
  }
  download(new Blob([lines.join("\n"), "\n"], { type: "text/csv" }), `tiles-${shown.head.frame_index}.csv`);
}

const pointed = (event) => scope.shown && tileAt(event, byId("picture"), scope.shown, scope.shown.head.tile_px);
stage.onpointermove = (event) => point(pointed(event));
stage.onpointerleave = () => point(null);
stage.onclick = (event) => scope.shown && pin(pointed(event));
stage.onkeydown = (event) => {
  const tile = nextTile(event, scope.pinned ?? scope.pointer ?? [0, -1], scope.shown);
  if (!tile) return;
  scope.pinned = tile;
  drawLayers();
  showTile();
};
onFile(stage, byId("file"), look);
byId("open").onclick = () => byId("file").click();
byId("live").onclick = backToTheRun;
byId("freeze").onclick = () => setFrozen(!scope.frozen);
byId("save").onclick = saveValues;

function turn(name) {
  view[name] = !view[name];
  showView();
}

function showView() {
  setPressed(byId("regions"), view.regions);
  setPressed(byId("relative"), view.relative);
  byId("opacity").value = view.opacity;
  remembersView();
  if (scope.shown) drawLayers();
}

byId("regions").onclick = () => turn("regions");
byId("relative").onclick = () => turn("relative");
byId("opacity").oninput = ({ target }) => {
  view.opacity = Number(target.value);
  showView();
};
byId("rate").value = remembered("microscope-rate", "2");
byId("rate").onchange = ({ target }) => remember("microscope-rate", target.value);
startKeys({
  " ": ["freeze; the run goes on", () => scope.picture || setFrozen(!scope.frozen)], t: ["tiles", () => turn("regions")],
  r: ["colours over the map’s own values", () => turn("relative")], s: ["save the values of all tiles", saveValues], "← → ↑ ↓": ["on the picture: move over its tiles"],
});
new ResizeObserver(fit).observe(stage);
showView();
watch();
window.scope = scope;
