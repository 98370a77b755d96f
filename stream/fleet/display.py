"""Displays of several cameras: the base, and plain lines or JSON lines with the camera's name."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from stream import logs
from stream.clock import Clock, MonotonicClock
from stream.display.input import QuestionReader
from stream.display.lines import AnswerPrinter, RepeatedCall, RunLines, log_level
from stream.display.state import TranscriptEntry, ViewModel
from stream.display.text import print_answer
from stream.errors import OutputFailed, ReaderGone
from stream.events import OF_FRAMES, Answer, Event, Restarted, VerdictChanged, event_fields
from stream.fleet.questions import FleetQuestions
from stream.logs import json_line, write_line, write_now
from stream.monitor.health import ANSWERS, RunHandle
from stream.sinks.base import Display

SEPARATOR = "  "


class FleetDisplay(ABC):
    """Display of several cameras. Each camera's thread calls the display that `camera` returns."""

    @abstractmethod
    def camera(self, name: str) -> Display:
        """Return the display of one camera; called once for each, before its run is opened."""

    @abstractmethod
    def show_failure(self, name: str, message: str) -> None:
        """Tell that a camera has failed, or cannot be watched. For any thread."""

    @abstractmethod
    def show_unreachable(self, name: str, message: str) -> None:
        """Tell that a camera cannot be reached yet, and is tried again. For any thread."""

    @abstractmethod
    def show_note(self, text: str) -> None:
        """Tell something that is about no camera, or about several. For any thread."""

    @abstractmethod
    def show_message(self, message: str) -> None:
        """Show a message at once. Safe in a signal handler."""

    @abstractmethod
    def close(self) -> None:
        """End the display; may be called twice."""


class FleetLines(FleetDisplay):
    """Prints cameras as lines, each after the camera's name: answers on stdout, all else on stderr.

    `every_s`: time between lines of figures, none where that is None. Without `captions` stdout belongs to an output.
    `typed` is a descriptor that lines to ask are read from.
    """

    def __init__(
        self,
        names: Sequence[str],
        every_s: float | None,
        *,
        captions: bool = True,
        typed: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._width = max(map(len, names), default=0)
        self._captions = captions
        self._clock = clock or MonotonicClock()
        self._lock = threading.RLock()
        self._told: set[str] = set()
        self._cameras: dict[str, _CameraLines] = {}
        self.questions = FleetQuestions(names)
        self._reader = None if typed is None else QuestionReader(typed, self.questions, self.show_note)
        self._figures = None if every_s is None else RepeatedCall(every_s, self._say_figures)

    def camera(self, name: str) -> Display:
        shown = self._cameras[name] = _CameraLines(self, name, self._clock)
        return shown

    def label(self, name: str) -> str:
        """Return the camera's name in the width of the longest one."""
        return f"{name:<{self._width}}{SEPARATOR}"

    def answer(self, printer: AnswerPrinter, entry: TranscriptEntry) -> None:
        """Print an answer; many that are the same are one line."""
        if self._captions:
            with self._lock:
                printer.print(entry)

    def finish(self, printer: AnswerPrinter) -> None:
        """Print how long the last answer went on."""
        with self._lock:
            printer.finish()

    def print(self, name: str, entry: TranscriptEntry) -> None:
        """Print what is no answer, and belongs to stdout."""
        if self._captions:
            with self._lock:
                print_answer(f"{self.label(name)}{entry.at}", entry.text)

    def say(self, name: str, text: str) -> None:
        """Write a remark about one camera on stderr."""
        self.show_note(f"{self.label(name)}{text}")

    def say_once(self, text: str) -> None:
        """Write a remark that several cameras would repeat."""
        with self._lock:
            if text not in self._told:
                self._told.add(text)
                logs.say(text)

    def show_failure(self, name: str, message: str) -> None:
        with self._lock:
            logs.say(f"error: {name}: {message}")

    def show_unreachable(self, name: str, message: str) -> None:
        self.say(name, message)

    def show_note(self, text: str) -> None:
        with self._lock:
            logs.say(text)

    def show_message(self, message: str) -> None:
        """Safe in a signal handler: takes no lock, uses no buffer."""
        write_now(message)

    def close(self) -> None:
        for ended in (self._figures, self._reader):
            if ended is not None:
                ended.close()

    def _say_figures(self) -> None:
        for shown in tuple(self._cameras.values()):
            if (text := shown.figures()) is not None:
                self.say(shown.name, text)


class _CameraLines(RunLines):
    """Lines of one camera."""

    def __init__(self, all_cameras: FleetLines, name: str, clock: Clock) -> None:
        super().__init__(clock)
        self.name = name
        self._all = all_cameras
        self._printer = AnswerPrinter(all_cameras.label(name))
        self._ended = False

    def attach(self, run: RunHandle, frames: int | None) -> None:
        self._state = ViewModel(run, self._clock, cuts=True)
        self._all.questions.add(self.name, self._state.questions)

    def _show(self, event: Event, entries: Sequence[TranscriptEntry]) -> None:
        if isinstance(event, Restarted) and event.process == ANSWERS:
            return  # told once for all cameras
        super()._show(event, entries)

    def figures(self) -> str | None:
        """Return the figures in a line; None where there are none yet, or any more."""
        return None if self._ended else super().figures()

    def show_message(self, message: str) -> None:
        self._all.show_message(message)

    def close(self) -> None:
        self._over()
        self._all.questions.remove(self.name)
        with suppress(ReaderGone, OutputFailed):
            self._finish_answers()

    def _over(self) -> None:
        self._ended = True

    def _print_answer(self, entry: TranscriptEntry) -> None:
        self._all.answer(self._printer, entry)

    def _finish_answers(self) -> None:
        self._all.finish(self._printer)

    def _print(self, entry: TranscriptEntry) -> None:
        self._all.print(self.name, entry)

    def _say(self, text: str) -> None:
        self._all.say(self.name, text)

    def _say_of_model(self, text: str) -> None:
        self._all.say_once(text)


class FleetJson(FleetDisplay):
    """Writes the events of cameras to stderr as JSON lines with the camera's name.

    `captions`: answers go to stdout too, a plain line each. `typed` as for FleetLines.
    """

    def __init__(self, names: Sequence[str], *, captions: bool, typed: int | None = None) -> None:
        self._lines = FleetLines(names, None, captions=captions, typed=typed)

    def camera(self, name: str) -> Display:
        return _CameraJson(self._lines, name)

    def show_failure(self, name: str, message: str) -> None:
        logs.say(message, "error", "error", camera=name, message=message)

    def show_unreachable(self, name: str, message: str) -> None:
        logs.say(message, "warning", "unreachable", camera=name, message=message)

    def show_note(self, text: str) -> None:
        logs.say(text)

    def show_message(self, message: str) -> None:
        write_now(json_line("info", {"event": "signal", "message": message}))

    def close(self) -> None:
        self._lines.close()


class _CameraJson(Display):
    """JSON lines of one camera."""

    def __init__(self, lines: FleetLines, name: str) -> None:
        self._lines = lines
        self._name = name
        self._state: ViewModel | None = None

    def attach(self, run: RunHandle, frames: int | None) -> None:
        self._state = ViewModel(run, MonotonicClock())
        self._lines.questions.add(self._name, self._state.questions)

    def write(self, event: Event) -> None:
        assert self._state is not None, "a run is attached before its events come"
        entries = self._state.add(event)
        if isinstance(event, OF_FRAMES):
            return
        fields = event_fields(event)
        write_line(json_line(log_level(event), {"event": fields.pop("type"), "camera": self._name, **fields}))
        if isinstance(event, (Answer, VerdictChanged)):
            for entry in entries:
                self._lines.print(self._name, entry)

    def show_message(self, message: str) -> None:
        self._lines.show_message(message)

    def close(self) -> None:
        """Every line is written already."""
        self._lines.questions.remove(self._name)
