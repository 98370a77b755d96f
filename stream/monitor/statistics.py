"""What a live view tells of a run in numbers: kept as events come, worked out when somebody looks. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from arr_coc.types import NS_PER_S
from stream.events import Answer, Cut, Event, FrameReady, Outage, Restarted, Shadow
from stream.monitor.metrics import (
    Percentiles,
    deadline_misses_percent,
    frames_per_second,
    interarrival_ms,
    interval_std_ms,
)

WINDOW_NS = 10 * NS_PER_S
"""What latency and jitter are measured over."""

RATE_NS = 2 * NS_PER_S
"""What the present frame rate and the share of changed tiles are measured over."""

FRAMES_KEPT = 4096
"""Ten seconds at 400 frames a second; of a faster source, the newest frames of the window."""

ANSWERS_KEPT = 60
"""What p95 of the time to the first token is of."""

READY, CAPTURE, PTS, DIRTY = range(4)
"""Columns of the table of recent frames; DIRTY is in millionths of the grid."""

NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class Loss:
    """The source is away: why, and for how long by now."""

    reason: str
    lasted_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """A run at one moment; None where there is nothing yet to measure by.

    `latency`, `interarrival_ms`, `interval_std_ms` and `misses_percent` are of the last ten seconds, `fps_now` and
    `dirty_percent` of the last two, `misses` of the run; `ttft_ms` and `total_ms` of the last answer, `ttft_p95_ms` of
    the last sixty. `tokens` and `tiles` are those of the newest frame, `media_s` its time. `target_ms` and `budget`:
    the latency that is held, and the budget for it. `checks`: answers that were compared with those of all tokens,
    how many of them were the same, and the mean share of equal words.
    """

    uptime_s: float
    frames: int
    media_s: float | None
    fps_now: float
    fps_run: float | None
    latency: Percentiles | None
    interarrival_ms: float | None
    interval_std_ms: float | None
    misses_percent: float | None
    misses: int
    answers: int
    ttft_ms: float | None
    total_ms: float | None
    tokens: int
    tiles: int
    dirty_percent: float | None
    cuts: int
    outages: int
    outages_s: float
    loss: Loss | None
    restarts: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    ttft_p95_ms: float | None = None
    target_ms: float | None = None
    budget: int | None = None
    checks: int = 0
    checks_same: int = 0
    checks_words: float | None = None


class LiveFigures:
    """Takes events, each at little cost, and gives figures.

    `period_ns` is the time between two frames by the source's own rate, None where it declares none: then it is the
    usual gap between the frames that came.
    """

    def __init__(self, start_ns: int, period_ns: int | None = None) -> None:
        self._start_ns = start_ns
        self._period_ns = period_ns
        self._recent: deque[tuple[int, int, int, int]] = deque(maxlen=FRAMES_KEPT)
        self._first_ready_ns = 0
        self._newest: FrameReady | None = None
        self._answer: Answer | None = None
        self._ttft_ms: deque[float] = deque(maxlen=ANSWERS_KEPT)
        self._frames = self._answers = self._cuts = self._misses = self._outages = self._restarts = 0
        self._outages_s = 0.0
        self._checks = self._checks_same = 0
        self._checks_words = 0.0
        self._lost: tuple[str, int] | None = None

    def add(self, event: Event, now_ns: int) -> None:
        if isinstance(event, FrameReady):
            self._frame(event)
        elif isinstance(event, Answer):
            self._answer = event
            self._answers += 1
            if event.timing is not None:
                self._ttft_ms.append(event.timing.ttft_ms)
        elif isinstance(event, Cut):
            self._cuts += 1
        elif isinstance(event, Shadow):
            self._checks += 1
            self._checks_same += event.same
            self._checks_words += event.words
        elif isinstance(event, Outage):
            self._outage(event, now_ns)
        elif isinstance(event, Restarted):
            self._restarts += 1

    def at(self, now_ns: int, dropped: Mapping[str, int] = NOTHING, memory: Mapping[str, int] = NOTHING) -> Figures:
        """The figures now. `dropped` by queue and cause, `memory` in bytes by process."""
        table = np.array(self._recent, dtype=np.int64).reshape(-1, 4)
        table = table[table[:, READY] > now_ns - WINDOW_NS]
        newest, timing = self._newest, None if self._answer is None else self._answer.timing
        latency_ms = (table[:, READY] - table[:, CAPTURE]) / 1e6
        ttft = Percentiles.of(self._ttft_ms)
        return Figures(
            uptime_s=(now_ns - self._start_ns) / NS_PER_S,
            frames=self._frames,
            media_s=None if newest is None else newest.pts_s,
            fps_now=_rate(table[:, READY], now_ns),
            fps_run=self._fps_run(),
            latency=Percentiles.of(latency_ms),
            interarrival_ms=interarrival_ms(table[:, READY], table[:, PTS]) if len(table) > 2 else None,
            interval_std_ms=interval_std_ms(table[:, READY], table[:, PTS]) if len(table) > 2 else None,
            misses_percent=self._misses_percent(latency_ms, table),
            misses=self._misses,
            answers=self._answers,
            ttft_ms=None if timing is None else timing.ttft_ms,
            total_ms=None if timing is None else timing.total_ms,
            tokens=0 if newest is None else newest.tokens,
            tiles=0 if newest is None else newest.tiles,
            dirty_percent=_dirty_percent(table, now_ns),
            cuts=self._cuts,
            outages=self._outages,
            outages_s=self._outages_s,
            loss=None if self._lost is None else Loss(self._lost[0], (now_ns - self._lost[1]) / NS_PER_S),
            restarts=self._restarts,
            dropped={queue: count for queue, count in dropped.items() if count},
            memory=dict(memory),
            ttft_p95_ms=None if ttft is None else ttft.p95,
            target_ms=None if self._answer is None else self._answer.target_ms,
            budget=None if self._answer is None else self._answer.budget,
            checks=self._checks,
            checks_same=self._checks_same,
            checks_words=self._checks_words / self._checks if self._checks else None,
        )

    def _frame(self, event: FrameReady) -> None:
        pts_ns, recent = round(event.pts_s * NS_PER_S), self._recent
        recent.append((event.ready_ns, event.capture_ns, pts_ns, round(event.dirty_share * 1e6)))
        while recent[0][READY] <= event.ready_ns - WINDOW_NS:
            recent.popleft()
        if self._newest is None:
            self._first_ready_ns = event.ready_ns
        if self._period_ns is not None and event.ready_ns - event.capture_ns > self._period_ns:
            self._misses += 1
        self._newest = event
        self._frames += 1

    def _outage(self, event: Outage, now_ns: int) -> None:
        """An outage is no jitter: what came before it is not compared with what comes after."""
        if event.lasted_s is not None:
            self._lost = None
            self._outages_s += event.lasted_s
        elif self._lost is None:
            self._lost = event.reason, now_ns
            self._outages += 1
            self._recent.clear()
        else:
            self._lost = event.reason, self._lost[1]

    def _fps_run(self) -> float | None:
        if self._newest is None or self._newest.ready_ns <= self._first_ready_ns:
            return None
        return (self._frames - 1) * NS_PER_S / (self._newest.ready_ns - self._first_ready_ns)

    def _misses_percent(self, latency_ms: npt.NDArray[np.float64], table: npt.NDArray[np.int64]) -> float | None:
        if len(table) < 3:
            return None
        if self._period_ns is None:
            self._period_ns = int(np.median(np.diff(table[:, PTS]))) or None
        if self._period_ns is None:
            return None
        return deadline_misses_percent(latency_ms, self._period_ns / 1e6)


def _rate(ready_ns: npt.NDArray[np.int64], now_ns: int) -> float:
    """Frames a second; it falls to 0 where they stop coming."""
    inside = ready_ns[ready_ns > now_ns - RATE_NS]
    usual_ns = int(np.median(np.diff(inside))) if inside.size > 1 else RATE_NS
    if not inside.size or now_ns - int(inside[-1]) > 3 * usual_ns:
        return inside.size * NS_PER_S / RATE_NS
    return frames_per_second(inside) or inside.size * NS_PER_S / RATE_NS


def _dirty_percent(table: npt.NDArray[np.int64], now_ns: int) -> float | None:
    recent = table[table[:, READY] > now_ns - RATE_NS]
    return float(np.mean(recent[:, DIRTY])) / 1e4 if len(recent) else None
