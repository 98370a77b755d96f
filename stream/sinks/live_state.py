"""What a live display knows of its run: fed by the run's thread, looked at by the one that draws."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import psutil

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.events import Asked, Event, FrameReady, Notice, Started
from stream.live_figures import Figures, LiveFigures
from stream.printable import printable
from stream.sinks.base import Watched
from stream.sinks.remarks import clock_text
from stream.sinks.transcript import Entry, TimeText, Transcript
from stream.sources import SourceInfo

MEMORY_NS = NS_PER_S
"""How often the memory of the run's processes is looked up."""


@dataclass(frozen=True, slots=True)
class Scene:
    """All that a display shows, at one moment. `waiting` says what is awaited before the first frame."""

    info: SourceInfo
    model: str
    query: str
    waiting: str
    figures: Figures
    entries: tuple[Entry, ...]
    spoken: Entry | None


class LiveState:
    """`add` is for one thread, `scene` for another. `cuts`: whether scene cuts stand in the transcript."""

    def __init__(self, run: Watched, clock: Clock, *, cuts: bool = False) -> None:
        self._run = run
        self._clock = clock
        self._info = run.source_info
        self._lock = threading.Lock()
        fps = self._info.fps
        self._figures = LiveFigures(clock.now_ns(), None if not fps else round(NS_PER_S / fps))
        self._transcript = Transcript(TimeText(self._info.live), cuts=cuts)
        self._model = self._query = ""
        self._waiting = "starting"
        self._memory = Memory()
        self._memory_ns: int | None = None

    def add(self, event: Event) -> Entry | None:
        """Takes an event; returns what it adds to the transcript."""
        now_ns = self._clock.now_ns()
        with self._lock:
            self._figures.add(event, now_ns)
            if isinstance(event, FrameReady):
                self._waiting = ""
            elif isinstance(event, Started):
                self._model, self._query = printable(event.model), printable(event.query)
            elif isinstance(event, Notice) and event.code == "loading":
                self._waiting = printable(event.message)
            elif isinstance(event, Asked) and event.error is None:
                self._query = printable(event.query)
            return self._transcript.add(event)

    def note(self, remark: str) -> None:
        """Adds a remark to the transcript; for any thread."""
        with self._lock:
            self._transcript.note(remark)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The last answers and remarks."""
        with self._lock:
            return self._transcript.entries

    def figures(self) -> Figures:
        """The figures now; for one thread."""
        now_ns = self._clock.now_ns()
        if self._memory_ns is None or now_ns - self._memory_ns >= MEMORY_NS:
            self._memory.look(self._run.processes())
            self._memory_ns = now_ns
        dropped = self._run.drops()
        with self._lock:
            return self._figures.at(now_ns, dropped, self._memory.resident)

    @property
    def loading(self) -> bool:
        """Whether no frame has come yet."""
        return bool(self._waiting)

    def position(self, figures: Figures) -> str:
        """The newest frame's time, as answers have theirs, and for a file its length: `0:12.0 / 1:30.0`."""
        if figures.media_s is None:
            return clock_text(0.0)
        with self._lock:
            at = self._transcript.times.of(figures.media_s)
        length_ns = self._info.duration_ns
        return at if self._info.live or length_ns is None else f"{at} / {clock_text(length_ns / NS_PER_S)}"

    def scene(self, figures: Figures) -> Scene:
        with self._lock:
            return Scene(
                info=self._info,
                model=self._model,
                query=self._query,
                waiting=self._waiting,
                figures=figures,
                entries=self._transcript.entries,
                spoken=self._transcript.spoken,
            )


class Memory:
    """The memory of some processes: resident bytes, so that what they share counts for each."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self.resident: dict[str, int] = {}

    def look(self, pids: dict[str, int]) -> None:
        """Looks it up; a process that has gone is left out."""
        self._processes = {pid: found for pid, found in self._processes.items() if pid in pids.values()}
        self.resident = {}
        for name, pid in pids.items():
            try:
                process = self._processes.setdefault(pid, psutil.Process(pid))
                self.resident[name] = process.memory_info().rss
            except psutil.Error:
                self._processes.pop(pid, None)
