// The demo: live page, compare page and microscope side by side, with three things to try that stay away once dismissed.

import { byId, make } from "./dom.js";
import { remember, remembered, startTheme } from "./settings.js";

const dismissed = new Set(remembered("dismissed", []));

function show() {
  const things = [...byId("things").children];
  for (const thing of things) thing.hidden = dismissed.has(thing.dataset.thing);
  byId("things").hidden = things.every((thing) => thing.hidden);
}

startTheme();
for (const thing of byId("things").children) {
  const dismiss = () => {
    dismissed.add(thing.dataset.thing);
    remember("dismissed", [...dismissed]);
    show();
  };
  thing.append(" ", make("button", { type: "button", className: "quiet", ariaLabel: `Dismiss: ${thing.dataset.thing}`, onclick: dismiss }, "dismiss"));
}
show();
