"""How a run is doing at this moment: fed with its events by one thread, asked by any."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil
from msgspec.structs import replace

from arr_coc.types import NS_PER_S
from stream.clock import Clock, MonotonicClock
from stream.config import Config
from stream.events import (
    ANSWERS_LOST,
    STORE_LOST,
    Answer,
    AnswerText,
    Asked,
    Event,
    FrameReady,
    Looked,
    Notice,
    Outage,
    Restarted,
    Skipped,
    Started,
    Summary,
)
from stream.monitor.schema import PublishedJitter, PublishedStats, PublishedStatus
from stream.monitor.statistics import Figures, LiveFigures
from stream.sinks.base import Watched
from stream.sources import SourceInfo
from stream.sources.fit import Fit

STALL_MIN_S = 2.0
"""A stream is not called stalled before this."""

ANSWERS = "answers"
"""The name of the process that answers."""

CPU = "cpu"
"""The store that takes over from any other."""


@dataclass(frozen=True, slots=True)
class Health:
    """`status` is "loading", "ok", "outage", "restarting", "stalled" or "ended"; `reason` says why, where it is not ok,
    or why answers fail.

    `ready`: the model answers. `frame_age_s`: how long ago the last frame came.
    """

    status: str
    reason: str | None
    ready: bool
    frame_age_s: float | None
    frames: int
    answers: int

    @property
    def well(self) -> bool:
        return self.status in {"ok", "loading"}


class Vitals:
    """What is known of a run: its state, its figures, and whether it is well."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self._start_ns = self._clock.now_ns()
        self._figures = LiveFigures(self._start_ns)
        self._fit = Fit.of(config.capture)
        self._paced = config.capture.realtime
        self._stall_limit_s = max(STALL_MIN_S, config.capture.stall_s)
        self._silence_limit_s = config.pipeline.timeout_s
        self._run: Watched | None = None
        self._info: SourceInfo | None = None
        self._started = Started(source="", model="", query=config.answer.asked, backend="")
        self._query = config.answer.asked
        self._grid: tuple[int, int] | None = None
        self._frame_ns: int | None = None
        self._alive_ns = self._start_ns
        self._frames = self._answers = self._skipped = 0
        self._ready = False
        self._no_answers: str | None = None
        self._restarts: Counter[str] = Counter()
        self._down: dict[str, str] = {}
        self._outage: str | None = None
        self._ended: str | None = None

    @property
    def run(self) -> Watched | None:
        """The run that is followed; None before it is made."""
        return self._run

    def follow(self, run: Watched) -> None:
        """Called once the run is made: it is asked for its drops and processes from now on."""
        info = run.source_info
        with self._lock:
            self._run, self._info = run, info
            self._paced = self._paced or info.live
            self._figures = LiveFigures(self._start_ns, round(NS_PER_S / info.fps) if info.fps else None)

    def add(self, event: Event) -> None:
        """Takes the next event of the run."""
        now_ns = self._clock.now_ns()
        with self._lock:
            self._figures.add(event, now_ns)
            self._add(event, now_ns)

    def status(self) -> PublishedStatus:
        """What runs, and in what state."""
        with self._lock:
            state, reason = self._state()
            info, (rows, cols) = self._info, self._grid or (None, None)
            source = self._started.source if info is None else info.name
            work = None if info is None else self._fit.work_size(info.height_px, info.width_px)
            return PublishedStatus(
                state=state,
                reason=reason,
                source=source,
                model=self._started.model,
                query=self._query,
                backend=self._started.backend,
                live=info is not None and info.live,
                fps=None if info is None else info.fps,
                width_px=None if info is None else info.width_px,
                height_px=None if info is None else info.height_px,
                work_width_px=None if work is None else work[1],
                work_height_px=None if work is None else work[0],
                rows=rows,
                cols=cols,
            )

    def stats(self) -> PublishedStats:
        """The figures of this moment."""
        run = self._run
        dropped = {} if run is None else run.drops()
        memory = {} if run is None else memory_bytes(run.processes())
        with self._lock:
            now = self._figures.at(self._clock.now_ns(), dropped, memory)
            return PublishedStats(
                uptime_s=now.uptime_s,
                fps=now.fps_now,
                frames=now.frames,
                answers=now.answers,
                cuts=now.cuts,
                skipped=self._skipped,
                outages=now.outages,
                outages_s=now.outages_s,
                restarts=dict(self._restarts),
                dropped=dict(now.dropped),
                latency_ms=now.latency,
                jitter=_jitter(now) if self._paced else None,
                deadline_misses=now.misses if self._paced else None,
                ttft_ms=now.ttft_ms,
                total_ms=now.total_ms,
                ttft_p95_ms=now.ttft_p95_ms,
                target_ms=now.target_ms,
                budget=now.budget,
                checks=now.checks,
                checks_same=now.checks_same,
                checks_words=now.checks_words,
                tokens=now.tokens,
                tiles=now.tiles,
                dirty_share=None if now.dirty_percent is None else now.dirty_percent / 100,
                memory_bytes=dict(now.memory),
            )

    def health(self) -> Health:
        """Whether the run is well."""
        with self._lock:
            now_ns = self._clock.now_ns()
            status, reason = self._state()
            if status == "running":
                status, reason = self._stalled(now_ns)
            if status == "ok":
                reason = self._no_answers
            age_s = None if self._frame_ns is None else (now_ns - self._frame_ns) / NS_PER_S
            return Health(status, reason, self._ready, age_s, self._frames, self._answers)

    def _state(self) -> tuple[str, str | None]:
        if self._ended is not None:
            return "ended", self._ended
        if self._outage is not None:
            return "outage", self._outage
        if self._down:
            return "restarting", "; ".join(f"{process}: {cause}" for process, cause in self._down.items())
        return ("loading" if self._frame_ns is None else "running"), None

    def _stalled(self, now_ns: int) -> tuple[str, str | None]:
        """A source with a pace owes frames; one that waits for answers may take as long as they may."""
        since_ns = self._frame_ns if self._paced else self._alive_ns
        age_s = (now_ns - (since_ns or now_ns)) / NS_PER_S
        late = age_s > (self._stall_limit_s if self._paced else self._silence_limit_s)
        return ("stalled", f"no frame for {age_s:.1f} s") if late else ("ok", None)

    def _add(self, event: Event, now_ns: int) -> None:
        if isinstance(event, FrameReady):
            self._take_frame(event, now_ns)
        elif isinstance(event, (AnswerText, Answer, Looked)):
            self._answers += isinstance(event, Answer)
            self._alive_ns, self._ready, self._no_answers = now_ns, True, None
            self._down.pop(ANSWERS, None)
        elif isinstance(event, Started):
            self._started, self._query = event, event.query
        elif isinstance(event, Asked) and event.error is None:
            self._query = event.query
        elif isinstance(event, Outage):
            self._outage = event.reason if event.lasted_s is None else None
        elif isinstance(event, Restarted):
            self._restarts[event.process] += 1
            self._down[event.process] = event.cause
        elif isinstance(event, Notice) and event.code == ANSWERS_LOST:
            self._ready, self._no_answers = False, event.message
        elif isinstance(event, Notice) and event.code == STORE_LOST:
            self._started = replace(self._started, backend=CPU)
        elif isinstance(event, Skipped):
            self._skipped += event.count
        elif isinstance(event, Summary):
            self._ended = event.error or event.ended

    def _take_frame(self, frame: FrameReady, now_ns: int) -> None:
        self._frames += 1
        self._frame_ns = self._alive_ns = now_ns
        self._outage = None
        self._down = {process: cause for process, cause in self._down.items() if process == ANSWERS}
        if frame.map is not None:
            self._grid = frame.map.rows, frame.map.cols


def memory_bytes(processes: Mapping[str, int]) -> dict[str, int]:
    """Resident memory of each process, by what it does; those that are gone are left out."""
    found: dict[str, int] = {}
    for name, pid in processes.items():
        with suppress(psutil.Error):
            found[name] = psutil.Process(pid).memory_info().rss
    return found


def _jitter(now: Figures) -> PublishedJitter | None:
    if now.interarrival_ms is None or now.interval_std_ms is None or now.misses_percent is None:
        return None
    return PublishedJitter(
        interarrival_ms=now.interarrival_ms,
        interval_std_ms=now.interval_std_ms,
        deadline_misses_percent=now.misses_percent,
    )
