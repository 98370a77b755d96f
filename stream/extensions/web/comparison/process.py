"""Handle of the process that answers comparisons: started for the first one, and again after a death."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import IO, Any

import msgspec

from stream.extensions.web.comparison.messages import (
    ENDED,
    CompareFailed,
    CompareJob,
    CompareOptions,
    CompareOrder,
    CompareWorkerConfig,
)
from stream.runtime.child import ChildProcess

CANCEL_LIMIT_S = 20.0
"""Time that a cancelled job may take to end, as within the prefill of a large model; then its process is killed."""


class CompareProcess:
    """`Comparer` in a separate process, which keeps its models between jobs. One thread at a time answers."""

    def __init__(self, options: CompareOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        self._replies: IO[bytes] | None = None
        self._running: int | None = None
        self._closed = False

    def answer(self, job: CompareJob, report: Callable[[dict[str, Any]], None]) -> None:
        """Answer a job; returns after its last message. Raises CompareFailed if the process dies."""
        child, replies = self._begin(job)
        try:
            for line in replies:
                if not line.endswith(b"\n"):  # cut off by the death of the process
                    break
                message: dict[str, Any] = msgspec.json.decode(line)
                report(message)
                if message["topic"] == ENDED:
                    return
            child.stop()
            if self._closed:
                raise CompareFailed("the program ends")
            error = child.exit_error()
            assert error is not None, "it has been stopped"
            remedy = "; there may be too little memory: compare a smaller model or picture"
            remedy = remedy if "SIGKILL" in error.cause else ""
            raise CompareFailed(f"the comparison failed: {error.cause}{remedy}; ask again to start it again")
        finally:
            with self._lock:
                self._running = None
                if self._closed:
                    self._stop()

    def cancel(self, number: int) -> None:
        """End a job soon; its process is killed if it does not end."""
        with self._lock:
            if self._running != number or self._child is None:
                return
            self._child.send_line(msgspec.json.encode(CompareOrder(cancel=number)))
        timer = threading.Timer(CANCEL_LIMIT_S, self._kill, [number])
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """End the process; the running job fails."""
        with self._lock:
            self._closed = True
            if self._running is None:
                self._stop()
            elif self._child is not None:
                self._child.kill()  # the thread that answers stops it

    def _begin(self, job: CompareJob) -> tuple[ChildProcess, IO[bytes]]:
        """Give the job to the process, which is started unless one runs."""
        with self._lock:
            if self._closed:
                raise CompareFailed("the program ends")
            if self._child is not None and self._child.exit_error() is not None:
                self._stop()
            if self._child is None or self._replies is None:
                reader, writer = os.pipe()
                self._replies = os.fdopen(reader, "rb")
                # Output of libraries, such as a warning about a model, goes to stderr, as in one process.
                output = os.fdopen(os.dup(2), "wb")
                self._child = ChildProcess(
                    "compare", "stream.extensions.web.comparison.worker", (writer,), output=output
                )
                os.close(writer)
                self._child.send_line(msgspec.json.encode(CompareWorkerConfig(self._options, writer)))
            self._running = job.number
            self._child.send_line(msgspec.json.encode(CompareOrder(job=job)))
            return self._child, self._replies

    def _stop(self) -> None:
        if self._child is not None and self._replies is not None:
            self._child.stop()
            self._replies.close()
        self._child = self._replies = None

    def _kill(self, number: int) -> None:
        with self._lock:
            if self._running == number and self._child is not None:
                self._child.kill()
