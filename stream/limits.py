"""The most that anybody may say to this program: one table for messages, requests, recordings and journals.

Everything that comes from another program is held to these at the moment when it is decoded, and is dropped or refused
where it breaks one. They lie far above what the program itself sends. docs/robustness.md explains them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from arr_coc.types import TILE_PX
from stream.config import QUERY_LIMIT_CHARS

KIB, MIB = 1024, 1024 * 1024

# Texts, in characters.
ANSWER_CHARS_MAX = 65_536
"""A whole answer; at 64 tokens, the default, one has some 300."""
REASON_CHARS_MAX = 4_000
"""Why something is refused, or failed."""
DETAILS_CHARS_MAX = 65_536
"""A traceback."""
NAME_CHARS_MAX = 1_024
"""Of a model, a known world, a kind of encoding."""
SETTINGS_CHARS_MAX = 65_536
"""What answers depend on, as JSON."""

# Numbers.
COUNT_MAX = 2**53
"""Beyond this a number is not the same in every language that reads JSON."""
TIME_NS_MAX = 2**62
"""146 years on either side of a clock's start."""
DURATION_MS_MAX = 1e9
"""Eleven days for one answer."""
SIDE_PX_MAX = 16_384
"""Of a picture from another program."""
LONG_SIDE_PX_MAX = 2**20
"""Of a frame that is asked about: a panorama may be long, and then is low."""
FRAME_TILES_MAX = (SIDE_PX_MAX // TILE_PX) ** 2
"""Of a frame that is asked about: four times those of 67 million pixels, the most that are decoded by default."""

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
question in a script that takes several tokens a letter, is refused where it is made."""
RECORD_BYTES_MAX = 300 * MIB
"""A record of a recording: a message, and its arrays packed."""
KEPT_BYTES_MAX = 16 * MIB
"""A record of a journal: an answer, and what it taught."""
CONFIG_BYTES_MAX = 1 * MIB
"""A configuration file."""
JOURNAL_BYTES_MAX = 1024 * MIB
"""What of a journal is read: a hundred times that of a day of answers each second."""

# How much at once, and how often.
PIECES_MAX = 16_384
"""Pieces of one answer."""
HEARD_AT_ONCE = 64
"""Messages that are heard before a stage goes on with its own work."""
MISDEEDS_MAX = 1_000
"""Dropped messages after which an answer stage counts as failed, where it did nothing right between them."""
QUESTIONS_AT_ONCE = 4
"""Questions of one client that are looked at during one answer; of more of them only the last, after it."""
SEQUENCE_GAP_MAX = 1_000_000
"""Frames that a sender may have left out between two; numbers further apart do not count anything."""

Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
Length = Annotated[int, Meta(ge=0, le=2**31)]
TimeNs = Annotated[int, Meta(ge=-TIME_NS_MAX, le=TIME_NS_MAX)]
DurationMs = Annotated[float, Meta(ge=0, le=DURATION_MS_MAX)]
Share = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
Query = Annotated[str, Meta(max_length=QUERY_LIMIT_CHARS)]
Words = Annotated[str, Meta(max_length=ANSWER_CHARS_MAX)]
Reason = Annotated[str, Meta(max_length=REASON_CHARS_MAX)]
Details = Annotated[str, Meta(max_length=DETAILS_CHARS_MAX)]
Settings = Annotated[str, Meta(max_length=SETTINGS_CHARS_MAX)]
Weights = Annotated[bytes, Meta(max_length=WEIGHTS_BYTES_MAX)]


def cut_to(text: str, chars: int) -> str:
    """The text in at most so many characters; an ellipsis says that there was more."""
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
