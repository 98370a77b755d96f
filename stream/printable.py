"""Text from elsewhere, made fit for a terminal, a log or a caption. Pure.

Whoever writes a text can write more than letters: sequences that a terminal obeys (ECMA-48), characters that turn the
direction of what follows (https://www.unicode.org/reports/tr9/), and some that nobody sees. None of these is left.
Words in any script stay, and so do emoji.
"""

from __future__ import annotations

import re

REPLACEMENT = "\ufffd"
"""Stands for what is no character: half of a surrogate pair, or a byte of a file's name that is no UTF-8."""

MARKS_MAX = 4
"""Marks on one letter; more than any language puts there would cover the lines around it."""

_CONTROLS = "\x00-\x1f\x7f-\x9f"

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, the cursor, clearing
    rf"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^{_CONTROLS}]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[#%()*+./-]?[0-~]"
)

_BREAKS = re.compile("\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")

_UNSEEN = (
    "\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufdd0-\ufdef\ufff0-\ufffb\ufffe\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Direction marks, overrides and isolates, fillers, tags, and spaces and joiners without a width."""

_DROPPED = re.compile(f"[{_CONTROLS}{_UNSEEN}]")
_SURROGATES = re.compile("[\ud800-\udfff]")

_JOINERS = re.compile(
    "(?<![\u0590-\U0010ffff])[\u200c\u200d]+|([\u200c\u200d])[\u200c\u200d]+|[\u200c\u200d]+(?=\\s|$)"
)
"""Those that join no letters of Indic or Arabic scripts and no emoji; between Latin letters they only hide."""

_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u1ab0-\u1aff\u1dc0-\u1dff"
    "\u20d0-\u20f0\ufe00-\ufe0f\ufe20-\ufe2f"
)
_PILES = re.compile(f"([{_MARKS}]{{{MARKS_MAX}}})[{_MARKS}]+")

_IN_JSON = re.compile(f"[\x7f-\x9f\u2028\u2029{_UNSEEN}]")


def printable(text: str) -> str:
    """One line: breaks and other runs of space are one space each."""
    return " ".join(printable_span(text).split())


def printable_span(text: str) -> str:
    """One line that keeps its spaces; breaks and tabs become one each."""
    if text.isascii() and text.isprintable():
        return text
    return _BREAKS.sub(" ", printable_lines(text))


def printable_lines(text: str) -> str:
    """Lines, broken by line feeds alone."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    text = _BREAKS.sub("\n", _SEQUENCES.sub("", text)).replace("\t", " ")
    text = "\n".join(_DROPPED.sub("", line) for line in text.split("\n"))
    return _PILES.sub(r"\1", _JOINERS.sub(r"\1", whole(text)))


def printable_json(line: str) -> str:
    """JSON that says the same, with what a terminal or a reader of lines would obey as `\\u` escapes.

    `line` is JSON whose control characters below a space are escaped already, as JSON demands.
    """
    return line if line.isascii() and "\x7f" not in line else _IN_JSON.sub(_escaped, line)


def whole(text: str) -> str:
    """The text as UTF-8 can carry it, all else in it as it was."""
    return text if text.isascii() else _SURROGATES.sub(REPLACEMENT, text)


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
