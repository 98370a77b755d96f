"""Records that a run puts into the file: moments, answers that still hold, and the end of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

ANSWER = "answer"
MATCH = "match"
OUTAGE = "outage"

KINDS = (ANSWER, MATCH, OUTAGE)
"""Kinds of moments."""

HELD_MAX_MS = 600_000
"""Time after which an answer that still holds is a new moment, with a new picture."""

UNIX_MS_MAX = 253_370_764_800_000
"""Greatest Unix time that is read: the beginning of the year 9999, the last one of Python's dates."""


@dataclass(frozen=True, slots=True)
class PastRun:
    """Run of one camera. `key` is unique; `source` holds no secrets.

    `continues`: the run repeats an interrupted one of this camera and source from its beginning, and takes its place.
    """

    key: str
    camera: str
    source: str
    began_ms: int
    model: str = ""
    continues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Answer, match or outage of a run, the `number`-th.

    `unix_ms` is the Unix time of its frame; `pts_s` the media time of that frame, and `start_s` to `end_s` the media
    time that it is about. `text` is what a search looks through. Of a match, `watch` is the name of the standing
    question, and `yes` its probability. `fields` is a structured answer as JSON. `jpeg`: the picture of the frame.
    """

    run: PastRun
    number: int
    kind: str
    unix_ms: int
    frame_index: int
    pts_s: float
    start_s: float
    end_s: float
    text: str
    question: str = ""
    watch: str = ""
    yes: float | None = None
    fields: str | None = None
    jpeg: bytes | None = None


@dataclass(frozen=True, slots=True)
class MomentExtension:
    """The answer `number` of a run still holds at `unix_ms`, and is about media time up to `end_s`."""

    run: PastRun
    number: int
    unix_ms: int
    end_s: float


@dataclass(frozen=True, slots=True)
class ClipFiles:
    """Names of the files of the match `number` of a run, in its folder of clips (`--clips`)."""

    run: PastRun
    number: int
    picture: str | None
    video: str | None


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run has ended, by `outcome`, as in its summary."""

    run: PastRun
    unix_ms: int
    outcome: str


Record: TypeAlias = Moment | MomentExtension | ClipFiles | RunEnded
