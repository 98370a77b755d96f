"""Live view of a run on a whole terminal: the screen, the drawing thread, the keys."""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.cells import cell_len

from stream import logs
from stream.clock import Clock, MonotonicClock
from stream.display.input import READ_BYTES, Key, LineEditor, QuestionReader, put_question
from stream.display.layout import Typing, compose, input_line
from stream.display.state import ViewModel
from stream.display.text import Line, print_answer, summary_text, wrap
from stream.events import Event, QueryChanged, Summary
from stream.logs import write_now
from stream.monitor.health import RunHandle
from stream.monitor.statistics import StatisticsSnapshot
from stream.sinks.base import Display
from stream.untrusted import printable_span

ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""The other screen, no cursor, no wrapping of long lines, cleared."""

LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"

STYLES = {
    "": "",
    "title": "1",
    "question": "1",
    "dim": "2",
    "label": "36",
    "time": "36",
    "spoken": "3",
    "note": "33",
    "alarm": "1;31",
    "cursor": "7",
}
"""Names of styles and what selects them (ECMA-48, SGR)."""

WITHOUT_COLOUR = {"label": "2", "time": "2", "note": "", "alarm": "1"}

PLAIN_FORMS = str.maketrans({"·": "|", "─": "-", "…": "~", "›": ">", "–": "-"})
"""For terminals whose encoding is not Unicode."""

SIZE_UNKNOWN = (80, 24)


class Screen:
    """Draws on the terminal `out`, which meanwhile gives each key at once and shows none by itself.

    One thread draws; `close` may be called by any, more than once. Raises OSError where the terminal has gone.
    """

    def __init__(self, out: int, *, colour: bool, unicode: bool = True) -> None:
        self._out = out
        self._unicode = unicode
        self._styles = STYLES if colour else {**STYLES, **WITHOUT_COLOUR}
        self._before: list[Any] | None = None
        self._opened = False
        self._rows: list[str] = []
        self._size = (0, 0)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows, as they are now; the usual ones where the terminal does not tell."""
        try:
            size = os.get_terminal_size(self._out)
        except OSError:
            return SIZE_UNKNOWN
        return (size.columns, size.lines) if size.columns > 0 and size.lines > 0 else SIZE_UNKNOWN

    def open(self) -> None:
        """Takes the terminal. At the end of the program it is given back, whatever happens."""
        with contextlib.suppress(termios.error):
            self._before = termios.tcgetattr(self._out)
            termios.tcsetattr(self._out, termios.TCSANOW, _each_key(self._before, self._out))
        atexit.register(self.close)
        self._opened = True
        self.forget()
        self._write(ENTER)

    def close(self) -> None:
        """Gives the terminal back as it was."""
        if not self._opened:
            return
        self._opened = False
        atexit.unregister(self.close)
        with contextlib.suppress(OSError):
            self._write(LEAVE)
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._out, termios.TCSANOW, self._before)

    def suspend(self) -> None:
        """Stops the program, as Ctrl-Z does, with the terminal given back; returns when it goes on."""
        self.close()
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        self.open()

    def forget(self) -> None:
        """The next drawing is of every row: somebody else may have written on the terminal."""
        self._rows = []

    def draw(self, lines: Sequence[Line], size: tuple[int, int]) -> None:
        """Writes the rows that differ from what is there."""
        parts: list[str] = []
        if size != self._size:
            self._size = size
            self.forget()
            parts.append("\x1b[2J")
        rows = [self._styled(line) for line in lines]
        for number, row in enumerate(rows):
            if number >= len(self._rows) or row != self._rows[number]:
                parts.append(f"\x1b[{number + 1};1H{row}")
        self._rows = rows
        if parts:
            self._write("".join(parts))

    def draw_row(self, number: int, line: Line) -> None:
        """Writes one row at once, where it differs; those before it have been drawn."""
        row = self._styled(line)
        if number < len(self._rows) and row != self._rows[number]:
            self._rows[number] = row
            self._write(f"\x1b[{number + 1};1H{row}")

    def _styled(self, line: Line) -> str:
        parts = []
        line = [(printable_span(text), name) for text, name in line]
        for text, name in line:
            code = self._styles[name]
            parts.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
        # A full row leaves the cursor on its last cell, which must not be erased.
        if sum(cell_len(text) for text, _ in line) < self._size[0]:
            parts.append("\x1b[K")
        row = "".join(parts)
        return row if self._unicode else row.translate(PLAIN_FORMS).encode("ascii", "replace").decode()

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(self._out, data) :]


def _each_key(before: list[Any], descriptor: int) -> list[Any]:
    """Terminal settings: keys at once and unseen; Ctrl-C still interrupts, Ctrl-Z and Ctrl-S arrive as keys."""
    settings = [*before[:6], list(before[6])]
    settings[0] &= ~termios.IXON
    settings[3] &= ~(termios.ICANON | termios.ECHO)
    settings[6][termios.VSUSP] = bytes([os.fpathconf(descriptor, "PC_VDISABLE")])
    settings[6][termios.VMIN], settings[6][termios.VTIME] = 1, 0
    return settings


DRAW_S = 0.125
"""Between two drawings: eight a second."""

FIGURES_S = 0.5
"""Between two looks at the figures: numbers that change faster cannot be read."""

WHOLE_S = 2.0
"""Every row is drawn anew so often, in case that something else has written on the terminal."""

REMARK_S = 8.0
"""How long the answer to what was typed is shown."""

JOIN_LIMIT_S = 1.0
"""How long the drawing may take to end: a terminal that takes nothing any more is left alone."""

log = logging.getLogger(__name__)


class View:
    """Draws in its own thread, so that it goes on while no events come.

    `keys` is the descriptor that questions are typed on, None where they cannot be; `ask` gets them.
    """

    def __init__(self, screen: Screen, keys: int | None, state: ViewModel, ask: Callable[[str], None]) -> None:
        self._screen = screen
        self._keys = keys
        self._state = state
        self._ask = ask
        self._editor = LineEditor()
        self._figures: StatisticsSnapshot | None = None
        self._figures_s = self._whole_s = self._drawn_s = 0.0
        self._remark, self._remark_until_s = "", 0.0
        self._urgent = self._pending = ""
        self._stopping = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        screen.open()
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)
        self._thread.start()

    def say(self, remark: str) -> None:
        """Shows a remark for some seconds."""
        self._remark, self._remark_until_s = remark, time.monotonic() + REMARK_S

    def answered_question(self, question: str) -> None:
        """This question was taken, or refused: it does not wait any more."""
        if question == self._pending:
            self._pending = ""
        self.say("")

    def insist(self, remark: str) -> None:
        """Shows a remark from now on. Takes no lock and uses no buffer, for signal handlers."""
        self._urgent = remark

    def close(self) -> None:
        """Ends the thread and gives the terminal back; called once."""
        self._stopping = True
        os.write(self._wake, b"!")
        self._thread.join(JOIN_LIMIT_S)
        self._screen.close()
        os.close(self._wake)
        if not self._thread.is_alive():
            os.close(self._woken)

    def _run(self) -> None:
        """Draws and listens until the end, or until the terminal has gone."""
        try:
            while not self._stopping:
                now_s = time.monotonic()
                if now_s - self._drawn_s >= DRAW_S:
                    self._drawn_s = now_s
                    self._draw(now_s)
                self._listen(max(0.0, self._drawn_s + DRAW_S - time.monotonic()))
        except OSError:
            log.debug("the view ends: its terminal has gone", exc_info=True)

    def _draw(self, now_s: float) -> None:
        if self._figures is None or now_s - self._figures_s >= FIGURES_S:
            self._figures, self._figures_s = self._state.figures(), now_s
        if now_s - self._whole_s >= WHOLE_S:
            self._whole_s = now_s
            self._screen.forget()
        size = self._screen.size
        self._screen.draw(compose(self._state.scene(self._figures), self._typing(now_s), *size), size)

    def _typing(self, now_s: float) -> Typing:
        remark = self._urgent or (self._remark if now_s < self._remark_until_s else "")
        return Typing(None if self._keys is None else self._editor.text, remark, self._pending)

    def _listen(self, timeout_s: float) -> None:
        """Waits for keys, and acts on them."""
        keys = [] if self._keys is None else [self._keys]
        ready, _, _ = select.select([*keys, self._woken], [], [], timeout_s)
        if self._keys not in ready:
            return
        data = os.read(self._keys, READ_BYTES) if self._keys is not None else b""
        if not data:
            self._keys = None
            return
        for typed in self._editor.feed(data):
            if typed is Key.SUSPEND:
                self._screen.suspend()
            elif typed is Key.REDRAW:
                self._screen.forget()
            else:
                put_question(str(typed), self._asked, self.say)
        columns, rows = self._screen.size
        self._screen.draw_row(rows - 1, input_line(self._typing(time.monotonic()), columns))

    def _asked(self, question: str) -> None:
        self._pending = question
        self.say("")
        self._ask(question)


STARTING = "starting"
ERASE = "\r\x1b[K"

LAST_ENTRIES = 12
"""Of what was said, so much is left on the terminal when the view has gone."""


class LiveDisplay(Display):
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
        self._state: ViewModel | None = None
        self._view: View | None = None
        self._reader: QuestionReader | None = None
        self._stderr = sys.stderr
        self._waiting = sys.stderr.isatty()
        if self._waiting:
            print(STARTING, end="", file=sys.stderr, flush=True)

    def attach(self, run: RunHandle, frames: int | None) -> None:
        self._waited()
        self._state = ViewModel(run, self._clock)
        self._view = View(self._screen, self._keys, self._state, run.ask)
        self._stderr = sys.stderr
        if self._stderr.isatty():
            sys.stderr = LineWriter(self._state.note)
        if self._questions is not None:
            self._reader = QuestionReader(self._questions, run.ask, self._state.note)

    def show_message(self, message: str) -> None:
        """Safe in a signal handler: takes no lock, uses no buffer."""
        if self._view is not None:
            self._view.insist(message)
        else:
            write_now(message)

    def write(self, event: Event) -> None:
        assert self._state is not None, "a run is attached before its events come"
        self._state.add(event)
        if isinstance(event, QueryChanged) and self._view is not None:
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


class LineWriter(io.TextIOBase):
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
