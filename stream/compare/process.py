"""Handle of the process that answers comparisons: started for the first one, and again after it has died."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from stream.compare.messages import WorkerOptions, WorkerOrder, read_frame, write_frame
from stream.runtime.child import python_command, python_environment
from stream.web.compare_job import CompareFailed, CompareJob

CANCEL_LIMIT_S = 20.0
"""Time that a cancelled job may take to end, as within the prefill of a large model; then its process is killed."""

STOP_LIMIT_S = 5.0

ENDED = "ended"
"""Topic of a job's last message."""


class CompareProcess:
    """`CompareEngine` in a process of its own, which keeps its models between jobs. One thread at a time answers."""

    def __init__(self, options: WorkerOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._running: int | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._closed = False

    def answer(self, job: CompareJob, tell: Callable[[dict[str, Any]], None]) -> None:
        """Answer a job; returns with its last message. Raises CompareFailed where the process dies."""
        child = self._begin(job)
        assert child.stdout is not None
        try:
            while (body := read_frame(child.stdout)) is not None:
                message: dict[str, Any] = msgspec.msgpack.decode(body)
                tell(message)
                if message["topic"] == ENDED:
                    return
        finally:
            with self._lock:
                self._running = None
            self._idle.set()
        raise CompareFailed(self._death(child))

    def cancel(self, number: int) -> None:
        """End a job soon; kills the process where it does not."""
        with self._lock:
            if self._running != number or self._child is None:
                return
            self._send(WorkerOrder(cancel=number))
        timer = threading.Timer(CANCEL_LIMIT_S, self._kill, [number])
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """End the process; the running job fails."""
        with self._lock:
            self._closed = True
            child, self._child = self._child, None
        if child is not None:
            child.kill()
            self._idle.wait(STOP_LIMIT_S)
            _let_go(child)

    def _begin(self, job: CompareJob) -> subprocess.Popen[bytes]:
        """Give the job to the process, a new one where there is none that lives."""
        with self._lock:
            if self._closed:
                raise CompareFailed("the program ends")
            if self._child is None or self._child.poll() is not None:
                if self._child is not None:
                    _let_go(self._child)
                self._child = subprocess.Popen(
                    python_command("stream.compare.worker"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=python_environment(),
                    start_new_session=True,
                )
                self._send(self._options)
            self._running = job.number
            self._idle.clear()
            self._send(WorkerOrder(job=job))
            return self._child

    def _send(self, message: WorkerOptions | WorkerOrder) -> None:
        """Write to the process; one that is gone is noticed by whoever reads from it."""
        assert self._child is not None
        assert self._child.stdin is not None
        try:
            write_frame(self._child.stdin, msgspec.msgpack.encode(message))
        except OSError:
            return

    def _kill(self, number: int) -> None:
        with self._lock:
            if self._running == number and self._child is not None:
                self._child.kill()

    def _death(self, child: subprocess.Popen[bytes]) -> str:
        if self._closed:
            return "the program ends"
        status = child.wait(STOP_LIMIT_S)
        cause = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        remedy = "; there may be too little memory: compare a smaller model or picture" if status == -9 else ""
        return f"the process that compares {cause}{remedy}; ask again, and it is started anew"


def _let_go(child: subprocess.Popen[bytes]) -> None:
    """Wait for a process that has ended, and close its pipes."""
    child.wait(STOP_LIMIT_S)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except OSError:  # what it was not sent any more
                continue
