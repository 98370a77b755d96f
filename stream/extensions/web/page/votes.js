// Votes on pairs of answers: kept in this browser, counted with intervals, saved to a file and taken from one.

import { byId, make, setDisabled, writeNote } from "./dom.js";
import { download } from "./files.js";
import { remember, remembered } from "./settings.js";
import { readJson } from "./untrusted.js";

/** Standard normal deviate of a two-sided 95 % interval. */
const Z = 1.959964;

const NAME = "votes";
const ASKED = { answer: "better answer", allocation: "better allocation" };
const SETTINGS = ["model", "encode", "strategy", "budget"];

/** A share with the ends of its 95 % interval (Wilson 1927, J. Am. Stat. Assoc. 22, 209); null of nothing. */
export function shareOf(hits, count) {
  if (!count) return null;
  const [share, spread] = [hits / count, (Z * Z) / count];
  const middle = share + spread / 2;
  const reach = Z * Math.sqrt((share * (1 - share)) / count + spread / (4 * count));
  return { share, low: Math.max(0, (middle - reach) / (1 + spread)), high: Math.min(1, (middle + reach) / (1 + spread)) };
}

const keyOf = (settings) => JSON.stringify(SETTINGS.map((name) => settings[name]));

/** The counts of each pair of settings, whichever of them was on the left. `prefers_first` is of the votes for one of the two. */
export function countVotes(votes) {
  const pairs = new Map();
  for (const vote of votes) {
    const sides = [vote.left, vote.right];
    const turned = keyOf(vote.left) > keyOf(vote.right);
    const [first, second] = turned ? sides.reverse() : sides;
    const key = keyOf(first) + keyOf(second);
    if (!pairs.has(key)) pairs.set(key, { first, second, answer: { first: 0, equal: 0, second: 0 }, allocation: { first: 0, equal: 0, second: 0 } });
    for (const asked of Object.keys(ASKED)) {
      if (!vote[asked]) continue;
      const side = vote[asked] === "equal" ? "equal" : (vote[asked] === "left") !== turned ? "first" : "second";
      pairs.get(key)[asked][side] += 1;
    }
  }
  return [...pairs.values()].map((pair) => {
    const counted = Object.keys(ASKED).map((asked) => {
      const { first, equal, second } = pair[asked];
      const all = first + equal + second;
      const each = Object.entries({ first, equal, second }).map(([side, count]) => [side, { count, ...shareOf(count, all) }]);
      return [asked, { votes: all, ...Object.fromEntries(each), prefers_first: shareOf(first, first + second) }];
    });
    return { first: pair.first, second: pair.second, ...Object.fromEntries(counted) };
  });
}

const isSide = (side) => SETTINGS.every((name) => ["string", "number"].includes(typeof side?.[name]));
const isVote = (vote) => typeof vote?.id === "string" && isSide(vote.left) && isSide(vote.right) && Object.keys(ASKED).every((asked) => [null, "left", "equal", "right"].includes(vote[asked]));

function merged(votes, more) {
  return [...new Map([...votes, ...more].map((vote) => [vote.id, vote])).values()];
}

export class Votes {
  /** `nameOf` gives the name of settings; `facts` those of the program, for the file. */
  constructor(nameOf, facts) {
    this.nameOf = nameOf;
    this.facts = facts;
    this.all = [];
    this.keep([]);
    byId("save-votes").onclick = () => this.save();
    byId("forget-votes").onclick = () => this.forget();
    byId("votes-file").onchange = ({ target }) => {
      const [file] = target.files;
      if (file) this.take(file);
      target.value = "";
    };
    addEventListener("storage", ({ key }) => key === `arr-coc-${NAME}` && this.keep([]));
  }

  /** Keep further votes, beside those that another page of this browser has kept meanwhile. */
  keep(more) {
    const kept = remembered(NAME, []);
    this.all = merged(Array.isArray(kept) ? kept.filter(isVote) : [], merged(this.all, more));
    const done = !more.length || remember(NAME, this.all);
    writeNote("votes-note", done ? "" : "This browser keeps nothing more: save the votes before you leave the page.", true);
    this.show();
  }

  async take(file) {
    let votes;
    try {
      votes = readJson(await file.text()).votes;
      if (!votes.every(isVote)) throw new TypeError("a vote lacks a field");
    } catch {
      return writeNote("votes-note", `${file.name} is no file of votes: give one that this page has saved.`, true);
    }
    const before = this.all.length;
    this.keep(votes);
    const added = this.all.length - before;
    if (!byId("votes-note").textContent) writeNote("votes-note", `${added} of ${votes.length} votes are new.`);
  }

  save() {
    const kept = { made: new Date().toISOString(), ...this.facts, pairs: countVotes(this.all), votes: this.all };
    download(new Blob([JSON.stringify(kept, null, 2)], { type: "application/json" }), "votes.json");
  }

  forget() {
    if (!confirm(`Forget all ${this.all.length} votes of this browser? Save them first if you may need them.`)) return;
    this.all = [];
    remember(NAME, this.all);
    this.show();
  }

  show() {
    const none = this.all.length ? "" : "There is no vote yet";
    for (const id of ["save-votes", "forget-votes"]) setDisabled(byId(id), none);
    byId("votes-none").hidden = !none;
    byId("votes-table").hidden = Boolean(none);
    const percent = (value) => Math.round(100 * value);
    byId("votes-table").tBodies[0].replaceChildren(...countVotes(this.all).flatMap((pair) => Object.entries(ASKED).map(([asked, words]) => {
      const { first, equal, second, prefers_first: share } = pair[asked];
      const interval = share ? `${percent(share.share)} % (${percent(share.low)} to ${percent(share.high)})` : "–";
      const names = [pair.first, pair.second].map((settings) => make("td", { className: "text" }, this.nameOf(settings)));
      return make("tr", {}, make("th", { scope: "row" }, words), ...names, ...[first.count, equal.count, second.count, interval].map((value) => make("td", {}, String(value))));
    })));
  }
}
