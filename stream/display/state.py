"""State of a camera in a display: transcript, statistics, the question, and the memory of the run's processes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from arr_coc.types import NS_PER_S
from stream import logs
from stream.clock import Clock, DisplayClock, clock_text, duration_text
from stream.display.input import PendingQuestions
from stream.display.text import EventText, discards_partial_answer, summary_text, verdict_text
from stream.events import (
    Answer,
    AnswerDeltaEvent,
    AnswerUnchanged,
    Event,
    FrameReady,
    Notice,
    QueryChanged,
    Started,
    Summary,
    VerdictChanged,
)
from stream.media import SourceInfo
from stream.monitor.health import RunHandle
from stream.monitor.statistics import StatisticsSnapshot, resident_bytes
from stream.untrusted import printable

ENTRIES_KEPT = 200


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """An answer or a message, and the media time of the answer for people.

    `count` answers in a row were the same, the last one at `until`.
    """

    at: str
    text: str
    is_message: bool = False
    count: int = 1
    until: str = ""

    @property
    def display_text(self) -> str:
        """The text, and how often it was the answer."""
        if self.count == 1:
            return self.text
        return f"{self.text} (×{self.count}, to {self.until})"

    def with_repetition(self, at: str) -> TranscriptEntry:
        """This entry, for another answer that is the same."""
        return replace(self, count=self.count + 1, until=at)


class Transcript:
    """The last answers and messages of a run, the newest last, and the answer that is being generated.

    `cuts`: whether scene cuts are messages too.
    """

    def __init__(self, times: DisplayClock, *, cuts: bool = False) -> None:
        self.clock = times
        self._event_text = EventText(times.text, cuts=cuts)
        self._entries: deque[TranscriptEntry] = deque(maxlen=ENTRIES_KEPT)
        self._question: str | None = None  # the question of the newest entry, if that is one
        self._partial: list[str] = []
        self._partial_at = ""
        self._partial_answer: int | None = None
        self._newest_is_answer = False
        self._day = ""

    @property
    def entries(self) -> tuple[TranscriptEntry, ...]:
        return tuple(self._entries)

    @property
    def partial(self) -> TranscriptEntry | None:
        """The answer that is being generated; None as long as it repeats the one before."""
        text = printable("".join(self._partial))
        if self._partial and not self._repeats(text):
            return TranscriptEntry(self._partial_at, text)
        return None

    def add(self, event: Event) -> TranscriptEntry | None:
        """Adds an event; returns the entry that it adds, if that is more than another piece of text.

        An answer that is the same as the entry before it makes no new one: that one is extended.
        """
        if isinstance(event, FrameReady):
            self.clock.sync(event.pts_s, event.latency_s)
            return None
        if isinstance(event, AnswerDeltaEvent):
            if event.answer != self._partial_answer:
                self._drop_partial()
                self._partial_answer = event.answer
                if event.pts_s is None:
                    self._partial_at = ""
                else:
                    self._partial_at = self.clock.text(event.pts_s)
            self._partial.append(event.text)
            return None
        if isinstance(event, AnswerUnchanged):
            self._drop_partial()
            if self._newest is not None:
                self._entries[-1] = self._newest.with_repetition(self.clock.text(event.pts_s))
            return None
        entry = None
        if isinstance(event, Answer):
            self._drop_partial()
            text = printable(event.text)
            if text:
                entry = TranscriptEntry(self.clock.text(event.pts_s), text)
            else:
                entry = None
        elif isinstance(event, VerdictChanged):
            entry = TranscriptEntry(self.clock.text(event.pts_s), verdict_text(event))
        else:
            if discards_partial_answer(event):
                self._drop_partial()
            line = self._event_text.line(event)
            if line is None:
                entry = None
            else:
                entry = TranscriptEntry("", line, is_message=True)
        if entry is None:
            return None
        if isinstance(event, Answer) and self._question not in (None, event.query):
            # to the question before: it stands above the one that was asked while it was on its way
            question = self._entries.pop()
            self._begin_day(self.clock.day(event.pts_s))
            self._entries += [entry, question]
            return entry
        if isinstance(event, Answer | VerdictChanged):
            self._begin_day(self.clock.day(event.pts_s))
        if isinstance(event, Answer) and self._newest is not None and self._newest.text == entry.text:
            self._entries[-1] = self._newest.with_repetition(entry.at)
        else:
            self._entries.append(entry)
        self._newest_is_answer = isinstance(event, Answer)
        if isinstance(event, QueryChanged) and event.error is None:
            self._question = event.query
        else:
            self._question = None
        return entry

    def add_message(self, message: str) -> TranscriptEntry:
        """Adds a message."""
        self._newest_is_answer = False
        self._question = None
        self._entries.append(TranscriptEntry("", printable(message), is_message=True))
        return self._entries[-1]

    def _begin_day(self, day: str) -> None:
        """Adds the date before the first answer of a day."""
        if day and day != self._day:
            self._day = day
            self._newest_is_answer = False
            self._entries.append(TranscriptEntry("", day, is_message=True))

    @property
    def _newest(self) -> TranscriptEntry | None:
        """The newest entry, if it is an answer."""
        if self._entries and self._newest_is_answer:
            return self._entries[-1]
        return None

    def _repeats(self, text: str) -> bool:
        return self._newest is not None and self._newest.text.startswith(text)

    def _drop_partial(self) -> None:
        self._partial_answer = None
        self._partial.clear()


MEMORY_NS = NS_PER_S
"""Between two looks at the memory of the run's processes."""

FIGURES_NS = NS_PER_S // 2
"""Between two looks at the figures: numbers that change faster cannot be read."""

OPENING = "opening"
STARTING = "starting"
"""States of a camera before its run exists, and before that reports anything."""


@dataclass(frozen=True, slots=True)
class CameraSnapshot:
    """All that a display shows of a camera, at one moment.

    `state` is what it waits for or how it ended, "" while it runs; `has_problem`: that is a failure. `pending` is a
    question that the run has not taken yet. Without a run there are no `info` and no `figures`.
    """

    name: str
    state: str
    has_problem: bool = False
    info: SourceInfo | None = None
    model: str = ""
    query: str = ""
    pending: str = ""
    figures: StatisticsSnapshot | None = None
    entries: Sequence[TranscriptEntry] = ()
    partial: TranscriptEntry | None = None

    @property
    def newest(self) -> TranscriptEntry | None:
        """The answer that is being generated, or the last one."""
        return self.partial or (self.entries[-1] if self.entries else None)


class CameraState:
    """State of a camera in a display. `add` is for one thread, `snapshot` for another.

    `cuts`: whether scene cuts stand in the transcript; `dates`: each time of day has its date.
    """

    def __init__(self, clock: Clock, name: str = "", *, cuts: bool = False, dates: bool = False) -> None:
        self.name = name
        self.summary = ""
        self._clock = clock
        self._cuts = cuts
        self._dates = dates
        self._lock = threading.Lock()
        self._run: RunHandle | None = None
        self._transcript = Transcript(DisplayClock(live=False))
        self._model = self._query = ""
        self._state = OPENING
        self._has_problem = False
        self._is_over = False
        self._figures: StatisticsSnapshot | None = None
        self._figures_ns = 0
        self._memory_bytes: dict[str, int] = {}
        self._memory_ns: int | None = None

    def attach(self, run: RunHandle, questions: PendingQuestions) -> None:
        """Take the camera's run, which is about to begin, and the questions that are put to it."""
        with self._lock:
            self._run = run
            times = DisplayClock(run.source_info.live, dates=self._dates)
            self._transcript = Transcript(times, cuts=self._cuts)
            self._state = STARTING
            self._has_problem = False
            self._questions = questions

    def add(self, event: Event) -> list[TranscriptEntry]:
        """Add an event; returns the entry that it adds to the transcript."""
        assert self._run is not None, "a run is attached before its events come"
        if isinstance(event, QueryChanged):
            lines = self._questions.settle(event)
        else:
            lines = []
        with self._lock:
            entries = [self._transcript.add_message(line) for line in lines]
            if isinstance(event, FrameReady):
                self._state = ""
            elif isinstance(event, Started):
                self._model = printable(event.model)
                self._query = printable(event.query)
            elif isinstance(event, Notice) and event.code == "loading":
                self._state = printable(event.message)
            elif isinstance(event, QueryChanged) and event.error is None:
                self._query = printable(event.query)
            elif isinstance(event, Summary):
                self._state = event.error or event.ended
                self._has_problem = event.error is not None
                self._is_over = True
                self.summary = summary_text(event, verbose=logs.verbose())
            entry = self._transcript.add(event)
            return entries if entry is None else [*entries, entry]

    def add_message(self, message: str) -> None:
        """Add a message to the transcript; for any thread."""
        with self._lock:
            self._transcript.add_message(message)

    def fail(self, message: str, *, is_final: bool) -> None:
        """Show the problem of a camera: it has failed, or cannot be reached yet."""
        with self._lock:
            self._state = message
            self._has_problem = True
            self._is_over = is_final

    @property
    def entries(self) -> tuple[TranscriptEntry, ...]:
        """The last answers, and of a camera without a name the messages between them."""
        with self._lock:
            entries = self._transcript.entries
        return tuple(entry for entry in entries if not (entry.is_message and self.name))

    def statistics(self) -> StatisticsSnapshot:
        """The figures now; for one thread."""
        assert self._run is not None
        now_ns = self._clock.now_ns()
        if self._memory_ns is None or now_ns - self._memory_ns >= MEMORY_NS:
            self._memory_bytes = resident_bytes(self._run.processes())
            self._memory_ns = now_ns
        return self._run.statistics.snapshot(self._run.drops(), self._memory_bytes)

    @property
    def loading(self) -> bool:
        """True until the first frame."""
        return bool(self._state)

    def position(self, figures: StatisticsSnapshot) -> str:
        """The newest frame's time, as answers have theirs, and for a file its length: `0:12.0 / 1:30.0`."""
        assert self._run is not None
        if figures.media_s is None:
            return clock_text(0.0)
        with self._lock:
            at = self._transcript.clock.text(figures.media_s)
        info = self._run.source_info
        if info.live or info.duration_ns is None:
            return at
        return f"{at} / {clock_text(info.duration_ns / NS_PER_S)}"

    def snapshot(self) -> CameraSnapshot:
        """All that is to be shown now; for one thread."""
        with self._lock:
            run = self._run
            state = self._state
            has_problem = self._has_problem
            is_over = self._is_over
        if run is None:
            return CameraSnapshot(self.name, state, has_problem)
        now_ns = self._clock.now_ns()
        if self._figures is None or (not is_over and now_ns - self._figures_ns >= FIGURES_NS):
            self._figures = self.statistics()
            self._figures_ns = now_ns
        outage = self._figures.outage
        if not is_over and outage is not None:
            state = f"source lost for {duration_text(outage.lasted_s)}: {outage.reason}"
            has_problem = True
        entries = self.entries
        with self._lock:
            return CameraSnapshot(
                self.name,
                state,
                has_problem,
                info=run.source_info,
                model=self._model,
                query=self._query,
                pending=self._questions.newest,
                figures=self._figures,
                entries=entries,
                partial=self._transcript.partial,
            )
