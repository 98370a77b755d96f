"""A sign of life from a child process: single bytes through a pipe, which nothing can fill or block."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

BEAT_S = 0.25
"""Between two beats."""

LOADING, READY = b".", b"!"
"""What one beat says. A process that is still getting ready is not expected to be regular."""


class PulseReader:
    """The parent's end. `writer` is what the child must inherit; `close_writer` once it has."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self.writer, False)
        self._last_s = time.monotonic()
        self._ready = False

    def close_writer(self) -> None:
        os.close(self.writer)

    def silence_s(self) -> float:
        """How long the child has given no sign of life; 0 until it is ready for the first time."""
        beats = b""
        with contextlib.suppress(BlockingIOError):
            beats = os.read(self._reader, 65536)
        now_s = time.monotonic()
        if beats:
            self._last_s = now_s
            self._ready = self._ready or READY in beats
        return now_s - self._last_s if self._ready else 0.0

    def close(self) -> None:
        os.close(self._reader)


class Pulse:
    """The child's end: a thread that beats for as long as `lively` says so."""

    def __init__(self, writer: int, lively: Callable[[], bool] = lambda: True) -> None:
        self._writer = writer
        self._lively = lively
        self._beat = LOADING
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def ready(self) -> None:
        """From here on silence means that this process hangs."""
        self._beat = READY

    def _run(self) -> None:
        while True:
            if self._lively():
                with contextlib.suppress(BlockingIOError, BrokenPipeError):
                    os.write(self._writer, self._beat)
            time.sleep(BEAT_S)
