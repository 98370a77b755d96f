// What the run reports: text as it is generated, whole answers with their figures, and events between them.

import { byId, make } from "./dom.js";
import { download } from "./files.js";
import { remember, remembered } from "./settings.js";
import { timeOf } from "./times.js";

const PIECE_MS = 50;
const LINES_MAX = 300;
const EVENTS_KEPT = 2000;

const seconds = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(1)} s`);
const milliseconds = (value) => (value === undefined || value === null ? null : value < 1000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`);

const TRIGGERS = { start: "first frame", asked: "new question", cut: "after a cut", discontinuity: "new picture", change: "something changed", every: null, end: "last frame" };

const BEFORE_CUT = "before the cut";
const LABELS_NAMED = 12;

/** The labels of detections with their numbers. */
function labelsOf(objects) {
  const counts = new Map();
  for (const { label } of objects) counts.set(label || "object", (counts.get(label || "object") ?? 0) + 1);
  const named = [...counts].map(([label, count]) => (count > 1 ? `${count} × ${label}` : label));
  return [...named.slice(0, LABELS_NAMED), ...(named.length > LABELS_NAMED ? ["…"] : [])].join(", ");
}

/** One line of words for an event; null for one that is not listed. */
export function wordsOf(event) {
  const at = timeOf(event);
  switch (event.topic) {
    case "cut": return { at, text: "cut" };
    case "discontinuity": return { at, text: `the picture is ${event.width_px}×${event.height_px} from here on (${event.reason})` };
    case "outage": return event.lasted_s === null
      ? { at, text: `the source is lost: ${event.reason}`, bad: true }
      : { at, text: `the source is back after ${seconds(event.lasted_s)}` };
    case "restarted": return { at: "", text: `the process “${event.process}” was started again: ${event.cause}`, bad: true };
    case "asked": return event.error
      ? { at: "", text: `“${event.query}” was refused: ${event.error}`, bad: true }
      : { at: "", text: `asked: ${event.query}`, asked: true };
    case "cancelled": return { at, text: `cut short by a ${event.by}: ${event.text}` };
    case "invalid": return { at, text: `the answer does not fit the schema: ${event.reason}`, bad: true };
    case "match": return { at, text: `match ${event.match}: ${event.question}`, asked: true };
    case "watches": {
      const words = `“${event.question || event.watch}”`;
      if (event.error) return { at: "", text: `the watch ${words} is not changed: ${event.error}`, bad: true };
      return { at: "", text: `watch ${event.watches.some((one) => one.name === event.watch) ? "added" : "removed"}: ${words}`, asked: true };
    }
    case "turned": return { at, text: `“${event.question}”: now ${event.to} (${Math.round(event.yes * 100)} % yes)`, asked: true };
    case "detections": return { at, text: `located: ${labelsOf(event.objects) || "nothing"}` };
    case "shadow": return { at, text: event.same ? "check with all tokens: the same answer" : `with all tokens: ${event.full_text}` };
    case "budget": return { at, text: `${event.from_tokens} → ${event.to_tokens} tokens: ${event.differing} of ${event.checks} checks with all tokens differ` };
    case "notice": return event.code === "loading" ? null : { at: "", text: event.message };
    case "summary": return { at: "", text: event.error ? `the run failed: ${event.error}` : `the run has ended (${event.ended})`, bad: Boolean(event.error) };
    default: return null;
  }
}

export class Answers {
  constructor() {
    this.list = byId("lines");
    this.events = [];
    this.newestFirst = remembered("newest-first", true);
    this.speaking = null;
    this.clear();
    byId("order").onclick = () => this.turnOrder();
    byId("copy").onclick = () => this.copy();
    byId("save-jsonl").onclick = () => this.saveLines();
    byId("save-vtt").onclick = () => this.saveCaptions();
    this.showOrder();
  }

  clear() {
    this.events = [];
    this.list.replaceChildren(make("li", { className: "none" }, "No answers yet."));
    this.speak(null);
  }

  history(events) {
    this.clear();
    for (const event of events) this.add(event, false);
  }

  /** A piece of text; the first of an answer is shown at once, others at most every 50 ms. */
  text(event) {
    if (this.speaking?.answer !== event.answer) {
      this.speak({ answer: event.answer, text: event.text, at: timeOf(event), begun: performance.now(), pieces: 1, timer: null });
      this.showSpeech();
      return;
    }
    this.speaking.text += event.text;
    this.speaking.pieces++;
    this.speaking.timer ??= setTimeout(() => this.showSpeech(), PIECE_MS);
  }

  speak(speech) {
    if (this.speaking) clearTimeout(this.speaking.timer);
    this.speaking = speech;
    byId("speaking").hidden = speech === null;
  }

  showSpeech() {
    const speech = this.speaking;
    if (!speech) return;
    speech.timer = null;
    const spent = (performance.now() - speech.begun) / 1000;
    const rate = speech.pieces > 2 && spent > 0.1 ? ` · ${((speech.pieces - 1) / spent).toFixed(0)} tokens/s` : "";
    const cut = speech.beforeCut ? ` · ${BEFORE_CUT}` : "";
    byId("speaking-meta").textContent = `${speech.at} · speaking${cut}${rate}`;
    byId("speaking-text").textContent = speech.text.trimStart();
  }

  add(event, aloud = true) {
    if (["answer", "cancelled", "invalid", "unchanged"].includes(event.topic)) this.speak(null);
    if (this.speaking && (event.topic === "cut" || event.topic === "discontinuity")) {
      this.speaking.beforeCut = true;
      this.showSpeech();
    }
    const line = event.topic === "answer" ? this.answerLine(event) : this.eventLine(event);
    if (!line) return;
    this.events.push(event);
    if (this.events.length > EVENTS_KEPT) this.events.shift();
    this.list.querySelector(".none")?.remove();
    const follows = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 40;
    this.newestFirst ? this.list.prepend(line) : this.list.append(line);
    if (this.list.children.length > LINES_MAX) (this.newestFirst ? this.list.lastChild : this.list.firstChild).remove();
    if (!this.newestFirst && follows) this.list.scrollTop = this.list.scrollHeight;
    if (aloud && event.topic === "answer") byId("announce").textContent = event.text;
  }

  answerLine(event) {
    const timing = event.timing ?? {};
    const facts = [
      `${event.tokens_used} of ${event.tokens_total * event.frames} tokens`,
      milliseconds(timing.ttft_ms) && `first token ${milliseconds(timing.ttft_ms)}`,
      milliseconds(timing.total_ms) && `${milliseconds(timing.total_ms)} in all`,
      event.glances ? `${event.glances} glance${event.glances > 1 ? "s" : ""}` : null,
      event.trigger in TRIGGERS ? TRIGGERS[event.trigger] : event.trigger,
      event.before_cut ? BEFORE_CUT : null,
      event.looped ? "ended: it repeated itself" : null,
      event.escalated ? "by the larger model" : null,
    ].filter(Boolean);
    const meta = make("span", { className: "meta" }, facts.join(" · "));
    return make("li", { className: "answer", title: event.query }, make("time", {}, timeOf(event)), event.text, meta);
  }

  eventLine(event) {
    const words = wordsOf(event);
    if (!words) return null;
    const className = `event${words.bad ? " bad" : ""}${words.asked ? " asked" : ""}`;
    return make("li", { className }, ...(words.at ? [make("time", {}, words.at)] : []), words.text);
  }

  turnOrder() {
    this.newestFirst = !this.newestFirst;
    remember("newest-first", this.newestFirst);
    this.list.replaceChildren(...[...this.list.children].reverse());
    this.list.scrollTop = this.newestFirst ? 0 : this.list.scrollHeight;
    this.showOrder();
  }

  showOrder() {
    byId("order").textContent = this.newestFirst ? "newest first" : "newest last";
  }

  get answers() {
    return this.events.filter((event) => event.topic === "answer");
  }

  async copy() {
    const text = this.answers.map((one) => `${timeOf(one)}  ${one.text}`).join("\n");
    try {
      await navigator.clipboard.writeText(text);
      flash(byId("copy"), "copied");
    } catch {
      flash(byId("copy"), "not allowed");
    }
  }

  saveLines() {
    download(new Blob([this.events.map((one) => `${JSON.stringify(one)}\n`).join("")], { type: "application/jsonl" }), "answers.jsonl");
  }

  saveCaptions() {
    const stamp = (value) => new Date(Math.round(value * 1000)).toISOString().slice(11, 23);
    const cues = this.answers.map((one, at, all) => {
      const end = Math.max(all[at + 1]?.pts_s ?? 0, one.end_s, one.pts_s + 1);
      return `${stamp(one.pts_s)} --> ${stamp(end)}\n${one.text.replaceAll("-->", "→").replaceAll(/\n+/g, "\n")}\n`;
    });
    download(new Blob([`WEBVTT\n\n${cues.join("\n")}`], { type: "text/vtt" }), "answers.vtt");
  }
}

function flash(button, words) {
  const before = button.textContent;
  button.textContent = words;
  setTimeout(() => (button.textContent = before), 1200);
}
