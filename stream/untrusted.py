"""Limits on messages of other programs, and their text made printable.

Everything that comes from another program is checked against these limits when it is decoded, and is dropped or
refused if it breaks one. They lie far above what the program itself sends. docs/robustness.md explains them.

A text from outside can hold more than letters: sequences that a terminal obeys (ECMA-48), characters that turn the
direction of what follows (https://www.unicode.org/reports/tr9/), and invisible ones. None of these is left.
Words in any script stay, and so do emoji.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

KIB = 1024
MIB = 1024 * 1024

# Texts, in characters.
QUERY_LIMIT_CHARS = 4000
"""Longest question. Far above any real one; a model with a short context has its own limit."""
ANSWER_CHARS_MAX = 65_536
"""A whole answer; at 64 tokens, the default, one has some 300."""
REASON_CHARS_MAX = 4_000
"""Why something is refused, or failed."""
DETAILS_CHARS_MAX = 65_536
"""A traceback."""

# Numbers.
COUNT_MAX = 2**53
"""Beyond this a number is not the same in every language that reads JSON."""
TIME_NS_MAX = 2**62
"""146 years on either side of a clock's start."""
SIDE_PX_MAX = 16_384
"""Of a picture from another program."""
LONG_SIDE_PX_MAX = 2**20
"""Of a frame that is asked about: a panorama may be long, and then is low."""

# Arrays and parts.
ARRAYS_MAX = 4
"""Arrays of one message."""
DIMENSIONS_MAX = 4
HEADER_BYTES_MAX = 1 * MIB
"""The first part of a message: its fields."""
WEIGHTS_BYTES_MAX = 32 * MIB
"""An allocator's weights, which travel in the first part of a greeting; the bundled model's have 0.3 MB."""
PART_BYTES_MAX = 256 * MIB
"""Any part to an answer stage, and a frame from another program: level 0 of an 8K frame has 100 MB."""
REPLY_PART_BYTES_MAX = 64 * MIB
"""Any part from an answer stage: an embedding of 4,000 tokens in 4096 dimensions has 62 MiB. A longer one, of a long
question in a script that takes several tokens a letter, is refused when it is made."""
RECORD_BYTES_MAX = 300 * MIB
"""A record of a recording: a message, and its arrays packed."""
KEPT_BYTES_MAX = 16 * MIB
"""A record of a journal: an answer, and its feedback."""
CONFIG_BYTES_MAX = 1 * MIB
"""A configuration file."""
JOURNAL_BYTES_MAX = 1024 * MIB
"""Longest part of a journal that is read: a hundred times that of a day of answers each second."""

# How much at once, and how often.
EMBEDS_MAX = 128
"""Questions of one client that wait to be embedded: all of its watches, and as many again."""
CLIENTS_MAX = 64
"""More than this many frame processes at one answer server are turned away."""
PIECES_MAX = 16_384
"""Pieces of one answer."""
HEARD_AT_ONCE = 64
"""Messages that are received before a stage goes on with its own work."""
MISDEEDS_MAX = 1_000
"""Dropped messages after which an answer stage counts as failed, if no valid one came between them."""
QUESTIONS_AT_ONCE = 4
"""Questions of one client that are embedded between two steps of the answers."""
GROUP_TOKENS_MAX = 65_536
"""Visual tokens of a group of pictures; their pixels have 192 MiB at most."""
EARLIER_MAX = 5_000
"""Earlier frames of a group in one message: an hour of one every second is less."""
HISTORY_MAX = 32
"""Earlier answers before one question."""
HISTORY_CHARS_MAX = 2_000
"""One of them, cut to this length; all of them have a quarter of a message's fields at most."""
WATCHES_MAX = 64
"""Watches of one client; each question has WATCH_CHARS_MAX characters at most, so all have a quarter of a message."""
WATCH_CHARS_MAX = 1_000
WATCH_NAME = r"([A-Za-z0-9][A-Za-z0-9_-]{0,39})?"
"""Pattern of a whole watch's name; empty for one that is made from its question."""
GLANCES_A_TURN_MAX = 2
"""Glances of one client in one turn: the second one if the first failed."""
SEQUENCE_GAP_MAX = 1_000_000
"""Frames that a sender may have left out between two; numbers further apart do not count anything."""

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Length = Annotated[int, Meta(ge=0, le=2**31)]
TimeNs = Annotated[int, Meta(ge=-TIME_NS_MAX, le=TIME_NS_MAX)]
MS_MAX = 1e9  # eleven days for one answer
DurationMs = Annotated[float, Meta(ge=0, le=MS_MAX)]
Share = Annotated[float, Meta(ge=0, le=1)]
NAME_CHARS_MAX = 1_024
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]  # of a model, a known world, a kind of encoding
Query = Annotated[str, Meta(max_length=QUERY_LIMIT_CHARS)]
Words = Annotated[str, Meta(max_length=ANSWER_CHARS_MAX)]
Reason = Annotated[str, Meta(max_length=REASON_CHARS_MAX)]
Details = Annotated[str, Meta(max_length=DETAILS_CHARS_MAX)]
Settings = Annotated[str, Meta(max_length=65_536)]  # provenance of answers, as JSON
Weights = Annotated[bytes, Meta(max_length=WEIGHTS_BYTES_MAX)]


def cut_to(text: str, chars: int) -> str:
    """The text cut to at most `chars` characters; an ellipsis marks a cut."""
    if len(text) <= chars:
        return text
    return f"{text[: chars - 1]}…"


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
_FILE_BYTES = re.compile("(?<![\ud800-\udbff])[\udc80-\udcff]")

_JOINERS = re.compile(
    "(?<![\u0590-\U0010ffff])[\u200c\u200d]+|([\u200c\u200d])[\u200c\u200d]+|[\u200c\u200d]+(?=\\s|\\Z)"
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
    return _PILES.sub(r"\1", _JOINERS.sub(r"\1", replace_surrogates(text)))


def printable_json(line: str) -> str:
    """JSON of the same value, with control sequences for a terminal or a reader of lines as `\\u` escapes.

    `line` is JSON whose control characters below a space are escaped already, as JSON demands.
    """
    if line.isascii() and "\x7f" not in line:
        return line
    return _IN_JSON.sub(_escaped, line)


def replace_surrogates(text: str) -> str:
    """The text as UTF-8 can carry it, all else in it as it was: bytes of a file's name that are not UTF-8, which Python
    reads as surrogates (PEP 383), as `\\xe9`, and half of a surrogate pair as U+FFFD."""
    if text.isascii():
        return text
    return _SURROGATES.sub("\ufffd", _FILE_BYTES.sub(lambda match: f"\\x{ord(match[0]) - 0xDC00:02x}", text))


def _escaped(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
