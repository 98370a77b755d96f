"""Control of a run: its end, cancellation and failure, and the signals that ask for them."""

from __future__ import annotations

import errno
import os
import signal
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from arr_coc import errors as arr_coc_errors
from arr_coc.errors import ArrCocError
from stream import errors as stream_errors
from stream.errors import StageDied, StreamError

WAIT_MS = 50
"""Longest single wait of a stage before it looks again whether it shall stop."""

RESTLESS = ("texture", "allocate")
"""Stages that come back to their loop all the time. Capture waits for its source, which minds its own stalls."""


class CancelledError(Exception):
    """Raised inside a stage that waits, once the run is cancelled; never leaves the stage."""


class RunControl:
    """What the run is told from outside, and the first failure. Plain flags: safe in threads and signal handlers."""

    def __init__(self) -> None:
        self.ending = False
        self.found = False
        self.cancelled = False
        self.failure: Exception | None = None
        self._queries: deque[str] = deque(maxlen=1)
        self._seen_s: dict[str, float] = {}

    def ask(self, query: str) -> None:
        """The question from the next answer on; of several that nobody has seen yet, the newest."""
        self._queries.append(query)

    def take_query(self) -> str | None:
        """The question that was asked since the last call."""
        return self._queries.pop() if self._queries else None

    def end(self) -> None:
        """No new frames; what is in flight is finished."""
        self.ending = True

    def end_on_match(self) -> None:
        """What the run watched for is there: it ends, unless it was told to before."""
        if not self.ending:
            self.found = True
            self.end()

    def cancel(self) -> None:
        """Everything stops; what is in flight is dropped."""
        self.ending = True
        self.cancelled = True

    def fail(self, error: Exception) -> None:
        """The run cannot go on. Errors after the first, or after a cancel, follow from that and are not reported."""
        if not self.cancelled:
            self.failure = error
        self.cancel()

    @property
    def outcome(self) -> str:
        """How the run ends, as things stand: "finished", "found", "interrupted", "cancelled" or "error"."""
        if self.failure is not None:
            return "error"
        if self.cancelled:
            return "cancelled"
        if self.found:
            return "found"
        return "interrupted" if self.ending else "finished"

    def check(self) -> None:
        """Raises CancelledError once the run is cancelled. Stages call this often, which shows that they live."""
        self._seen_s[threading.current_thread().name] = time.monotonic()
        if self.cancelled:
            raise CancelledError

    def is_alive(self, limit_s: float) -> bool:
        """Whether each stage that never waits for long has called `check` within the time limit, if it runs."""
        now_s = time.monotonic()
        seen_s = self._seen_s.copy()
        return all(now_s - seen_s[stage] < limit_s for stage in RESTLESS if stage in seen_s)

    def ended(self) -> None:
        """The calling stage has ended: it is not expected to show that it lives."""
        self._seen_s.pop(threading.current_thread().name, None)


def failure_of(stage: str, error: Exception) -> Exception:
    """The error that ends the run: `error` itself where the user can put it right, else StageDied."""
    if isinstance(error, StageDied) or is_user_fixable(error):
        return error
    died = StageDied(stage, describe(error))
    died.__cause__ = error
    return died


def is_user_fixable(error: BaseException | None) -> bool:
    """Return whether it is an error of this project that the user can put right."""
    return isinstance(error, (ArrCocError, StreamError)) and error.user_fixable


def describe(error: BaseException) -> str:
    """An error in one line; the project's own messages need no class name."""
    text = " ".join(str(error).split())
    if text and isinstance(error, (ArrCocError, StreamError)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def remote_error(name: str, message: str) -> ArrCocError | StreamError | None:
    """The error as it was raised there; None where its class is none of the project's own.

    StageDied is no such class: whoever hears of it knows better which stage that is.
    """
    kind = getattr(arr_coc_errors, name, None) or getattr(stream_errors, name, None)
    if isinstance(kind, type) and issubclass(kind, (ArrCocError, StreamError)) and not issubclass(kind, StageDied):
        try:
            return kind(message)
        except TypeError:  # one that is made of more than a message, and never told
            return None
    return None


STDOUT, STDERR = 1, 2


@contextmanager
def signals_handled(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """While inside, SIGINT, SIGTERM and SIGHUP (the terminal was closed, the connection lost) are given to `handle`.

    SIGHUP stays ignored where it was, as under `nohup`. For the main thread.
    """

    def on_signal(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_gone_terminal()
        handle(signal.Signals(number))

    before = {number: signal.signal(number, on_signal) for number in _ending_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending_signals() -> list[signal.Signals]:
    ends = [signal.SIGINT, signal.SIGTERM]
    return ends if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*ends, signal.SIGHUP]


def leave_gone_terminal() -> bool:
    """Lets stdout and stderr lead nowhere where they are a terminal that is gone; returns whether one of them was.

    A terminal that is gone fails every write, and its kernel may say so before SIGHUP comes.
    """
    gone = [number for number in (STDOUT, STDERR) if _is_gone_terminal(number)]
    if gone:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for number in gone:
            os.dup2(nowhere, number)
        os.close(nowhere)
    return bool(gone)


def _is_gone_terminal(number: int) -> bool:
    try:
        termios.tcgetattr(number)
    except termios.error as error:
        return error.args[0] == errno.EIO
    return False
