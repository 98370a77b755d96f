// Choices of this viewer: layers in the address, so that a link shows the same; theme and questions in this browser; keys.

import { byId, make } from "./dom.js";

export const LAYERS = ["t", "h", "d", "m"];
const DEFAULT_LAYERS = "t";
const DEFAULT_OPACITY = 85;

export function readView(search = location.search) {
  const given = new URLSearchParams(search);
  const named = (given.get("layers") ?? DEFAULT_LAYERS).split("");
  const opacity = Number(given.get("op") ?? DEFAULT_OPACITY);
  return {
    layers: new Set(LAYERS.filter((name) => named.includes(name))),
    opacity: opacity >= 10 && opacity <= 100 ? opacity : DEFAULT_OPACITY,
    relative: given.get("scale") === "relative",
    mirror: given.has("mirror"),
    boxes: given.get("boxes") !== "0",
    hidden: new Set((given.get("hide") ?? "").split("").map(Number).filter((level) => level >= 0 && level <= 5)),
  };
}

/** Put values into the address of the page, each after its name; a `usual` one is left out. An array is several values. */
export function writeAddress(...entries) {
  const given = new URLSearchParams(location.search);
  for (const [name, value, usual = ""] of entries) {
    const [first, ...more] = [value].flat().filter((one) => one !== usual);
    first === undefined ? given.delete(name) : given.set(name, first);
    for (const one of more) given.append(name, one);
  }
  history.replaceState(null, "", given.size ? `?${given}` : location.pathname);
}

export const namesOf = (layers) => LAYERS.filter((name) => layers.has(name)).join("");

export function writeView(view) {
  writeAddress(
    ["layers", namesOf(view.layers), DEFAULT_LAYERS], ["op", String(view.opacity), String(DEFAULT_OPACITY)],
    ["scale", view.relative ? "relative" : ""], ["mirror", view.mirror ? "1" : ""], ["boxes", view.boxes ? "" : "0"], ["hide", [...view.hidden].sort().join("")],
  );
}

export function remembered(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`arr-coc-${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Keep a value in this browser; false if it keeps nothing more. */
export function remember(name, value) {
  try {
    localStorage.setItem(`arr-coc-${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

export function startTheme() {
  document.documentElement.classList.toggle("framed", self !== top); // the page around it has the titles and links
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(remembered("theme", dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => setTheme(remembered("theme", dark.matches ? "dark" : "light")));
  byId("theme").onclick = turnTheme;
}

function turnTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  remember("theme", next);
  setTheme(next);
}

/** Keys of a page: for each, what it does in words, and the action if it has one everywhere on the page. */
export function onKeys(keys) {
  document.addEventListener("keydown", (event) => {
    const { tagName, type } = event.target;
    const typing = ["INPUT", "TEXTAREA", "SELECT"].includes(tagName) && type !== "range";
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (byId("keys")?.open && event.key !== "?") return;
    if (event.key === " " && ["BUTTON", "SUMMARY"].includes(tagName)) return;
    const action = keys[event.key]?.[1];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

const LEVELS = [
  ["full ", "a token shows one tile of 32×32 pixels in full resolution"],
  ["half ", "a token shows 2×2 tiles at half of it, or two of a line of text"],
  ["quarter ", "a token shows 4×4 tiles at a quarter of it"],
  ["less ", "and so on, up to 32×32 tiles"],
];

/** The same, and a list of them with the colours of the tiles, under its button and `?`. */
export function startKeys(keys) {
  const turn = () => (dialog.open ? dialog.close() : dialog.showModal());
  const all = { ...keys, "?": ["this list", turn] };
  const names = (key) => (key === " " ? ["Space"] : key.split(" ")).flatMap((name) => [make("kbd", {}, name), " "]);
  const dialog = make(
    "dialog", { id: "keys", className: "keys", ariaLabel: "Keys and colours" },
    make("h2", {}, "Keys"),
    make("dl", {}, ...Object.entries(all).flatMap(([key, [words]]) => [make("dt", {}, ...names(key)), make("dd", {}, words)])),
    make("h2", {}, "Colours of the tiles"),
    make("ul", { className: "levels" }, ...LEVELS.map(([name, words], level) => make("li", {}, make("span", { className: `swatch l${level}` }), name, make("span", {}, words)))),
    make("button", { type: "button", autofocus: true, onclick: turn }, "Close"),
  );
  document.body.append(dialog);
  byId("keys-button").onclick = turn;
  onKeys(all);
}
