// Elements of a page: by their ids, new ones, and words in them.

const RESIZED_MS = 300;

export const byId = (id) => document.getElementById(id);

export function make(tag, fields = {}, ...parts) {
  const made = Object.assign(document.createElement(tag), fields);
  made.append(...parts);
  return made;
}

/** Write a note; `bad`: it is about a problem. */
export function writeNote(id, words, bad = false) {
  byId(id).textContent = words;
  byId(id).classList.toggle("bad", bad);
}

/** Write the state of the page. Words that stay are left alone: a screen reader would read them again. */
export function writeState(state, words) {
  byId("state").dataset.state = state;
  if (byId("state-words").textContent !== words) byId("state-words").textContent = words;
}

export function setPressed(button, pressed) {
  button.setAttribute("aria-pressed", String(pressed));
}

/** Turn a field off with the reason as its title, or on with its own title again; `why` is empty to turn it on. */
export function setDisabled(field, why) {
  field.dataset.title ??= field.title;
  field.disabled = Boolean(why);
  field.title = why || field.dataset.title;
}

export function onResize(call) {
  let resized = null;
  addEventListener("resize", () => {
    clearTimeout(resized);
    resized = setTimeout(call, RESIZED_MS);
  });
}
