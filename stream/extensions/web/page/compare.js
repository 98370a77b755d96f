// The compare page: a picture, a question, columns of settings, and their answers side by side.

import { BlindVote } from "./blind.js";
import { openCamera } from "./camera.js";
import { Column, mb, ms, nameOf } from "./compare_columns.js";
import { byId, make, setDisabled, setPressed, writeNote, writeState } from "./dom.js";
import { download, onFile } from "./files.js";
import { drawBoxes } from "./layers.js";
import { Link, openSocket, readPicture, UNLINKED } from "./link.js";
import { LAYERS, startTheme, writeAddress } from "./settings.js";
import { readJson } from "./untrusted.js";
import { Votes } from "./votes.js";

const FIELDS = [["q", "question", ""], ["max", "max-tokens", "48"], ["seed", "seed", "0"]];
const RUNS = "The models are answering";
const DEFAULT_COLUMNS = ["full", "sparse"];

startTheme();
const page = { known: null, columns: [], picture: null, bitmap: null, boxes: [], number: null, running: null, settings: null, taking: 0, wanted: false };
const given = new URLSearchParams(location.search);
const SHOWN = [...LAYERS, "b"];
const USUAL = "tdb";
const view = new Set(SHOWN.filter((name) => (given.get("layers") ?? USUAL).includes(name)));

const blind = new BlindVote({ shown: showAnswers, voted: takeVote });
const showStatus = (words, bad) => writeNote("note", words, bad);
const showPictureNote = (words, bad) => writeNote("picture-note", words, bad);

/* The link to the server */

const handlers = {
  hello(message) {
    const first = !page.known;
    page.known = message;
    writeState("ok", "ready");
    if (!first) return;
    page.votes = new Votes((settings) => nameOf(settings, new Set([...message.models, settings.model]).size > 1), message.facts);
    readAddress();
    byId("max-tokens").max = message.limits.max_tokens;
    for (const { name, question, general } of message.examples) {
      byId(general ? "general-examples" : "examples").append(make("button", { type: "button", onclick: () => takeExample(name, question) }, name));
    }
    byId("own-questions").hidden = byId("layer-b").hidden = !message.questions.length;
    byId("own-question").append(new Option("choose", ""), ...message.questions.map(({ name, question }, at) => new Option(`${name}: ${question}`, at)));
    if (message.questions[given.get("n") - 1]) takeQuestion(given.get("n") - 1, !given.get("q"));
    const example = message.examples.find(({ name }) => name === given.get("example"));
    if (example) takeExample(example.name, given.get("q") ? null : example.question);
  },
  queued: ({ place }) => showStatus(place === 1 ? "Next, after the comparison that runs." : `Number ${place} of those that wait.`),
  begun() {
    page.columns.forEach((column) => column.clear());
    page.settings = page.columns.map((column) => column.settings);
    page.held = [];
    // which one answers first, and how fast, would show what it is
    if (blind.hides) page.columns.forEach((column) => column.showState("answering"));
    showStatus(blind.hides ? "Both are answering." : "Comparing, one column after the other.");
  },
  progress: ({ column, state }) => blind.hides || page.columns[column]?.showState(state === "loading" ? "loading the model" : state),
  text: ({ column, text }) => blind.hides || page.columns[column]?.addText(text),
  column(message) {
    if (blind.hides) return page.held.push(message);
    showAnswer(message);
    showTable();
  },
  ended(message) {
    page.held?.forEach(showAnswer);
    stop();
    message.verdicts?.forEach((verdict, number) => page.columns[number]?.showVerdict(verdict, page.asked.answer));
    for (const column of page.columns) if (!column.result && !column.error) column.clear();
    showStatus(message.error ?? (message.cancelled ? "Cancelled." : ""), Boolean(message.error));
    if (blind.hides && page.columns.every((column) => column.result)) blind.open();
    else if (blind.hides) blind.end();
    showTable();
    announce();
  },
  refused({ error }) {
    if (page.running === "asked") {
      stop();
      if (blind.hides) blind.end();
    }
    showStatus(error, true);
  },
};

function showAnswer(message) {
  const column = page.columns[message.column];
  if (message.error) column.showError(message.error);
  else column.show(message, page.asked.bitmap, page.asked.boxes);
}

function announce() {
  const answered = [...byId("columns").children].map((root) => page.columns.find((column) => column.root === root)).filter((column) => column.result);
  byId("announce").textContent = answered.map((column) => `${column.title.textContent}: ${column.result.text}`).join(". ");
}

const link = new Link({
  onMessage(message) {
    if (page.running === "asked" && ["queued", "begun"].includes(message.topic)) page.running = "taken";
    handlers[message.topic]?.(message);
  },
  onState(state, reason) {
    if (state === "connected") return;
    if (page.running) {
      stop();
      if (blind.hides) blind.end();
      showStatus("The program was lost; ask again when it is back.", true);
    }
    if (state === "crowded") writeState("refused", "this page has as many viewers as it can; it tries again");
    else if (reason) writeState("refused", reason);
    else writeState("reconnecting", "reconnecting: the program does not answer");
    setDisabled(byId("go"), UNLINKED);
    if (reason && state !== "crowded") link.stop();
  },
}, "/compare/socket");

/* The picture */

async function keepPicture(path, body) {
  showPictureNote("Taking the picture …");
  page.taking += 1;
  showReady();
  try {
    await takeKept(path, body);
  } finally {
    page.taking -= 1;
  }
  showReady();
  if (page.wanted && !page.taking) ask();
}

async function takeKept(path, body) {
  let reply;
  try {
    const answered = await fetch(path, { method: "POST", body });
    reply = readJson(await answered.text());
  } catch {
    reply = { error: "The picture could not be sent: the program does not answer, or refuses it." };
  }
  if (reply.error) {
    if (page.wanted) showStatus("");
    page.wanted = false;
    return showPictureNote(reply.error, true);
  }
  const blob = await (await fetch(`/compare/picture/${reply.picture}`)).blob();
  page.bitmap = await createImageBitmap(blob);
  page.picture = reply.picture;
  page.boxes = reply.boxes ?? [];
  const preview = byId("preview");
  [preview.width, preview.height] = [reply.width, reply.height];
  preview.getContext("2d").drawImage(page.bitmap, 0, 0);
  drawBoxes(preview.getContext("2d"), page.boxes, preview);
  preview.hidden = false;
  byId("drop-words").hidden = true;
  showPictureNote(`${reply.width}×${reply.height} pixels`);
}

async function takeFile(file) {
  const most = page.known?.limits.bytes;
  if (most && file.size > most) return showPictureNote(`A picture has at most ${Math.floor(most / 2 ** 20)} MiB; save it smaller.`, true);
  setExample(null);
  await keepPicture("/compare/picture", file);
}

async function takeExample(name, question) {
  if (question) byId("question").value = question;
  setExample(name);
  await keepPicture(`/compare/example/${encodeURIComponent(name)}`);
  writeChoices();
}

/** Take the picture of a question of the file; and that question, unless the address has another. */
async function takeQuestion(number, ask = true) {
  if (ask) byId("question").value = page.known.questions[number].question;
  setExample(null, number);
  await keepPicture(`/compare/question/${number}`);
  writeChoices();
}

function setExample(name, number = null) {
  page.example = name;
  page.number = number;
  byId("own-question").value = number ?? "";
  for (const button of document.querySelectorAll(".examples button")) setPressed(button, button.textContent === name);
  showKnown();
}

/** The answer to the example's own question; null for any other question or picture. */
function knownAnswer() {
  const words = (text) => text.toLowerCase().match(/\w+/g)?.join(" ");
  const example = page.known?.examples.find(({ name }) => name === page.example) ?? page.known?.questions[page.number];
  return example && words(example.question) === words(byId("question").value) ? example.answer : null;
}

function showKnown() {
  const answer = knownAnswer();
  byId("known").textContent = answer ? `Known answer: ${answer}` : "";
}

/** The newest frame of the run, as a viewer of the live page gets it. */
function takeLive() {
  const live = openSocket("/live");
  showPictureNote("Waiting for a frame …");
  const late = setTimeout(() => {
    live.close();
    showPictureNote("No frame came: nothing runs on the live page. Choose a source there first.", true);
  }, 5000);
  live.onmessage = ({ data }) => {
    if (typeof data === "string") return;
    clearTimeout(late);
    live.close();
    takeFile(new Blob([readPicture(data).picture], { type: "image/jpeg" }));
  };
}

/** First press: show the camera; second press: take its picture. */
async function takeCamera() {
  const video = byId("camera");
  if (page.stream) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
    canvas.getContext("2d").drawImage(video, 0, 0);
    closeCamera();
    const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
    return takeFile(blob);
  }
  showPictureNote("Asking for the camera …");
  try {
    page.stream = await openCamera({ width: { ideal: 1280 } });
  } catch (error) {
    return showPictureNote(error.message, true);
  }
  video.srcObject = page.stream;
  await video.play();
  video.hidden = false;
  byId("preview").hidden = byId("drop-words").hidden = true;
  byId("take-camera").textContent = "Take the picture";
  showPictureNote("Press again to take the picture.");
}

function closeCamera() {
  page.stream.getTracks().forEach((track) => track.stop());
  page.stream = null;
  byId("camera").hidden = true;
  byId("camera").srcObject = null;
  byId("take-camera").textContent = "Camera";
}

/* Columns and their address */

function addColumn(settings) {
  const column = new Column(settings, page.known, view, { changed: columnChanged, remove: removeColumn });
  page.columns.push(column);
  byId("columns").append(column.root);
  showColumns();
}

function columnChanged() {
  showWorld();
  writeChoices();
}

function removeColumn(column) {
  page.columns = page.columns.filter((one) => one !== column);
  column.root.remove();
  showColumns();
  writeChoices();
  showTable();
}

function showColumns() {
  const most = page.columns.length >= (page.known?.limits.columns ?? 6);
  const busy = page.running ? RUNS : blind.hides ? "Vote first" : "";
  setDisabled(byId("add"), busy || (most ? "There is no room for another column" : ""));
  setDisabled(byId("blind"), busy || (page.columns.length === 2 ? "" : "A blind vote is between two columns"));
  for (const column of page.columns) column.away.hidden = page.columns.length < 2 || Boolean(busy);
  showWorld();
}

/** What the columns' models know, if that is drawn scenes only. */
function showWorld() {
  const worlds = new Map();
  for (const { settings: { model } } of page.columns) {
    const world = page.known.worlds[model];
    if (world) worlds.set(world, new Set(worlds.get(world)).add(model));
  }
  byId("world").textContent = [...worlds].map(([world, models]) => `${[...models].join(", ")}: knows ${world} only; answers about other pictures mean nothing.`).join(" ");
}

/** Each column in the address: encode, strategy, budget, and the model if there are several. */
function readAddress() {
  const { models, encodes } = page.known;
  const wanted = given.getAll("c").map((text) => {
    const [encode, strategy, budget, ...model] = text.split(",");
    return { encode, strategy: strategy ?? "auto", budget: budget || "auto", model: model.join(",") || models[0] };
  });
  const usual = DEFAULT_COLUMNS.map((encode) => ({ encode, strategy: "auto", budget: "auto", model: models[0] }));
  for (const settings of wanted.filter((one) => encodes.includes(one.encode)).slice(0, page.known.limits.columns)) addColumn(settings);
  if (!page.columns.length) usual.forEach(addColumn);
  for (const [name, id] of FIELDS) if (given.get(name)) byId(id).value = given.get(name);
  byId("warm").checked = given.get("warm") !== "0";
  byId("blind").checked = given.has("blind");
}

function writeChoices() {
  if (!page.known) return;
  const columns = page.columns.map(({ settings: { encode, strategy, budget, model } }) => [encode, strategy, budget, ...(model === page.known.models[0] ? [] : [model])].join(","));
  writeAddress(
    ...FIELDS.map(([name, id, usual]) => [name, byId(id).value, usual]),
    ["warm", byId("warm").checked ? "" : "0"], ["blind", byId("blind").checked ? "1" : ""], ["example", page.example ?? ""], ["layers", SHOWN.filter((name) => view.has(name)).join(""), USUAL], ["n", page.number === null ? "" : String(page.number + 1)], ["c", columns],
  );
}

/* Asking */

/** Ask, or ask as soon as the picture that is being taken has come. */
function ask(event) {
  event?.preventDefault();
  page.wanted = page.taking > 0;
  if (page.wanted) return showStatus("Asking when the picture is there …");
  if (page.running || !page.picture || !link.isOpen) return;
  page.running = "asked";
  page.asked = { bitmap: page.bitmap, question: byId("question").value, width: page.bitmap.width, height: page.bitmap.height, answer: knownAnswer(), boxes: page.boxes, example: page.example ?? page.known.questions[page.number]?.name ?? null };
  const run = {
    picture: page.picture, question: byId("question").value.trim(), max_tokens: Number(byId("max-tokens").value),
    seed: Number(byId("seed").value), warm: byId("warm").checked, columns: page.columns.map((column) => column.settings),
  };
  page.asked.run = run;
  if (blind.hides) blind.end();
  if (byId("blind").checked && page.columns.length === 2) blind.begin(page.columns);
  else putInOrder();
  link.send({ run });
  showStatus("Asking …");
  showReady();
  writeChoices();
}

function stop() {
  page.running = null;
  showReady();
}

function putInOrder() {
  for (const column of page.columns) column.side = "";
  byId("columns").append(...page.columns.map(({ root }) => root));
  writeNote("vote-note", "");
}

/* The blind vote */

function takeVote({ vote, left, right }) {
  const { run, width, height } = page.asked;
  page.votes.keep([{
    // not randomUUID, which a page without HTTPS lacks
    id: [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("-"),
    at: new Date().toISOString(), ...vote, question: run.question, max_tokens: run.max_tokens, seed: run.seed,
    picture: { key: run.picture, width, height, example: page.asked.example },
    left: left.settings, right: right.settings, texts: { left: left.result.text, right: right.result.text },
  }]);
  writeNote("vote-note", `Counted. Left was ${left.name}, right was ${right.name}.`);
}

/** The settings may be seen again. */
function showAnswers() {
  showReady();
  showTable();
}

function showReady() {
  setDisabled(byId("go"), page.running ? RUNS : !link.isOpen ? UNLINKED : page.picture || page.taking ? "" : "Choose a picture first");
  byId("cancel").hidden = !page.running;
  for (const column of page.columns) for (const field of Object.values(column.fields)) setDisabled(field, page.running ? RUNS : "");
  if (!page.running) page.columns.forEach((column) => column.showTitle());
  showColumns();
}

/* All answers */

const HEADS = ["column", "answer", "tokens", "first token", "choose", "encode", "prefill", "decode", "in all", "kept", "verdict"];

function showTable() {
  const done = blind.hides ? [] : page.columns.filter((column) => column.result || column.error);
  setDisabled(byId("save"), done.some((column) => column.result) ? "" : "There is no answer yet");
  const head = make("tr", {}, ...HEADS.map((name, at) => make("th", { scope: "col", className: at === 1 ? "text" : "" }, name)));
  byId("table").tHead.replaceChildren(...(done.length ? [head] : []));
  byId("table").tBodies[0].replaceChildren(...done.map((column) => {
    const name = make("th", { scope: "row" }, column.name);
    if (column.error) return make("tr", {}, name, make("td", { className: "text", colSpan: HEADS.length - 1 }, column.error));
    const { result } = column;
    const times = [result.ms.first_token, result.ms.allocate + result.ms.glance, result.ms.encode, result.ms.prefill, result.ms.decode, result.ms.total];
    const values = [`${result.tokens} of ${result.tiles}`, ...times.map(ms), mb(result.memory.kept_bytes), column.outcome?.text ?? "–"];
    return make("tr", {}, name, make("td", { className: "text" }, result.text), ...values.map((value) => make("td", {}, value)));
  }));
}

function save() {
  const kept = {
    made: new Date().toISOString(), ...page.known.facts,
    picture: { width: page.asked.width, height: page.asked.height, example: page.asked.example, boxes: page.asked.boxes }, known_answer: page.asked.answer, ...page.asked.run,
    columns: page.columns.filter((column) => column.result || column.error).map((column) => {
      const { topic, column: number, ...result } = column.result ?? { error: column.error };
      return { settings: page.settings[page.columns.indexOf(column)] ?? column.settings, ...result, verdict: column.agreement ?? null };
    }),
  };
  download(new Blob([JSON.stringify(kept, null, 2)], { type: "application/json" }), "comparison.json");
}

/* Hands */

function turnLayer(name) {
  view.has(name) ? view.delete(name) : view.add(name);
  showLayers();
  writeChoices();
}

function showLayers() {
  for (const name of SHOWN) setPressed(byId(`layer-${name}`), view.has(name));
  for (const column of page.columns) column.draw();
}

for (const name of SHOWN) byId(`layer-${name}`).onclick = () => turnLayer(name);
onFile(byId("drop"), byId("file"), takeFile);
byId("take-camera").onclick = takeCamera;
byId("take-live").onclick = takeLive;
byId("own-question").onchange = ({ target }) => target.value && takeQuestion(Number(target.value));
byId("next-question").onclick = () => takeQuestion(page.number === null ? 0 : (page.number + 1) % page.known.questions.length);
byId("add").onclick = () => {
  addColumn({ model: page.known.models[0], encode: "sparse", strategy: "auto", budget: page.columns.length > 1 ? "64" : "auto" });
  writeChoices();
};
byId("ask").onsubmit = ask;
byId("cancel").onclick = () => link.send({ cancel: true });
byId("save").onclick = save;
byId("question").addEventListener("input", showKnown);
for (const id of ["question", "max-tokens", "seed", "warm", "blind"]) byId(id).addEventListener("change", writeChoices);
showLayers();
globalThis.compare = page;
