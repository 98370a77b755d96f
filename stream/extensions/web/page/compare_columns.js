// Columns of a comparison: the settings of each, and its answer as it comes, with picture, tokens, times and verdict.

import { make, setDisabled } from "./dom.js";
import { drawAsModelSees, drawBoxes, drawDimming, drawHeat, drawOutlines, regionsOf } from "./layers.js";

const STEPS = [["allocate", "choose tokens"], ["glance", "glance"], ["encode", "encode"], ["prefill", "prefill"], ["decode", "decode"]];

export const ms = (value) => (value < 10 ? `${value.toFixed(1)} ms` : value < 10000 ? `${Math.round(value)} ms` : `${(value / 1000).toFixed(1)} s`);
export const mb = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`);

/** A verdict in words, and its kind: the answer is right or wrong if `answer` is known, else neither.
 *  `verdict` compares it with the first column's; null for that one. */
export function verdictOf(result, verdict, answer) {
  const parts = [];
  if (result.right != null) parts.push(result.right ? "right" : answer ? `wrong, known answer: ${answer}` : "wrong");
  if (verdict) {
    parts.push(verdict.same ? "same answer" : `${Math.round(100 * verdict.words)} % equal words`);
    parts.push(verdict.faster >= 1 ? `${verdict.faster.toFixed(1)} × as quick` : `${(1 / verdict.faster).toFixed(1)} × as slow`);
    parts.push(`${Math.round(100 * verdict.token_share)} % of the tokens`);
  }
  const kind = result.right == null ? "neutral" : result.right ? "right" : "wrong";
  return parts.length ? { kind, text: parts.join(" · ") } : null;
}

/** Settings in words. */
export function nameOf({ model, encode, strategy, budget }, withModel) {
  const how = encode === "full" ? "all tokens" : [encode, strategy === "auto" ? "" : strategy, budget === "auto" ? "" : budget].filter(Boolean).join(" · ");
  return withModel ? `${model} · ${how}` : how;
}

export class Column {
  /** `known` is the server's greeting; `changed` is called when a setting is, `remove` when the column is to go. */
  constructor(settings, known, view, { changed, remove }) {
    this.known = known;
    this.view = view;
    this.result = this.picture = null;
    this.error = this.side = "";
    this.hidden = false;
    this.root = make("article", { className: "column" });
    this.title = make("h3");
    this.away = make("button", { type: "button", className: "icon", ariaLabel: "Remove the column", onclick: () => remove(this) }, "×");
    this.fields = {
      model: this.choice(known.models, settings.model),
      encode: this.choice(known.encodes, settings.encode),
      strategy: this.choice(known.strategies, settings.strategy),
      budget: make("input", { value: settings.budget, required: true, title: "A number of tokens, a share such as 27%, auto or adaptive" }),
    };
    const labelled = { model: "Model", encode: "Encode", strategy: "Strategy", budget: "Budget" };
    const fields = Object.entries(this.fields).map(([name, field]) => make("label", {}, labelled[name], field));
    fields[0].hidden = known.models.length < 2;
    for (const field of Object.values(this.fields)) {
      field.onchange = () => {
        this.showTitle();
        changed();
      };
    }
    this.canvas = make("canvas", { width: 0, height: 0, role: "img" });
    this.layers = make("canvas", { width: 0, height: 0, ariaHidden: "true" });
    this.seen = make("div", { className: "seen" }, this.canvas, this.layers);
    this.answer = make("p", { className: "answer-text" });
    this.steps = make("div", { className: "steps", role: "img" });
    this.figures = make("dl");
    this.verdict = make("p", { className: "verdict" });
    this.root.append(make("div", { className: "head" }, this.title, this.away), make("div", { className: "fields" }, ...fields), this.seen, this.answer, this.verdict, this.steps, this.figures);
    this.showTitle();
    this.clear();
  }

  choice(values, chosen) {
    const select = make("select", {}, ...values.map((value) => new Option(value, value)));
    select.value = values.includes(chosen) ? chosen : values[0];
    return select;
  }

  get settings() {
    const budget = this.fields.budget.value.trim();
    return {
      model: this.fields.model.value, encode: this.fields.encode.value, strategy: this.fields.strategy.value,
      budget: /^\d+$/.test(budget) ? Number(budget) : budget,
    };
  }

  get name() {
    return nameOf(this.settings, this.known.models.length > 1);
  }

  /** Hide which settings are on this side, until `reveal`. */
  hide(side) {
    this.side = side;
    this.hidden = true;
    this.root.classList.add("hidden");
    this.showTitle();
  }

  reveal() {
    this.hidden = false;
    this.root.classList.remove("hidden");
    this.showTitle();
  }

  showTitle() {
    const side = this.side && this.side[0].toUpperCase() + this.side.slice(1);
    this.title.textContent = this.hidden ? side : [side, this.name].filter(Boolean).join(": ");
    const full = this.fields.encode.value === "full";
    for (const field of [this.fields.budget, this.fields.strategy]) setDisabled(field, full ? "All tokens are shown" : "");
  }

  /** Forget the answer. */
  clear() {
    this.result = this.outcome = null;
    this.error = this.text = "";
    this.canvas.width = this.layers.width = 0;
    this.seen.hidden = this.steps.hidden = this.figures.hidden = this.verdict.hidden = true;
    this.answer.className = "answer-text";
    this.answer.replaceChildren(make("span", { className: "state", textContent: "No answer yet." }));
  }

  showState(words) {
    this.answer.replaceChildren(make("span", { className: "state", textContent: `${words} …` }));
  }

  addText(text) {
    this.text += text;
    this.answer.textContent = this.text;
  }

  showError(error) {
    this.error = error;
    this.answer.className = "answer-text bad";
    this.answer.textContent = error;
  }

  /** Show a whole answer about `picture`, an ImageBitmap, with `boxes` of the asked things in its pixels. */
  show(result, picture, boxes = []) {
    this.boxes = boxes;
    this.result = result;
    this.picture = picture;
    this.answer.textContent = result.text || "(an empty answer)";
    this.frame = {
      rows: result.rows, cols: result.cols, relevance: Uint8Array.from(result.relevance), regions: Int16Array.from(result.regions),
      overview: result.overview, level: 0, width: result.cols * this.known.tile_px, height: result.rows * this.known.tile_px,
    };
    this.regions = regionsOf(this.frame, this.known.shapes);
    this.seen.hidden = this.steps.hidden = this.figures.hidden = false;
    this.draw();
    this.showSteps();
    this.showFigures();
  }

  draw() {
    if (!this.result) return;
    const { frame, view } = this;
    const size = [frame.width, frame.height];
    const whole = make("canvas");
    [whole.width, whole.height] = size;
    whole.getContext("2d").drawImage(this.picture, 0, 0, ...size);
    for (const canvas of [this.canvas, this.layers]) [canvas.width, canvas.height] = size;
    const context = this.canvas.getContext("2d");
    if (view.has("m")) drawAsModelSees(context, whole, frame, this.regions, this.known.tile_px);
    else context.drawImage(whole, 0, 0);
    const over = this.layers.getContext("2d");
    over.globalAlpha = 0.85;
    if (view.has("d")) drawDimming(over, frame, this.regions, this.known.tile_px);
    if (view.has("h")) drawHeat(over, frame, this.known.tile_px, false);
    if (view.has("t")) drawOutlines(over, this.regions, this.known.tile_px, new Set(), Math.max(1, frame.width / 500));
    over.globalAlpha = 1;
    if (view.has("b")) drawBoxes(over, this.boxes, this.picture);
    this.canvas.setAttribute("aria-label", `The picture as this answer was given it: ${this.result.tokens} of ${this.result.tiles} tokens`);
  }

  showSteps() {
    const steps = this.result.ms;
    this.steps.replaceChildren(...STEPS.filter(([name]) => steps[name] > 0).map(([name, words]) => {
      const part = make("span", { className: `s-${name}`, title: `${words}: ${ms(steps[name])}` });
      part.style.width = `${(100 * steps[name]) / steps.total}%`;
      return part;
    }));
    this.steps.setAttribute("aria-label", STEPS.map(([name, words]) => `${words} ${ms(steps[name])}`).join(", "));
  }

  showFigures() {
    const { result } = this;
    const rows = [
      ["visual tokens", `${result.tokens} of ${result.tiles}`],
      ["first token", ms(result.ms.first_token)],
      ...STEPS.filter(([name]) => result.ms[name] > 0).map(([name, words]) => [words, ms(result.ms[name]), `s-${name}`]),
      ["in all", `${ms(result.ms.total)}${result.first_call ? " (first call)" : ""}`],
      ["answer", `${result.text_tokens} token${result.text_tokens === 1 ? "" : "s"}`],
      ["kept after it", mb(result.memory.kept_bytes)],
      [`peak of the ${result.memory.of}`, mb(result.memory.peak_bytes)],
      ["computed with", `${result.device}, ${result.dtype}`],
    ];
    this.figures.replaceChildren(...rows.flatMap(([name, value, colour]) => [make("dt", {}, ...(colour ? [make("i", { className: colour })] : []), name), make("dd", { textContent: value })]));
  }

  showVerdict(verdict, answer) {
    this.agreement = verdict;
    this.outcome = this.result && verdictOf(this.result, verdict, answer);
    this.verdict.hidden = !this.outcome;
    if (!this.outcome) return;
    this.verdict.className = `verdict ${this.outcome.kind}`;
    this.verdict.textContent = this.outcome.text;
  }
}
