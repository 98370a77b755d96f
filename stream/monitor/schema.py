"""What robots and displays are told over ZeroMQ: one struct a topic, the body of a message in msgpack.

docs/robots.md explains every field. A field may be added at any time; `v` grows where one changes its meaning or goes.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from arr_coc.types import TILE_PX
from stream.events import AnswerTiming, LookTiming
from stream.monitor.metrics import Percentiles

VERSION = 1


class Published(msgspec.Struct, frozen=True, kw_only=True, tag_field="topic"):
    """Base of all: `seq` counts the messages of this topic, `unix_ns` is when the message was made."""

    v: int = VERSION
    seq: int = 0
    unix_ns: int = 0


class PublishedAnswer(Published, frozen=True, tag="answer"):
    """One whole answer."""

    answer: int
    frame_index: int
    pts_s: float
    start_s: float
    end_s: float
    trigger: str
    query: str
    text: str
    tokens_used: int
    tokens_total: int
    text_tokens: int
    frames: int
    kept_bytes: int
    flops: int
    full_flops: int
    target_ms: float | None
    budget: int | None
    timing: AnswerTiming | None


class PublishedCancelled(Published, frozen=True, tag="cancelled"):
    """An answer was cancelled while it was being spoken."""

    answer: int
    frame_index: int
    pts_s: float
    trigger: str
    text: str
    by: str
    by_frame_index: int
    by_pts_s: float


class PublishedText(Published, frozen=True, tag="text"):
    """A piece of an answer that is being spoken."""

    answer: int
    text: str
    pts_s: float | None


class PublishedLook(Published, frozen=True, tag="look"):
    """One look at a standing question."""

    frame_index: int
    pts_s: float
    trigger: str
    question: str
    yes: float
    certain: float
    holds: str | None
    tokens_used: int
    tokens_total: int
    kept_bytes: int
    timing: LookTiming | None
    warning: str | None = None


class PublishedTurned(Published, frozen=True, tag="turned"):
    """The answer to a standing question has turned."""

    frame_index: int
    pts_s: float
    question: str
    to: str
    yes: float
    certain: float
    warning: str | None = None


class PublishedFrame(Published, frozen=True, tag="frame"):
    """One frame's allocation: uint8 [rows, cols] and little-endian int16 [K, 3]."""

    frame_index: int
    pts_s: float
    capture_ns: int
    ready_ns: int
    texture_ms: float
    allocate_ms: float
    dirty_share: float
    tokens: int
    tiles: int
    jitter_share: float
    rows: int | None
    cols: int | None
    relevance: bytes | None
    regions: bytes | None


class PublishedShadow(Published, frozen=True, tag="shadow"):
    """An answer beside the one that the same frame gets with all of its tokens."""

    answer: int
    frame_index: int
    pts_s: float
    query: str
    text: str
    full_text: str
    same: bool
    words: float
    tokens_used: int
    tokens_full: int


class PublishedCut(Published, frozen=True, tag="cut"):
    """A scene cut."""

    frame_index: int
    pts_s: float
    score: float


class PublishedDiscontinuity(Published, frozen=True, tag="discontinuity"):
    """The picture has another size or form from this frame on."""

    frame_index: int
    pts_s: float
    reason: str
    width_px: int
    height_px: int


class PublishedOutage(Published, frozen=True, tag="outage"):
    """A live source was lost (`lasted_s` is nil), or is back."""

    frame_index: int
    pts_s: float
    reason: str
    lasted_s: float | None
    attempts: int


class PublishedRestarted(Published, frozen=True, tag="restarted"):
    """A process died or hung and is being started again."""

    process: str
    cause: str
    count: int


class PublishedAsked(Published, frozen=True, tag="asked"):
    """The question was changed, or the change was refused."""

    query: str
    error: str | None


class PublishedNotice(Published, frozen=True, tag="notice"):
    """Something that a person should know once."""

    code: str
    message: str


class PublishedStatus(Published, frozen=True, tag="status"):
    """What runs, and in what state; sent where it changes."""

    state: str
    reason: str | None
    source: str
    model: str
    query: str
    backend: str
    live: bool
    fps: float | None
    width_px: int | None
    height_px: int | None
    work_width_px: int | None
    work_height_px: int | None
    rows: int | None
    cols: int | None
    tile_px: int = TILE_PX


class PublishedJitter(msgspec.Struct, frozen=True, kw_only=True):
    """How unevenly frames come out of a source with a schedule, over the last ten seconds."""

    interarrival_ms: float
    interval_std_ms: float
    deadline_misses_percent: float


class PublishedStats(Published, frozen=True, tag="stats"):
    """How it goes, once a second."""

    uptime_s: float
    fps: float
    frames: int
    answers: int
    cuts: int
    skipped: int
    outages: int
    outages_s: float
    restarts: dict[str, int]
    dropped: dict[str, int]
    latency_ms: Percentiles | None
    jitter: PublishedJitter | None
    deadline_misses: int | None
    ttft_ms: float | None
    total_ms: float | None
    ttft_p95_ms: float | None
    target_ms: float | None
    budget: int | None
    checks: int
    checks_same: int
    checks_words: float | None
    tokens: int
    tiles: int
    dirty_share: float | None
    memory_bytes: dict[str, int]


class PublishedSummary(Published, frozen=True, tag="summary"):
    """The end of the run."""

    frames: int
    duration_s: float
    answers: int
    cuts: int
    discontinuities: int
    skipped: int
    dropped: dict[str, int]
    mean_tokens: float
    mean_dirty_share: float
    ended: str
    backend: str
    error: str | None
    mean_tiles: float
    work_ratio: float | None
    found: bool | None
    timing: dict[str, float] | None


AnyPublished: TypeAlias = (
    PublishedAnswer
    | PublishedText
    | PublishedCancelled
    | PublishedLook
    | PublishedTurned
    | PublishedFrame
    | PublishedShadow
    | PublishedCut
    | PublishedDiscontinuity
    | PublishedOutage
    | PublishedRestarted
    | PublishedAsked
    | PublishedNotice
    | PublishedStatus
    | PublishedStats
    | PublishedSummary
)


def topic_of(kind: type[Published]) -> str:
    return str(kind.__struct_config__.tag)
