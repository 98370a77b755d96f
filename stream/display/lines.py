"""Displays that print lines: plain text for people, JSON on stderr for machines."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

from arr_coc.errors import of_counted
from stream import logs
from stream.clock import Clock, MonotonicClock, clock_text, duration_text
from stream.display.input import QuestionReader
from stream.display.layout import SEPARATOR
from stream.display.state import TranscriptEntry, ViewModel
from stream.display.text import dropped_text, print_answer, summary_text, verdict_text
from stream.errors import OutputFailed, ReaderGone
from stream.events import (
    OF_FRAMES,
    Answer,
    Event,
    Notice,
    Outage,
    QueryChanged,
    Restarted,
    Skipped,
    Summary,
    VerdictChanged,
    event_fields,
)
from stream.logs import json_line, write_line, write_now
from stream.monitor.health import RunHandle
from stream.monitor.statistics import StatisticsSnapshot
from stream.sinks.base import Display
from stream.untrusted import printable

JOIN_LIMIT_S = 1.0

log = logging.getLogger(__name__)

ABOUT_THE_MODEL = ("model-files", "model-world", "glances-off")
"""Codes of notices that every run of a model would repeat."""


class RepeatedCall:
    """Thread that calls `call` every `every_s` seconds, from its making to `close`."""

    def __init__(self, every_s: float, call: Callable[[], None]) -> None:
        self._every_s = every_s
        self._call = call
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="figures", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closing.set()
        self._thread.join(JOIN_LIMIT_S)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._call()
            except OSError:  # such as no descriptor left: the next figures may come
                log.debug("figures are left out", exc_info=True)


class RunLines(Display):
    """Base of displays that print a run as lines: answers, and remarks about all else. A subclass says where."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._state: ViewModel | None = None

    @abstractmethod
    def _print_answer(self, entry: TranscriptEntry) -> None:
        """Print an answer; of those that are the same, one line for all."""

    @abstractmethod
    def _finish_answers(self) -> None:
        """Print how long the last answer went on; may be called twice."""

    @abstractmethod
    def _print(self, entry: TranscriptEntry) -> None:
        """Print what is no answer, and belongs to stdout."""

    @abstractmethod
    def _say(self, text: str) -> None:
        """Write a remark on stderr."""

    def _say_of_model(self, text: str) -> None:
        """Write a remark that every run of one model would make."""
        self._say(text)

    def _over(self) -> None:
        """The run has ended: no figures follow."""

    def write(self, event: Event) -> None:
        assert self._state is not None, "a run is attached before its events come"
        self._show(event, self._state.add(event))

    def _show(self, event: Event, entries: Sequence[TranscriptEntry]) -> None:
        """Print an event, which has added `entries` to the transcript."""
        if isinstance(event, Answer):
            for entry in entries:
                self._print_answer(entry)
        elif isinstance(event, VerdictChanged):
            self._finish_answers()
            for entry in entries:
                self._print(entry)
        elif entries:
            if isinstance(event, QueryChanged) and event.error is None:
                self._finish_answers()
            about_model = isinstance(event, Notice) and event.code in ABOUT_THE_MODEL
            for entry in entries:
                (self._say_of_model if about_model else self._say)(entry.text)
        elif isinstance(event, Notice):
            self._say_of_model(f"{printable(event.message)} …")  # only that a model is being loaded has no entry
        elif isinstance(event, Summary):
            self._finish_answers()
            self._over()
            if text := summary_text(event):
                self._say(text)

    def figures(self) -> str | None:
        """Return the figures in a line; None where there are none yet. For any thread."""
        if self._state is None:
            return None
        figures = self._state.statistics()
        known = figures.frames or figures.outage is not None
        return figures_text(figures, self._state.position(figures)) if known else None


class LinesDisplay(RunLines):
    """Prints a run as lines; the figures every `every_s` seconds, never where that is None.

    `questions` is a descriptor that lines to ask are read from.
    """

    def __init__(self, every_s: float | None, questions: int | None = None, clock: Clock | None = None) -> None:
        super().__init__(clock or MonotonicClock())
        self._every_s = every_s
        self._questions = questions
        self._figures: RepeatedCall | None = None
        self._reader: QuestionReader | None = None
        self._answers = AnswerPrinter()
        self._run: RunHandle | None = None

    def attach(self, run: RunHandle, frames: int | None) -> None:
        self._run, self._state = run, ViewModel(run, self._clock, self._ask, cuts=True)
        if self._every_s is not None:
            self._figures = RepeatedCall(self._every_s, self._say_figures)
        if self._questions is not None:
            self._reader = QuestionReader(self._questions, self._state.questions, logs.say)

    def show_message(self, message: str) -> None:
        """Safe in a signal handler: takes no lock, uses no buffer."""
        write_now(message)

    def close(self) -> None:
        with suppress(ReaderGone, OutputFailed):
            self._finish_answers()
        self._over()

    def _over(self) -> None:
        for ended in (self._figures, self._reader):
            if ended is not None:
                ended.close()

    def _print_answer(self, entry: TranscriptEntry) -> None:
        self._answers.print(entry)

    def _finish_answers(self) -> None:
        self._answers.finish()

    def _print(self, entry: TranscriptEntry) -> None:
        print_answer(entry.at, entry.text)

    def _say(self, text: str) -> None:
        logs.say(text)

    def _say_figures(self) -> None:
        if (text := self.figures()) is not None:
            logs.say(text)

    def _ask(self, question: str) -> None:
        """Asks; says so where the answer cannot come yet."""
        assert self._state is not None
        assert self._run is not None
        if self._state.loading:
            logs.say(f"asking, once the model is loaded: {question}")
        self._run.ask(question)


class AnswerPrinter:
    """Answers on stdout, a line each after `label`; of those that are the same as the one before, one line for all of
    them."""

    def __init__(self, label: str = "") -> None:
        self._label = label
        self._text: str | None = None
        self._again: TranscriptEntry | None = None

    def print(self, entry: TranscriptEntry) -> None:
        """Prints an answer, or counts it where the last one was the same."""
        if entry.text == self._text:
            self._again = entry if self._again is None else self._again.repeated(entry.at)
            return
        self.finish()
        self._text = entry.text
        print_answer(f"{self._label}{entry.at}", entry.text)

    def finish(self) -> None:
        """Prints how long the last answer went on; whatever comes next is printed whole."""
        again, self._text, self._again = self._again, None, None
        if again is not None and again.count == 1:
            print_answer(f"{self._label}{again.at}", "the same")
        elif again is not None:
            print_answer(f"{self._label}{again.at} to {again.until}", f"the same, {again.count} times")


def figures_text(figures: StatisticsSnapshot, at: str) -> str:
    """The figures in one line, which begins with the newest frame's time."""
    parts = [f"{at}  {figures.fps:.1f} frames per second"]
    if figures.outage is not None:
        parts.append(f"source lost for {duration_text(figures.outage.lasted_s)}")
    if figures.latency_ms is not None:
        one = figures.latency_ms
        parts.append(f"delay {one.p50:.0f} ms, p95 {one.p95:.0f} ms")
    if figures.ttft_ms is not None and figures.total_ms is not None:
        parts.append(f"answer {figures.ttft_ms:.0f} to {figures.total_ms:.0f} ms")
    if figures.target_ms is not None:
        p95 = "" if figures.ttft_p95_ms is None else f" p95 {figures.ttft_p95_ms:.0f}"
        parts.append(f"first token{p95} for {figures.target_ms:.0f} ms, budget {figures.budget}")
    if figures.checks_words is not None:
        parts.append(f"shadow {figures.checks_same} of {figures.checks} the same")
    if figures.tiles:
        parts.append(of_counted(figures.tokens, figures.tiles, "token"))
    parts.append(dropped_text(figures.dropped))
    return SEPARATOR.join(parts)


QUIET_NOTICES = {"loading"}
"""Codes of notices of usual things."""


class JsonDisplay(Display):
    """Writes events to stderr as they happen. `captions`: answers go to stdout too, a plain line each."""

    def __init__(self, *, captions: bool) -> None:
        self._captions = captions

    def show_message(self, message: str) -> None:
        write_now(json_line("info", {"event": "signal", "message": message}))

    def write(self, event: Event) -> None:
        if isinstance(event, OF_FRAMES):
            return
        fields = event_fields(event)
        write_line(json_line(log_level(event), {"event": fields.pop("type"), **fields}))
        if self._captions and isinstance(event, VerdictChanged):
            print_answer(clock_text(event.pts_s), verdict_text(event))
        if self._captions and isinstance(event, Answer):
            text = printable(event.text)
            if text:
                print_answer(clock_text(event.pts_s), text)

    def close(self) -> None:
        """Every line is written already."""


def log_level(event: Event) -> str:
    """The level of an event in the words of `logging`."""
    if isinstance(event, Summary):
        return "info" if event.error is None else "error"
    if isinstance(event, Notice):
        return "info" if event.code in QUIET_NOTICES else "warning"
    if isinstance(event, Outage):
        return "warning" if event.lasted_s is None else "info"
    if isinstance(event, QueryChanged):
        return "info" if event.error is None else "warning"
    return "warning" if isinstance(event, (Restarted, Skipped)) else "info"
