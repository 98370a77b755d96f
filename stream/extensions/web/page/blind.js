// A blind vote: two answers side by side, by chance, whose settings are hidden until the vote is given.

import { byId, writeNote } from "./dom.js";

const SIDES = ["left", "right"];

export class BlindVote {
  /** `shown` is called when the settings are shown again, `voted` with what was chosen: `answer` and `allocation`, each left, equal, right or null. */
  constructor({ shown, voted }) {
    this.shown = shown;
    this.columns = [];
    byId("skip").onclick = () => this.end();
    byId("vote").onsubmit = (event) => {
      event.preventDefault();
      const given = new FormData(byId("vote"));
      const vote = { answer: given.get("answer"), allocation: given.get("allocation") };
      if (!vote.answer && !vote.allocation) return writeNote("vote-note", "Choose at least one.", true);
      voted({ vote, left: this.columns[0], right: this.columns[1] });
      this.end();
    };
  }

  get hides() {
    return this.columns.length > 0;
  }

  /** Hide the settings of two columns, and shuffle these. */
  begin(columns) {
    this.columns = Math.random() < 0.5 ? [...columns] : [...columns].reverse();
    this.columns.forEach((column, at) => column.hide(SIDES[at]));
    byId("columns").append(...this.columns.map(({ root }) => root));
    byId("columns").classList.add("blind");
    byId("vote").hidden = true;
    writeNote("vote-note", "");
  }

  /** Both answers are there: ask for the vote. */
  open() {
    byId("vote").reset();
    byId("vote").hidden = false;
    writeNote("vote-note", "");
  }

  end() {
    for (const column of this.columns) column.reveal();
    this.columns = [];
    byId("columns").classList.remove("blind");
    byId("vote").hidden = true;
    this.shown();
  }
}
