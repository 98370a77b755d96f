"""Public ZeroMQ schema: the events of a run as they are, `status`, `stats`, and the envelope of every message.

docs/robots.md explains every field. A field may be added at any time; `v` grows if one changes its meaning or goes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec

from arr_coc.types import TILE_PX
from stream.events import (
    PICTURE,
    AnyEvent,
    AskedPicture,
    Event,
    Explanation,
    FrameMap,
    FrameReady,
    Glance,
    MemorySummary,
    SegmentWritten,
    Skipped,
    Started,
    VideoFragment,
)
from stream.monitor.metrics import Percentiles

VERSION = 1

STATUS = "status"
STATS = "stats"

UNPUBLISHED = (Started, Skipped, Explanation, AskedPicture, SegmentWritten, VideoFragment)
"""Events that only `status` and `stats` report, and those that are for a separate output."""

TOPICS = (*(kind.__struct_config__.tag for kind in get_args(AnyEvent) if kind not in UNPUBLISHED), STATUS, STATS)
"""All topics. That of an event is its tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusMessage:
    """`status`: the source, the model and the state of the run; published when it changes.

    `known_world`: the only world that the model knows; None for a general model, and for one on another host.
    """

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
    known_world: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentJitter:
    """Unevenness with which frames come out of a source with a schedule, over the last ten seconds."""

    interarrival_ms: float
    interval_std_ms: float
    deadline_misses_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsMessage:
    """`stats`: the figures of a run, published once a second; None while there is nothing to measure by.

    `latency_ms` and `jitter` are of the last ten seconds, `fps` and `dirty_share` of the last two, `deadline_misses` of
    the run; `ttft_ms` and `total_ms` of the last answer, `ttft_p95_ms` of the last sixty. `tokens` and `tiles` are
    those of the newest frame. `target_ms`: the latency that is held. `budget`: the one that a latency target or shadow
    checks set; None before. `checks`: answers that were compared with those of all tokens, how many of them were the
    same, how many counted as different, and the mean share of equal words; `budget_raises` and `budget_lowers`: how
    often they moved the budget. `glances`: looks at an overview before an answer, `glance_tokens` their visual tokens,
    `glance_ms` the time of the last one. `memory`: that of the summary, so far. `unchanged`: answers without news.
    """

    uptime_s: float
    fps: float
    frames: int
    answers: int
    unchanged: int = 0
    cuts: int
    skipped: int
    outages: int
    outages_s: float
    restarts: dict[str, int]
    dropped: dict[str, int]
    latency_ms: Percentiles | None
    jitter: RecentJitter | None
    deadline_misses: int | None
    ttft_ms: float | None
    total_ms: float | None
    ttft_p95_ms: float | None
    target_ms: float | None
    budget: int | None
    checks: int
    checks_same: int
    checks_words: float | None
    checks_differing: int = 0
    budget_raises: int = 0
    budget_lowers: int = 0
    glances: int
    glance_tokens: int
    glance_ms: float | None
    memory: MemorySummary | None
    tokens: int
    tiles: int
    dirty_share: float | None
    memory_bytes: dict[str, int]


def envelope(topic: str, fields: Mapping[str, Any], seq: int = 0, unix_ns: int = 0) -> dict[str, Any]:
    """Return a whole message.

    Args:
        topic: Topic of the message.
        fields: Fields of the topic.
        seq: Number of the message among those of its topic.
        unix_ns: Unix time of the message.
    """
    return {"topic": topic, "v": VERSION, "seq": seq, "unix_ns": unix_ns, **fields}


def event_message(event: Event) -> tuple[str, dict[str, Any]] | None:
    """Topic and fields of an event, without the time of day that only a live source has; None if it is not published.
    The map of a frame or glance is laid flat."""
    if isinstance(event, UNPUBLISHED):
        return None
    fields = msgspec.structs.asdict(event)
    if event.time is None:
        del fields["time"]
    if isinstance(event, FrameReady):
        del fields["duration_s"]
    if isinstance(event, (FrameReady, Glance)):
        for name in PICTURE:
            del fields[name]
        fields |= {name: getattr(event.map, name, None) for name in FrameMap.__struct_fields__}
    return str(event.__struct_config__.tag), fields
