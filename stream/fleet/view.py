"""Live view of several cameras on a terminal, and the state that it shows."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from arr_coc.types import NS_PER_S
from stream import logs
from stream.clock import Clock, MonotonicClock, duration_text
from stream.display.input import QuestionReader
from stream.display.layout import Row
from stream.display.lines import ABOUT_THE_MODEL
from stream.display.live import FIGURES_S, LAST_ENTRIES, LineWriter, LiveView, TerminalModes, terminal_columns
from stream.display.state import TranscriptEntry, ViewModel
from stream.display.text import print_answer, summary_text, wrap
from stream.events import Answer, Event, Notice, Restarted, Started, Summary, VerdictChanged
from stream.fleet.display import FleetDisplay
from stream.fleet.layout import CameraSnapshot, FleetSnapshot, compose_fleet
from stream.fleet.questions import FleetQuestions
from stream.logs import write_now
from stream.monitor.health import ANSWERS, RunHandle
from stream.monitor.statistics import StatisticsSnapshot
from stream.sinks.base import Display
from stream.untrusted import printable

HINT = "question to all, or NAME: question, and Enter · Ctrl-C ends"

OPENING = "opening"

NOTES_KEPT = 50


class FleetScreen:
    """State of the view: each camera's thread writes its part, the view's thread reads all of them."""

    def __init__(self, names: Sequence[str], clock: Clock) -> None:
        self._clock = clock
        self._begin_ns = clock.now_ns()
        self._lock = threading.Lock()
        self._cameras = {name: CameraPane(self, name, clock) for name in names}
        self._model = ""
        self._notes: deque[str] = deque(maxlen=NOTES_KEPT)
        self.questions = FleetQuestions(names)

    def camera(self, name: str) -> CameraPane:
        """Return the part of one camera."""
        return self._cameras[name]

    @property
    def panes(self) -> list[CameraPane]:
        """The parts of all cameras."""
        return list(self._cameras.values())

    @property
    def notes(self) -> list[str]:
        """The last notes."""
        with self._lock:
            return list(self._notes)

    def note(self, line: str, *, once: bool = False) -> None:
        """Keep a line about any of them, `once` if several would repeat it; for any thread."""
        text = printable(line)
        with self._lock:
            if not (once and text in self._notes):
                self._notes.append(text)

    def model_is(self, model: str) -> None:
        """A camera's run has told what answers it."""
        with self._lock:
            names = dict.fromkeys([*self._model.split(", "), printable(model)])
            self._model = ", ".join(filter(None, names))

    def rows(self, message: str, width: int, height: int) -> list[Row]:
        """All but the input line."""
        with self._lock:
            notes, model = tuple(self._notes), self._model
        cameras = [pane.snapshot() for pane in self.panes]
        uptime_s = (self._clock.now_ns() - self._begin_ns) / NS_PER_S
        return compose_fleet(FleetSnapshot(model, uptime_s, cameras, notes), message, width, height)

    def put(self, line: str, refuse: Callable[[str], None]) -> None:
        """Ask what was typed."""
        self.questions.put(line, refuse)


class CameraPane(Display):
    """Part of one camera in the view."""

    def __init__(self, screen: FleetScreen, name: str, clock: Clock) -> None:
        self.name = name
        self._screen = screen
        self._clock = clock
        self._lock = threading.Lock()
        self._model: ViewModel | None = None
        self._figures: StatisticsSnapshot | None = None
        self._figures_s = 0.0
        self._state, self._ill, self._over = OPENING, False, False
        self.summary = ""

    def attach(self, run: RunHandle, frames: int | None) -> None:
        with self._lock:
            self._model = ViewModel(run, self._clock)
        self._screen.questions.add(self.name, self._model.questions)

    def write(self, event: Event) -> None:
        assert self._model is not None, "a run is attached before its events come"
        entries = self._model.add(event)
        with self._lock:
            self._note_event(event)
        if isinstance(event, Started):
            self._screen.model_is(event.model)
        elif not isinstance(event, (Answer, VerdictChanged)) and not _is_shared_restart(event):
            about_model = isinstance(event, Notice) and event.code in ABOUT_THE_MODEL
            for entry in entries:
                self._screen.note(entry.text if about_model else f"{self.name}: {entry.text}", once=about_model)

    def _note_event(self, event: Event) -> None:
        if isinstance(event, Notice) and event.code == "loading":
            self._state, self._ill = event.message, False
        elif isinstance(event, Summary):
            self._over = True
            self._state, self._ill = event.error or event.ended, event.error is not None
            self.summary = summary_text(event)

    def fail(self, message: str) -> None:
        """The camera has failed, or never begun."""
        with self._lock:
            self._state, self._ill, self._over = message, True, True

    def wait(self, message: str) -> None:
        """The camera cannot be reached yet."""
        with self._lock:
            self._state, self._ill = message, True

    def snapshot(self) -> CameraSnapshot:
        """Return how it stands now; for the view's thread."""
        with self._lock:
            model, state, ill, over = self._model, self._state, self._ill, self._over
        if model is None:
            return CameraSnapshot(self.name, state, ill)
        now_s = time.monotonic()
        if self._figures is None or (not over and now_s - self._figures_s >= FIGURES_S):
            self._figures, self._figures_s = model.statistics(), now_s
        view = model.snapshot(self._figures)
        outage = view.statistics.outage
        if not over and outage is not None:
            state, ill = f"lost for {duration_text(outage.lasted_s)}: {outage.reason}", True
        elif not over and not view.waiting:
            state = ""
        return CameraSnapshot(
            self.name, state, ill, view.statistics, _answers(view.entries), view.partial, view.query or None
        )

    @property
    def answers(self) -> list[TranscriptEntry]:
        """Its last answers."""
        with self._lock:
            model = self._model
        return [] if model is None else _answers(model.entries)

    def show_message(self, message: str) -> None:
        """Told for all cameras."""

    def close(self) -> None:
        self._screen.questions.remove(self.name)


def _answers(entries: Sequence[TranscriptEntry]) -> list[TranscriptEntry]:
    """Return entries without messages, which are among the notes of all cameras."""
    return [entry for entry in entries if not entry.is_message]


def _is_shared_restart(event: Event) -> bool:
    return isinstance(event, Restarted) and event.process == ANSWERS


class FleetView(FleetDisplay):
    """Shows cameras on the terminal `out`.

    `keys` is the descriptor of the terminal that questions are typed on, `questions` one that lines to ask are read
    from; None where there is none. Lines on stderr become notes in the view.
    """

    def __init__(
        self,
        names: Sequence[str],
        out: int,
        keys: int | None,
        questions: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._out = out
        self._screen = FleetScreen(names, clock or MonotonicClock())
        self._modes = TerminalModes(out)
        self._modes.take()
        self._view: LiveView | None = LiveView(out, keys, self._modes, self._screen, HINT)
        self._reader = None if questions is None else QuestionReader(questions, self._screen, self._screen.note)
        self._stderr = sys.stderr
        if self._stderr.isatty():
            sys.stderr = LineWriter(self._screen.note)

    def camera(self, name: str) -> Display:
        return self._screen.camera(name)

    def show_failure(self, name: str, message: str) -> None:
        self._screen.camera(name).fail(message)
        self._screen.note(f"error: {name}: {message}")

    def show_unreachable(self, name: str, message: str) -> None:
        self._screen.camera(name).wait(message)

    def show_note(self, text: str) -> None:
        self._screen.note(text)

    def show_message(self, message: str) -> None:
        """Safe in a signal handler: takes no lock, uses no buffer."""
        view = self._view
        if view is not None:
            view.show_until_end(message)
        else:
            write_now(message)

    def close(self) -> None:
        """Gives the terminal back, with the last answers of each camera and the last notes on it."""
        view, self._view = self._view, None
        if view is None:
            return
        if self._reader is not None:
            self._reader.close()
        view.close()
        self._modes.give_back()
        sys.stderr = self._stderr
        with contextlib.suppress(OSError):
            self._leave_last_lines()

    def _leave_last_lines(self) -> None:
        columns = terminal_columns(self._out)
        for line in self._screen.notes[-LAST_ENTRIES:]:
            logs.show("\n".join(wrap(line, columns)))
        width = max(len(pane.name) for pane in self._screen.panes)
        for pane in self._screen.panes:
            for entry in pane.answers[-LAST_ENTRIES:]:
                label = f"{pane.name:<{width}}  {entry.at}"
                indent = len(label) + 2
                print_answer(label, f"\n{'':{indent}}".join(wrap(entry.display_text, max(1, columns - indent))))
            if pane.summary:
                logs.show("\n".join(wrap(f"{pane.name:<{width}}  {pane.summary}", columns)))
