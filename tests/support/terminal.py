"""A terminal made in the test, and what a program wrote on it."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import termios
import time
from collections.abc import Callable

from tests.support.network import LIMIT_S

_MOVE = re.compile(r"\x1b\[(\d+);1H")
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Pty:
    """`program` is the program's end. `rows` holds what stands in each row, as far as it was written row by row."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.person, self.program = os.openpty()
        self.resize(columns, rows)
        self.written = ""
        self.rows: dict[int, str] = {}

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.program, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self.person, keys.encode())

    def read(self) -> str:
        """What was written since the last call."""
        fresh = b""
        while select.select([self.person], [], [], 0)[0]:
            try:
                fresh += os.read(self.person, 65536)
            except OSError:
                break
        text = fresh.decode()
        self.written += text
        moves = _MOVE.split(text)
        for number, row in zip(moves[1::2], moves[2::2], strict=True):
            self.rows[int(number)] = _CONTROL.sub("", row).rstrip()
        return text

    def until(self, seen: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Reads until `seen`; fails where that takes too long."""
        deadline_s = time.monotonic() + limit_s
        while not seen():
            assert time.monotonic() < deadline_s, self.rows
            select.select([self.person], [], [], 0.05)
            self.read()

    def shows(self, text: str) -> None:
        """Waits until a row holds the text."""
        self.until(lambda: any(text in row for row in self.rows.values()))

    def echoes(self) -> bool:
        """Whether the terminal is in its usual mode: lines, echoed."""
        local = termios.tcgetattr(self.program)[3]
        return bool(local & termios.ECHO) and bool(local & termios.ICANON)

    def close(self) -> None:
        os.close(self.program)
        os.close(self.person)
