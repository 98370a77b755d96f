"""Health of a run: its state, and whether it is well; fed by one thread and read from any."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Protocol

from msgspec.structs import replace

from arr_coc.errors import ArrCocError
from arr_coc.types import NS_PER_S
from stream.answer.model import model_world
from stream.clock import Clock, MonotonicClock
from stream.config import Config
from stream.control import INTERRUPTED, AddWatch, Ask, AskAside, Command, RemoveWatch
from stream.events import (
    ANSWERS_LOST,
    STORE_LOST,
    AnswerDeltaEvent,
    AnswerPoint,
    Event,
    FrameReady,
    Notice,
    Outage,
    QueryChanged,
    Restarted,
    Started,
    Summary,
    YesNoResult,
)
from stream.media import AllocationOverlay
from stream.monitor.schema import StatsMessage, StatusMessage
from stream.monitor.statistics import RunStatistics, resident_bytes
from stream.protocol.pictures import PictureEndpoints
from stream.sources import SourceInfo
from stream.sources.fit import FrameFitter
from stream.untrusted import QUERY_LIMIT_CHARS

ANSWERS = "answers"
"""The name of the process that answers."""

CPU = "cpu"
"""The store that takes over from any other."""


class RunHandle(Protocol):
    """A run as sessions, displays and monitors see it. All but `run` may be called from any thread."""

    statistics: RunStatistics

    @property
    def source_info(self) -> SourceInfo: ...

    @property
    def picture_endpoints(self) -> PictureEndpoints: ...

    def run(self) -> Iterator[Event]: ...

    def end(self, outcome: str = INTERRUPTED) -> None: ...

    def cancel(self) -> None: ...

    def send(self, command: Command) -> None: ...

    def processes(self) -> dict[str, int]: ...

    def drops(self) -> dict[str, int]: ...

    def take_overlay(self, slot: int) -> AllocationOverlay: ...


@dataclass(frozen=True, slots=True)
class HealthReport:
    """`status` is "loading", "ok", "outage", "restarting", "stalled" or "ended"; `reason` is why, if it is not ok,
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
    def healthy(self) -> bool:
        return self.status in {"ok", "loading"}


def _known_world(config: Config) -> str | None:
    """Return the only world that the model of a run knows; None for a general model, and for one on another host."""
    try:
        if config.uses_server:
            return None
        return model_world(config.answer.model)
    except ArrCocError:  # a folder of the host that answers
        return None


class RunMonitor:
    """State of a run, by its events; its figures are those of `RunHandle.statistics`."""

    def __init__(self, config: Config, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        self._start_ns = self._clock.now_ns()
        self._statistics = RunStatistics(self._clock)
        self._fit = FrameFitter.of(config.capture)
        self._paced = config.capture.realtime
        self._stall_limit_s = max(2.0, config.capture.stall_s)  # a stream is not called stalled before this
        self._config = config
        self._run: RunHandle | None = None
        self._started = Started(source="", model="", query=config.first_question, backend="")
        self._known_world: str | None = None
        self._query = config.first_question
        self._grid: tuple[int, int] | None = None
        self._frame_ns: int | None = None
        self._progress_ns = self._start_ns
        self._ready = False
        self._answers_error: str | None = None
        self._restarting: dict[str, str] = {}
        self._outage: str | None = None
        self._ended: str | None = None

    @property
    def run(self) -> RunHandle | None:
        """The run that is followed; None before it is made."""
        return self._run

    def followed_run(self) -> RunHandle:
        """Return the run, which is followed before its first event."""
        assert self._run is not None
        return self._run

    def follow(self, run: RunHandle) -> None:
        """Called once the run is made: it is asked for its figures, drops and processes from now on."""
        with self._lock:
            self._run = run
            self._statistics = run.statistics
            self._paced = self._paced or run.source_info.live

    def add(self, event: Event) -> None:
        """Adds the next event of the run."""
        now_ns = self._clock.now_ns()
        with self._lock:
            self._add(event, now_ns)

    def unreachable(self, reason: str) -> None:
        """Note that the source cannot be opened yet: it is tried again."""
        with self._lock:
            self._outage = reason

    def fail(self, reason: str) -> None:
        """Note that the run has ended without a summary: it could not be made."""
        with self._lock:
            self._ended = self._ended or reason

    def status(self) -> StatusMessage:
        """Source, model, question and state of the run."""
        with self._lock:
            state, reason = self._state()
            info, (rows, cols) = None if self._run is None else self._run.source_info, self._grid or (None, None)
            if info is None:
                work = None
            else:
                work = self._fit.processing_resolution(info.height_px, info.width_px)
            return StatusMessage(
                state=state,
                reason=reason,
                source=self._started.source if info is None else info.name,
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
                known_world=self._known_world,
            )

    def stats(self) -> StatsMessage:
        """The figures of this moment; of a source without a pace, no jitter and no deadlines."""
        run = self._run
        dropped, processes = ({}, {}) if run is None else (run.drops(), run.processes())
        now = self._statistics.snapshot(dropped, resident_bytes(processes))
        values = {field.name: getattr(now, field.name) for field in fields(StatsMessage)}
        values["uptime_s"] = (self._clock.now_ns() - self._start_ns) / NS_PER_S
        if not self._paced:
            values["jitter"] = values["deadline_misses"] = None
        return StatsMessage(**values)

    def health(self) -> HealthReport:
        """Report on the progress of the run."""
        with self._lock:
            now_ns = self._clock.now_ns()
            status, reason = self._state()
            if status == "running":
                status, reason = self._stalled(now_ns)
            if status == "ok":
                reason = self._answers_error
            if self._frame_ns is None:
                age_s = None
            else:
                age_s = (now_ns - self._frame_ns) / NS_PER_S
            totals = self._statistics.totals
            return HealthReport(status, reason, self._ready, age_s, totals.frames, totals.answers)

    def send(self, command: Ask | AskAside | AddWatch | RemoveWatch) -> str | None:
        """Pass a command on to the run; return why that cannot be done, None if it is passed on."""
        match command:
            case Ask(query=text) | AskAside(query=text) | AddWatch(question=text) | RemoveWatch(name=text):
                pass
        if not text.strip():
            return "the question is empty"
        if len(text) > QUERY_LIMIT_CHARS:
            return f"a question has at most {QUERY_LIMIT_CHARS} characters, this one has {len(text)}"
        if self._run is None:
            return "the run has not begun; ask again in a moment"
        if self.health().status == "ended":
            return "the run has ended"
        self._run.send(command)
        return None

    def _state(self) -> tuple[str, str | None]:
        if self._ended is not None:
            return "ended", self._ended
        if self._outage is not None:
            return "outage", self._outage
        if self._restarting:
            return "restarting", "; ".join(f"{process}: {cause}" for process, cause in self._restarting.items())
        return ("loading" if self._frame_ns is None else "running"), None

    def _stalled(self, now_ns: int) -> tuple[str, str | None]:
        """A source with a pace owes frames; one that waits for answers may take as long as they may."""
        if self._paced:
            since_ns = self._frame_ns
        else:
            since_ns = self._progress_ns
        age_s = (now_ns - (since_ns or now_ns)) / NS_PER_S
        late = age_s > (self._stall_limit_s if self._paced else self._config.pipeline.timeout_s)
        if late:
            return ("stalled", f"no frame for {age_s:.1f} s")
        return ("ok", None)

    def _add(self, event: Event, now_ns: int) -> None:
        if isinstance(event, FrameReady):
            self._frame_ns = self._progress_ns = now_ns
            self._outage = None
            self._restarting = {process: cause for process, cause in self._restarting.items() if process == ANSWERS}
            if event.map is not None:
                self._grid = event.map.rows, event.map.cols
        elif isinstance(event, (AnswerDeltaEvent, AnswerPoint, YesNoResult)):
            self._progress_ns = now_ns
            self._ready = True
            self._answers_error = None
            self._restarting.pop(ANSWERS, None)
        elif isinstance(event, Started):
            self._started = event
            self._query = event.query
            self._known_world = _known_world(self._config)
        elif isinstance(event, QueryChanged) and event.error is None:
            self._query = event.query
        elif isinstance(event, Outage):
            self._outage = event.reason if event.lasted_s is None else None
        elif isinstance(event, Restarted):
            self._restarting[event.process] = event.cause
        elif isinstance(event, Notice) and event.code == ANSWERS_LOST:
            self._ready = False
            self._answers_error = event.message
        elif isinstance(event, Notice) and event.code == STORE_LOST:
            self._started = replace(self._started, backend=CPU)
        elif isinstance(event, Summary):
            self._ended = event.error or event.ended
