"""A whole terminal, taken for a while and given back as it was."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import termios
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len

from stream.printable import printable_span
from stream.sinks.cells import Line

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
