"""A run as a live view on a whole terminal."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable

from stream import logs
from stream.clock import Clock, MonotonicClock
from stream.events import Asked, Event, Summary
from stream.logs import write_now
from stream.questions import QuestionReader
from stream.sinks.base import Display, Watched
from stream.sinks.cells import wrap
from stream.sinks.live_screen import Screen
from stream.sinks.live_state import LiveState
from stream.sinks.live_view import View
from stream.sinks.terminal import print_answer, summary_text

STARTING = "starting"
ERASE = "\r\x1b[K"

LAST_ENTRIES = 12
"""Of what was said, so much is left on the terminal when the view has gone."""


class LiveSink(Display):
    """Shows a run on `screen` from `attach` to `close`.

    `keys` is the descriptor of the terminal that questions are typed on, `questions` one that lines to ask are read
    from; None where there is none. What is written to stderr meanwhile becomes remarks in the view. Before `attach`,
    while libraries are loaded and the source is opened, one word says that something happens.
    """

    def __init__(
        self, screen: Screen, keys: int | None, questions: int | None = None, clock: Clock | None = None
    ) -> None:
        self._screen = screen
        self._keys = keys
        self._questions = questions
        self._clock = clock or MonotonicClock()
        self._state: LiveState | None = None
        self._view: View | None = None
        self._reader: QuestionReader | None = None
        self._stderr = sys.stderr
        self._waiting = sys.stderr.isatty()
        if self._waiting:
            print(STARTING, end="", file=sys.stderr, flush=True)

    def attach(self, run: Watched, frames: int | None) -> None:
        self._waited()
        self._state = LiveState(run, self._clock)
        self._view = View(self._screen, self._keys, self._state, run.ask)
        self._stderr = sys.stderr
        if self._stderr.isatty():
            sys.stderr = RemarkLines(self._state.note)
        if self._questions is not None:
            self._reader = QuestionReader(self._questions, run.ask, self._state.note)

    def tell(self, remark: str) -> None:
        """Safe in a signal handler: takes no lock, uses no buffer."""
        if self._view is not None:
            self._view.insist(remark)
        else:
            write_now(remark)

    def write(self, event: Event) -> None:
        assert self._state is not None, "a run is attached before its events come"
        self._state.add(event)
        if isinstance(event, Asked) and self._view is not None:
            self._view.answered_question(event.query)
        elif isinstance(event, Summary):
            self.close()
            if event.frames or event.error is None:
                pace = None if event.timing is None else event.timing.get("fps")
                text = summary_text(event, pace or None)
                logs.show("\n".join(wrap(text, self._screen.size[0])))

    def close(self) -> None:
        """Gives the terminal back, with the last of what was said on it."""
        view, self._view = self._view, None
        self._waited()
        if view is None:
            return
        if self._reader is not None:
            self._reader.close()
        view.close()
        sys.stderr = self._stderr
        with contextlib.suppress(OSError):
            self._leave_last_words()

    def _leave_last_words(self) -> None:
        assert self._state is not None
        columns = self._screen.size[0]
        for entry in self._state.entries[-LAST_ENTRIES:]:
            indent = len(entry.at) + 2
            if entry.remark:
                logs.show("\n".join(wrap(entry.text, columns)))
            else:
                print_answer(entry.at, f"\n{'':{indent}}".join(wrap(entry.shown, max(1, columns - indent))))

    def _waited(self) -> None:
        if self._waiting:
            self._waiting = False
            print(ERASE, end="", file=sys.stderr, flush=True)


class RemarkLines(io.TextIOBase):
    """A text stream that gives each line to `tell`."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._line = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            if line.strip():
                self._tell(line)
        return len(text)
