// Choices of this viewer: layers in the address, so that a link shows the same; theme and questions in this browser.

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
    hidden: new Set((given.get("hide") ?? "").split("").map(Number).filter((level) => level >= 0 && level <= 5)),
  };
}

export function writeView(view) {
  const given = new URLSearchParams(location.search);
  const put = (name, value, usual) => (value === usual ? given.delete(name) : given.set(name, value));
  put("layers", LAYERS.filter((name) => view.layers.has(name)).join(""), DEFAULT_LAYERS);
  put("op", String(view.opacity), String(DEFAULT_OPACITY));
  put("scale", view.relative ? "relative" : "", "");
  put("mirror", view.mirror ? "1" : "", "");
  put("hide", [...view.hidden].sort().join(""), "");
  const query = given.toString();
  history.replaceState(null, "", query ? `?${query}` : location.pathname);
}

export function remembered(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`arr-coc-${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`arr-coc-${name}`, JSON.stringify(value));
  } catch { /* a browser may keep nothing */ }
}

export function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

export function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(remembered("theme", dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => setTheme(remembered("theme", dark.matches ? "dark" : "light")));
}

export function turnTheme() {
  const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  remember("theme", next);
  setTheme(next);
}

/** The list of keys, under its button and `?`. */
export function startKeys() {
  const dialog = document.getElementById("keys");
  document.getElementById("keys-button").onclick = () => dialog.showModal();
  document.getElementById("keys-close").onclick = () => dialog.close();
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "TEXTAREA", "SELECT"].includes(event.target.tagName) && event.target.type !== "range";
    if (event.key !== "?" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    dialog.open ? dialog.close() : dialog.showModal();
  });
}
