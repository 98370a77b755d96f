// JSON of the program, its texts made printable: an answer, a name or an error's text may come from elsewhere. As stream/untrusted.py does it.

const SEQUENCES = /(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x00-\x1f\x7f-\x9f]*(?:\x07|\x1b\\|\x9c)|\x1b[#%()*+./-]?[0-~]/gu;
const BREAKS = /\r\n|[\r\x0b\x0c\x85\u2028\u2029]/gu;
/** Controls but the line feed, direction marks, overrides and isolates, fillers, tags, and spaces without a width. */
const DROPPED = /[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufdd0-\ufdef\ufff0-\ufffb\ufffe\uffff\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;
/** Joiners between letters that do not join, where they only hide. At the ends they stay: the text may be a piece of another. */
const JOINERS = /(?<=[\0-\u058f])[\u200c\u200d]+|([\u200c\u200d])[\u200c\u200d]+|[\u200c\u200d]+(?=\s)/gu;
const MARKS = "\\u0300-\\u036f\\u0483-\\u0489\\u0591-\\u05bd\\u064b-\\u065f\\u0e31\\u0e34-\\u0e3a\\u0e47-\\u0e4e\\u1ab0-\\u1aff\\u1dc0-\\u1dff\\u20d0-\\u20f0\\ufe00-\\ufe0f\\ufe20-\\ufe2f";
const PILES = new RegExp(`([${MARKS}]{4})[${MARKS}]+`, "gu");
const SURROGATES = /\p{Surrogate}/gu;

/** Lines without what turns the direction of a text, is obeyed or is not seen. */
export function printable(text) {
  const lines = text.replace(SEQUENCES, "").replace(BREAKS, "\n").replaceAll("\t", " ").replace(DROPPED, "");
  return lines.replace(SURROGATES, "\ufffd").replace(JOINERS, "$1").replace(PILES, "$1");
}

export function readJson(text) {
  return JSON.parse(text, (_, value) => (typeof value === "string" ? printable(value) : value));
}
