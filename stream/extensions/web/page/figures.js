// Figures of the run once a second: sliding charts with marks at cuts and outages, or a table of numbers.

import { byId, make, setPressed } from "./dom.js";

const KEPT = 600;
const GAP_S = 2.5; // statistics come once a second: between rows further apart nothing was measured
const SPANS = [["1 minute", 60], ["10 minutes", 600]];
const whole = (value) => Math.round(value).toLocaleString("en");
const ms = (value) => (value < 10 ? value.toFixed(1) : whole(value));
const mb = (bytes) => bytes / 1e6;
const sum = (values) => Object.values(values ?? {}).reduce((a, b) => a + b, 0);
const named = (values) => Object.entries(values ?? {}).map(([name, value]) => `${name} ${value}`).join(" · ");

/** Each chart: title, unit, what it reads of the statistics (own: what this page measures), and its totals in words. */
const CHARTS = [
  { name: "rate", title: "frames a second", unit: "/s", read: (now) => now.fps, second: (now, own) => own.shown, totals: (now, own) => `${whole(now.frames)} frames · shown here ${known(own.shown) ? own.shown.toFixed(1) : "–"}/s`, digits: (value) => value.toFixed(1) },
  { name: "latency", title: "capture to allocation", unit: "ms", read: (now) => now.latency_ms?.p50, second: (now) => now.latency_ms?.p95, totals: (now) => (now.latency_ms ? `p95 ${ms(now.latency_ms.p95)} · most ${ms(now.latency_ms.max)} ms` : ""), digits: ms },
  { name: "ttft", title: "first token", unit: "ms", read: (now) => now.ttft_ms, target: (now) => now.target_ms, totals: (now) => `${whole(now.answers)} answers${now.ttft_p95_ms === null ? "" : ` · p95 ${ms(now.ttft_p95_ms)} ms`}${now.target_ms ? ` · target ${ms(now.target_ms)}` : ""}`, digits: ms },
  { name: "tokens", title: "tokens a frame", unit: "", read: (now) => now.tokens, totals: (now) => `of ${whole(now.tiles)} tiles${now.budget ? ` · budget ${now.budget}` : ""}${now.memory?.idle ? ` · ${whole(now.memory.idle.tokens)} read ahead` : ""}`, digits: whole, zero: true },
  { name: "changed", title: "changed", unit: "%", read: (now) => (now.dirty_share === null ? null : 100 * now.dirty_share), totals: (now) => `${now.cuts} cut${now.cuts === 1 ? "" : "s"}${now.skipped ? ` · ${now.skipped} skipped` : ""}`, digits: (value) => value.toFixed(1), zero: true },
  { name: "dropped", title: "dropped a second", unit: "/s", read: (now, own) => own.dropped, totals: (now) => named(now.dropped) || "none", digits: (value) => value.toFixed(1), zero: true },
  { name: "memory", title: "memory", unit: "MB", read: (now) => mb(sum(now.memory_bytes)), totals: (now) => Object.entries(now.memory_bytes).map(([name, bytes]) => `${name} ${whole(mb(bytes))}`).join(" · "), digits: whole },
  { name: "age", title: "age of the picture here", unit: "ms", read: (now, own) => own.age, totals: () => "from capture to this screen", digits: ms },
];

export class Figures {
  constructor() {
    this.rows = [];
    this.span = 0;
    this.tabled = false;
    this.marks = [];
    this.root = byId("charts");
    this.parts = CHARTS.map((chart) => this.part(chart));
    byId("span").onclick = () => this.turnSpan();
    byId("as-table").onclick = () => this.turnTable();
    new ResizeObserver(() => this.draw()).observe(this.root);
    new MutationObserver(() => this.draw()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  part(chart) {
    const [now, all] = [make("p", { className: "now" }, "–"), make("p", { className: "all" })];
    const canvas = make("canvas", { role: "img", ariaLabel: `Chart: ${chart.title}` });
    const box = make("div", { className: "chart" }, make("h3", {}, chart.title), now, canvas, all);
    box.dataset.chart = chart.name;
    this.root.append(box);
    return { chart, now, canvas, all };
  }

  /** The next statistics, and what this page measured since the last ones. */
  add(now, own) {
    const before = this.rows.at(-1);
    const passed = before ? now.uptime_s - before.now.uptime_s : 0;
    if (before && passed < 0) this.rows = [];
    own.dropped = before && passed > 0 ? Math.max(0, sum(now.dropped) - sum(before.now.dropped)) / passed : null;
    this.rows.push({ now, own });
    if (this.rows.length > KEPT) this.rows.shift();
    this.draw();
  }

  /** Another run begins. */
  clear() {
    this.rows = [];
    this.marks = [];
    for (const { now, all, canvas } of this.parts) {
      now.textContent = "–";
      all.textContent = "";
      canvas.getContext("2d").clearRect(0, 0, canvas.width, canvas.height);
    }
  }

  /** An event that the charts mark: a cut, an outage, a restart. */
  mark(topic) {
    const now = this.rows.at(-1)?.now;
    if (!now) return;
    this.marks.push({ at: now.uptime_s, bad: topic !== "cut" });
    if (this.marks.length > KEPT) this.marks.shift();
  }

  turnSpan() {
    this.span = 1 - this.span;
    byId("span").textContent = SPANS[this.span][0];
    setPressed(byId("span"), Boolean(this.span));
    this.draw();
  }

  turnTable() {
    this.tabled = !this.tabled;
    setPressed(byId("as-table"), this.tabled);
    byId("table").hidden = !this.tabled;
    this.root.hidden = this.tabled;
    this.draw();
  }

  draw() {
    const newest = this.rows.at(-1);
    if (!newest) return;
    const rows = this.rows.filter((row) => row.now.uptime_s > newest.now.uptime_s - SPANS[this.span][1]);
    if (this.tabled) {
      this.drawTable(rows, newest);
      return;
    }
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(["chart", "chart2", "mark", "line", "soft"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
    for (const part of this.parts) {
      const value = part.chart.read(newest.now, newest.own);
      part.now.replaceChildren(known(value) ? part.chart.digits(value) : "–", make("small", {}, ` ${part.chart.unit}`));
      part.all.textContent = part.chart.totals(newest.now, newest.own);
      this.drawChart(part, rows, newest.now.uptime_s, colours);
    }
  }

  drawChart({ chart, canvas }, rows, end, colours) {
    const ratio = Math.min(2, devicePixelRatio || 1);
    const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    if (!width) return;
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    const lines = [rows.map((row) => chart.read(row.now, row.own)), chart.second ? rows.map((row) => chart.second(row.now, row.own)) : []];
    const target = chart.target?.(rows.at(-1).now);
    const values = [...lines.flat(), target].filter(known);
    if (!values.length) return;
    const high = Math.max(...values) * 1.08 || 1;
    const low = chart.zero ? 0 : Math.min(...values) * 0.9;
    const span = SPANS[this.span][1];
    const x = (at) => width - ((end - at) / span) * width;
    const y = (value) => height - 2 * ratio - ((value - low) / (high - low || 1)) * (height - 5 * ratio);
    context.fillStyle = colours.line;
    context.fillRect(0, height - ratio, width, ratio);
    for (const mark of this.marks) {
      if (mark.at < end - span) continue;
      context.fillStyle = mark.bad ? colours.mark : colours.soft;
      context.fillRect(x(mark.at), 0, ratio, height);
    }
    if (known(target)) {
      context.fillStyle = colours.mark;
      for (let at = 0; at < width; at += 6 * ratio) context.fillRect(at, y(target), 3 * ratio, ratio);
    }
    [colours.chart2, colours.chart].forEach((colour, at) => {
      const line = lines[1 - at];
      context.strokeStyle = colour;
      context.lineWidth = (at ? 1.8 : 1.2) * ratio;
      context.lineJoin = "round";
      context.beginPath();
      let before = null;
      line.forEach((value, index) => {
        const time = rows[index].now.uptime_s;
        if (!known(value)) {
          before = null;
          return;
        }
        const [px, py] = [x(time), y(value)];
        if (before === null || time - before > GAP_S) context.moveTo(px - ratio, py); // between two gaps, a dot
        context.lineTo(px, py);
        before = time;
      });
      context.stroke();
    });
  }

  drawTable(rows, newest) {
    byId("table").tBodies[0].replaceChildren(...this.parts.map(({ chart }) => {
      const values = rows.map((row) => chart.read(row.now, row.own)).filter(known);
      const now = chart.read(newest.now, newest.own);
      const words = (value) => (known(value) ? `${chart.digits(value)} ${chart.unit}` : "–");
      const [least, most] = values.length ? [words(Math.min(...values)), words(Math.max(...values))] : ["–", "–"];
      const cells = [words(now), least, most, chart.totals(newest.now, newest.own)];
      return make("tr", {}, make("th", { scope: "row" }, chart.title), ...cells.map((text) => make("td", {}, text)));
    }));
  }
}

function known(value) {
  return value !== null && value !== undefined && Number.isFinite(value);
}
