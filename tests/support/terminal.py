"""A terminal made in the test, and the output of a program on it."""

from __future__ import annotations

import fcntl
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pyte

from tests.support.network import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]


class Pty:
    """`program` is the program's end, `written` all of its output. `rows` is the screen of the terminal."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.person, self.program = os.openpty()
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.resize(columns, rows)
        self.output = ""

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts Python with the arguments in the checkout; this is its terminal."""

        def own_terminal() -> None:
            fcntl.ioctl(self.program, termios.TIOCSCTTY, 0)

        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            stdin=self.program,
            stdout=self.program,
            stderr=self.program,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=own_terminal,
        )

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.program, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows or 24, columns or 80)

    def type(self, keys: str) -> None:
        os.write(self.person, keys.encode())

    def read(self) -> str:
        """Output since the last call."""
        fresh = b""
        while select.select([self.person], [], [], 0)[0]:
            try:
                fresh += os.read(self.person, 65536)
            except OSError:
                break
        self._stream.feed(fresh)
        self.output += fresh.decode()
        return fresh.decode()

    @property
    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Reads until `condition`; fails if that takes too long."""
        deadline_s = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline_s, self.rows
            select.select([self.person], [], [], 0.05)
            self.read()

    def shows(self, text: str, limit_s: float = LIMIT_S) -> None:
        """Waits until a row holds the text."""
        self.until(lambda: any(text in row for row in self.rows), limit_s)

    def echoes(self) -> bool:
        """Whether the terminal is in its usual mode: lines, echoed."""
        local = termios.tcgetattr(self.program)[3]
        return bool(local & termios.ECHO) and bool(local & termios.ICANON)

    def close(self) -> None:
        os.close(self.program)
        os.close(self.person)
