"""Statistics of a run: counters and windows fed by events, and the memory of its processes."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt
import psutil

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.events import (
    Answer,
    AnswerInvalid,
    AnswerPoint,
    AnswerUnchanged,
    BudgetChanged,
    Cut,
    Event,
    FrameReady,
    Glance,
    IdleSummary,
    Match,
    MemorySummary,
    Outage,
    PictureChanged,
    Restarted,
    ShadowCheck,
    ShadowSummary,
    Skipped,
    Summary,
    YesNoResult,
)
from stream.monitor.metrics import (
    Percentiles,
    deadline_misses_percent,
    frames_per_second,
    interarrival_ms,
    interval_std_ms,
)
from stream.monitor.schema import RecentJitter, StatsMessage


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Resident bytes of each process that ran at `at_ns` (monotonic), by what the process does."""

    at_ns: int
    rss_bytes: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """Pages that processes share count once for each."""
        return sum(self.rss_bytes.values())


def resident_bytes(processes: Mapping[str, int]) -> dict[str, int]:
    """Resident memory of each process that still runs; `processes` gives their ids by name. Shared pages count for
    each."""
    sizes: dict[str, int] = {}
    for name, pid in processes.items():
        with suppress(psutil.Error, OSError):  # also for lack of descriptors
            if size := psutil.Process(pid).memory_info().rss:  # 0 of one that has ended and waits for its parent
                sizes[name] = size
    return sizes


class MemorySampler:
    """Samples while it is entered, in a separate thread, from the first moment on.

    `processes` returns the ids of the run's processes by what they do; this one, if it is none of them, is "sinks".
    """

    def __init__(self, processes: Callable[[], Mapping[str, int]], period_s: float = 0.5) -> None:
        self._processes = processes
        self._period_s = period_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="memory", daemon=True)
        self.samples: list[MemorySample] = []

    def __enter__(self) -> MemorySampler:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        self._sample()
        while not self._stop.wait(self._period_s):
            self._sample()

    def _sample(self) -> None:
        processes = dict(self._processes())
        if os.getpid() not in processes.values():
            processes["sinks"] = os.getpid()
        self.samples.append(MemorySample(time.monotonic_ns(), resident_bytes(processes)))


WINDOW_NS = 10 * NS_PER_S
"""Latency and jitter are measured over this."""

RATE_NS = 2 * NS_PER_S
"""The present frame rate and the share of changed tiles are measured over this."""

READY, CAPTURE, PTS, DIRTY = range(4)
"""Columns of the table of recent frames; DIRTY is in millionths of the grid."""

NOTHING: Mapping[str, int] = {}

Table = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ActiveOutage:
    """The source is away: why, and for how long by now."""

    reason: str
    lasted_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsSnapshot(StatsMessage):
    """The statistics of a run at one moment: the published ones, and those that only displays show.

    `media_s` is the time of the newest frame, `fps_run` the frame rate of the whole run.
    """

    media_s: float | None
    fps_run: float | None
    outage: ActiveOutage | None


@dataclass(slots=True)
class RunTotals:
    """Counts of a run since its start, and the sums by which its means are made."""

    frames: int = 0
    answers: int = 0
    cuts: int = 0
    discontinuities: int = 0
    skipped: int = 0
    deadline_misses: int = 0
    outages: int = 0
    outages_s: float = 0.0
    glances: int = 0
    glance_tokens: int = 0
    unchanged: int = 0
    invalid: int = 0
    checks: int = 0
    checks_same: int = 0
    checks_differing: int = 0
    checks_words: float = 0.0
    budget_raises: int = 0
    budget_lowers: int = 0
    tokens: int = 0
    tiles: int = 0
    dirty_share: float = 0.0
    motion_px: float = 0.0
    moving_share: float = 0.0
    flops: int = 0
    full_flops: int = 0
    appended_tokens: int = 0
    kept_tokens: int = 0
    superseded_tokens: int = 0
    idle_tokens: int = 0
    idle_ms: float = 0.0
    rebuilt: int = 0


class RunStatistics:
    """Counters and windows of one run. The run adds each of its events once; any thread may read.

    `fps` is the source's declared rate, by which frames are late; None takes the median gap between recent frames.
    """

    def __init__(self, clock: Clock, fps: float | None = None) -> None:
        self._clock = clock
        self._start_ns = clock.now_ns()
        self._lock = threading.Lock()
        self._period_ns = round(NS_PER_S / fps) if fps else None
        # ten seconds at 400 frames a second; of a faster source, the newest frames of the window
        self._recent: deque[tuple[int, int, int, int]] = deque(maxlen=4096)
        self._ttft_ms: deque[float] = deque(maxlen=60)  # p95 of the time to the first token is of this many answers
        self._first: FrameReady | None = None
        self._newest: FrameReady | None = None
        self._answer: AnswerPoint | None = None
        self._budget: int | None = None
        self._outage: tuple[str, int] | None = None
        self._matches: int | None = None
        self._glance_ms: float | None = None
        self.totals = RunTotals()
        self._restarts: Counter[str] = Counter()
        self._groups: Counter[str] = Counter()

    def add(self, event: Event) -> None:
        """Adds the next event of the run."""
        now_ns = self._clock.now_ns()
        totals = self.totals
        with self._lock:
            if isinstance(event, FrameReady):
                self._add_frame(event)
            elif isinstance(event, AnswerPoint):
                self._add_answer(event)
            elif isinstance(event, Glance):
                totals.glances += 1
                totals.glance_tokens += event.tokens_used
                if event.timing is not None:
                    self._glance_ms = event.timing.total_ms
            elif isinstance(event, Outage):
                # an outage is no jitter: the frame before it is not compared with the frame after it
                if event.lasted_s is not None:
                    self._outage = None
                    self.totals.outages_s += event.lasted_s
                elif self._outage is None:
                    self._outage = event.reason, now_ns
                    self.totals.outages += 1
                    self._recent.clear()
                else:
                    self._outage = event.reason, self._outage[1]
            elif isinstance(event, Cut):
                totals.cuts += 1
            elif isinstance(event, PictureChanged):
                totals.discontinuities += 1
            elif isinstance(event, Skipped):
                totals.skipped += event.count
            elif isinstance(event, (YesNoResult, Match)):
                self._matches = (self._matches or 0) + isinstance(event, Match)
            elif isinstance(event, ShadowCheck):
                totals.checks += 1
                totals.checks_same += event.same
                totals.checks_differing += event.differs
                totals.checks_words += event.words
            elif isinstance(event, BudgetChanged):
                self._budget = event.to_tokens
                totals.budget_raises += event.reason == "differ"
                totals.budget_lowers += event.reason == "agree"
            elif isinstance(event, Restarted):
                self._restarts[event.process] += 1

    def snapshot(
        self, dropped: Mapping[str, int] = NOTHING, memory_bytes: Mapping[str, int] = NOTHING
    ) -> StatisticsSnapshot:
        """The statistics now. `dropped` by queue and cause, `memory_bytes` by process."""
        now_ns = self._clock.now_ns()
        totals = self.totals
        with self._lock:
            table = np.array(self._recent, dtype=np.int64).reshape(-1, 4)
            table = table[table[:, READY] > now_ns - WINDOW_NS]
            newest = self._newest
            answer = self._answer
            timing = None if answer is None else answer.timing
            ttft = Percentiles.of(self._ttft_ms)
            return StatisticsSnapshot(
                uptime_s=(now_ns - self._start_ns) / NS_PER_S,
                fps=_rate(table[:, READY], now_ns),
                frames=totals.frames,
                answers=totals.answers,
                unchanged=totals.unchanged,
                cuts=totals.cuts,
                skipped=totals.skipped,
                outages=totals.outages,
                outages_s=totals.outages_s,
                restarts=dict(self._restarts),
                dropped={queue: count for queue, count in dropped.items() if count},
                latency_ms=Percentiles.of((table[:, READY] - table[:, CAPTURE]) / 1e6),
                jitter=self._jitter(table),
                deadline_misses=totals.deadline_misses,
                ttft_ms=None if timing is None else timing.ttft_ms,
                total_ms=None if timing is None else timing.total_ms,
                ttft_p95_ms=None if ttft is None else ttft.p95,
                target_ms=None if answer is None else answer.target_ms,
                budget=self._budget,
                checks=totals.checks,
                checks_same=totals.checks_same,
                checks_differing=totals.checks_differing,
                checks_words=totals.checks_words / totals.checks if totals.checks else None,
                budget_raises=totals.budget_raises,
                budget_lowers=totals.budget_lowers,
                glances=totals.glances,
                glance_tokens=totals.glance_tokens,
                glance_ms=self._glance_ms,
                memory=self._memory(),
                tokens=0 if newest is None else newest.tokens,
                tiles=0 if newest is None else newest.tiles,
                dirty_share=_dirty_share(table, now_ns),
                memory_bytes=dict(memory_bytes),
                media_s=None if newest is None else newest.pts_s,
                fps_run=self._fps_run(),
                outage=self._active_outage(now_ns),
            )

    def summary(self, ended: str, error: str | None, dropped: Mapping[str, int], backend: str) -> Summary:
        """Return the event that ends the run.

        Its `duration_s` is media time from the first frame to the last; `timing` holds the run's wall time in seconds
        and the frames a second between the first allocation and the last.

        Args:
            ended: Reason of the end.
            error: Message of the error that ended the run; None if it ended without one.
            dropped: Number of dropped messages by queue.
            backend: Backend of the texture store.
        """
        now_ns = self._clock.now_ns()
        totals = self.totals
        with self._lock:
            first = self._first
            newest = self._newest
            frames = max(1, totals.frames)
            return Summary(
                frames=totals.frames,
                duration_s=0.0 if first is None or newest is None else newest.pts_s - first.pts_s,
                answers=totals.answers,
                cuts=totals.cuts,
                skipped=totals.skipped,
                dropped={queue: count for queue, count in dropped.items() if count},
                mean_tokens=totals.tokens / frames,
                mean_dirty_share=totals.dirty_share / frames,
                ended=ended,
                backend=backend,
                discontinuities=totals.discontinuities,
                error=error,
                mean_tiles=totals.tiles / frames,
                work_ratio=totals.full_flops / totals.flops if totals.flops else None,
                found=None if self._matches is None else self._matches > 0,
                matches=self._matches or 0,
                glances=totals.glances,
                mean_motion_px=totals.motion_px / frames,
                mean_moving_share=totals.moving_share / frames,
                memory=self._memory(),
                unchanged=totals.unchanged,
                invalid=totals.invalid,
                shadow=self._shadow(),
                timing={"wall_s": (now_ns - self._start_ns) / NS_PER_S, "fps": self._fps_run() or 0.0},
            )

    def _add_frame(self, event: FrameReady) -> None:
        recent = self._recent
        totals = self.totals
        recent.append((event.ready_ns, event.capture_ns, round(event.pts_s * NS_PER_S), round(event.dirty_share * 1e6)))
        while recent[0][READY] <= event.ready_ns - WINDOW_NS:
            recent.popleft()
        if self._period_ns is not None and event.ready_ns - event.capture_ns > self._period_ns:
            totals.deadline_misses += 1
        self._first = self._first or event
        self._newest = event
        totals.frames += 1
        totals.tokens += event.tokens
        totals.tiles += event.tiles
        totals.dirty_share += event.dirty_share
        totals.motion_px += event.motion_px
        totals.moving_share += event.moving_share

    def _memory(self) -> MemorySummary | None:
        totals = self.totals
        if not self._groups:
            return None
        return MemorySummary(
            groups=dict(self._groups),
            appended_tokens=totals.appended_tokens,
            kept_tokens=totals.kept_tokens,
            superseded_tokens=totals.superseded_tokens,
            idle=IdleSummary(tokens=totals.idle_tokens, rebuilt=totals.rebuilt, seconds=totals.idle_ms / 1000)
            if totals.idle_tokens
            else None,
        )

    def _shadow(self) -> ShadowSummary | None:
        totals = self.totals
        if not totals.checks:
            return None
        return ShadowSummary(
            checks=totals.checks,
            same=totals.checks_same,
            differing=totals.checks_differing,
            raises=totals.budget_raises,
            lowers=totals.budget_lowers,
        )

    def _add_answer(self, event: AnswerPoint) -> None:
        if event.group:
            before = self._answer
            totals = self.totals
            superseded = event.superseded_tokens
            if before is None or before.group != event.group:
                # one that began with a check, or in idle time, has no answer to name it
                self._groups[event.began or ("rebuilt" if event.rebuilt else "check")] += 1
            else:
                superseded -= before.superseded_tokens
            totals.appended_tokens += event.appended_tokens
            totals.kept_tokens += event.tokens_used - event.appended_tokens
            totals.superseded_tokens += superseded
            totals.idle_tokens += event.idle_tokens
            totals.idle_ms += 0.0 if event.timing is None else event.timing.idle_ms
            totals.rebuilt += event.rebuilt
        self._answer = event
        if event.budget is not None:
            self._budget = event.budget
        self.totals.answers += isinstance(event, Answer)
        self.totals.unchanged += isinstance(event, AnswerUnchanged)
        self.totals.invalid += isinstance(event, AnswerInvalid)
        self.totals.flops += event.flops
        self.totals.full_flops += event.full_flops
        if event.timing is not None:
            self._ttft_ms.append(event.timing.ttft_ms)

    def _active_outage(self, now_ns: int) -> ActiveOutage | None:
        if self._outage is None:
            return None
        return ActiveOutage(self._outage[0], (now_ns - self._outage[1]) / NS_PER_S)

    def _fps_run(self) -> float | None:
        if self._first is None or self._newest is None or self._newest.ready_ns <= self._first.ready_ns:
            return None
        return (self.totals.frames - 1) * NS_PER_S / (self._newest.ready_ns - self._first.ready_ns)

    def _jitter(self, table: Table) -> RecentJitter | None:
        """None below three frames, and if frames have no rate to be compared with."""
        if len(table) < 3:
            return None
        if self._period_ns is None:
            self._period_ns = int(np.median(np.diff(table[:, PTS]))) or None
        if self._period_ns is None:
            return None
        latency_ms = (table[:, READY] - table[:, CAPTURE]) / 1e6
        return RecentJitter(
            interarrival_ms=interarrival_ms(table[:, READY], table[:, PTS]),
            interval_std_ms=interval_std_ms(table[:, READY], table[:, PTS]),
            deadline_misses_percent=deadline_misses_percent(latency_ms, self._period_ns / 1e6),
        )


def _rate(ready_ns: Table, now_ns: int) -> float:
    """Frames a second; it falls to 0 if they stop coming."""
    recent_ns = ready_ns[ready_ns > now_ns - RATE_NS]
    if recent_ns.size > 1:
        usual_ns = int(np.median(np.diff(recent_ns)))
    else:
        usual_ns = RATE_NS
    if not recent_ns.size or now_ns - int(recent_ns[-1]) > 3 * usual_ns:
        return recent_ns.size * NS_PER_S / RATE_NS
    return frames_per_second(recent_ns) or recent_ns.size * NS_PER_S / RATE_NS


def _dirty_share(table: Table, now_ns: int) -> float | None:
    recent = table[table[:, READY] > now_ns - RATE_NS]
    if len(recent):
        return float(np.mean(recent[:, DIRTY])) / 1e6
    return None
