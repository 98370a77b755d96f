"""Control of a run: commands, end and failure, errors in words, and the signals that end the program."""

from __future__ import annotations

import errno
import os
import resource
import signal
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import ClassVar, TypeAlias

import msgspec

from arr_coc import errors as arr_coc_errors
from arr_coc.errors import ArrCocError
from stream import errors as stream_errors
from stream.errors import ConfigError, StageDied, StreamError

WAIT_MS = 50
"""Longest single wait of a stage before it checks again whether it must stop."""

INTERRUPTED = "interrupted"
FOUND = "found"
ELAPSED = "elapsed"
"""Outcomes of runs that were ended: by the user, by their standing query, by their time limit."""


SIDE_QUESTIONS_MAX = 8
"""Limit of side questions that wait; further ones are refused."""

WATCH_CHANGES_MAX = 8
"""Limit of changes of watches that wait; further ones are refused."""


class Command(msgspec.Struct, frozen=True, tag_field="command"):
    """Request of a person or a program to a run while it goes on. `newest_counts`: the last of several pending ones
    wins."""

    newest_counts: ClassVar[bool] = False


class Ask(Command, frozen=True, tag="ask"):
    """Change the question from the next answer on; a `QueryChanged` event reports whether it was accepted."""

    newest_counts: ClassVar[bool] = True
    query: str


class AskAside(Command, frozen=True, tag="ask-aside"):
    """Answer a side question about the newest frame once, between the run's own answers, without a caption; a
    `SideAnswer` or `SideRefused` event ends it. `number` is its own in the run."""

    number: int
    query: str


class AddWatch(Command, frozen=True, tag="add-watch"):
    """Add a watch with these settings; a `WatchesChanged` event reports whether that was done."""

    name: str
    question: str
    threshold: float = 0.6
    hold_s: float = 0.0
    cooldown_s: float = 0.0


class RemoveWatch(Command, frozen=True, tag="remove-watch"):
    """Remove the watch of this name; a `WatchesChanged` event reports whether that was done."""

    name: str


WatchChange: TypeAlias = AddWatch | RemoveWatch


class Stop(Command, frozen=True, tag="stop"):
    """End the run with this outcome, as `RunControl.end`, or `cancel` it."""

    outcome: str = INTERRUPTED
    cancel: bool = False


class CancelledError(Exception):
    """Cancellation of the run, raised inside a stage that waits; never leaves the stage."""


class RunControl:
    """Commands to a run, and its first failure. Ends are plain flags: safe in threads and signal handlers."""

    def __init__(self) -> None:
        self._end: str | None = None
        self.cancelled = False
        self.failure: Exception | None = None
        self._lock = threading.Lock()
        self._commands: list[Command] = []
        self._seen_s: dict[str, float] = {}

    def send(self, command: Command) -> None:
        """Follow a command to stop at once, and let any other wait until the run takes it; for any thread."""
        if isinstance(command, Stop):
            self.end(command.outcome)
            if command.cancel:
                self.cancel()
            return
        with self._lock:
            if command.newest_counts:
                self._commands = [other for other in self._commands if type(other) is not type(command)]
            self._commands.append(command)

    def take_commands(self) -> list[Command]:
        """Return the commands since the last call, in order."""
        if not self._commands:
            return []
        with self._lock:
            commands = self._commands
            self._commands = []
            return commands

    def end(self, outcome: str = INTERRUPTED) -> None:
        """Ends the run: no new frames, and those in flight are finished. Of several outcomes the first counts."""
        self._end = self._end or outcome

    def cancel(self) -> None:
        """Stops everything and drops the frames in flight."""
        self.end()
        self.cancelled = True

    @property
    def ending(self) -> bool:
        """True if no new frames are to be taken."""
        return self._end is not None

    @property
    def has_match(self) -> bool:
        """True if the run ends because its standing query was answered with yes."""
        return self._end == FOUND

    def fail(self, error: Exception) -> None:
        """Cancels the run because of an error. Errors after the first, or after a cancel, are not reported."""
        if not self.cancelled:
            self.failure = error
        self.cancel()

    @property
    def outcome(self) -> str:
        """The outcome of the run so far: "finished", "cancelled", "error", or the argument of `end`."""
        if self.failure is not None:
            return "error"
        if self.cancelled:
            return "cancelled"
        return self._end or "finished"

    def check(self) -> None:
        """Raises CancelledError once the run is cancelled. Stages call this often, which shows that they are alive."""
        self._seen_s[threading.current_thread().name] = time.monotonic()
        if self.cancelled:
            raise CancelledError

    def is_alive(self, limit_s: float) -> bool:
        """Returns whether each polling stage that runs has called `check` within the time limit."""
        now_s = time.monotonic()
        seen_s = self._seen_s.copy()
        # Stages that call `check` all the time. Capture waits for its source, which watches for stalls itself.
        return all(now_s - seen_s[stage] < limit_s for stage in ("texture", "allocate") if stage in seen_s)

    def stage_ended(self) -> None:
        """Removes the calling stage, which has ended, from `is_alive`."""
        self._seen_s.pop(threading.current_thread().name, None)


def failure_of(stage: str, error: Exception) -> Exception:
    """Returns the error that ends the run: `error` itself if the user can fix it, else StageDied."""
    if isinstance(error, StageDied) or is_user_fixable(error):
        return error
    died = StageDied(stage, describe(error))
    died.__cause__ = error
    return died


def is_user_fixable(error: BaseException | None) -> bool:
    """Returns whether it is an error of this project that the user can fix."""
    return isinstance(error, (ArrCocError, StreamError)) and error.user_fixable


def describe(error: BaseException) -> str:
    """Returns an error in one line; the project's own messages need no class name."""
    text = " ".join(str(error).split())
    if text and isinstance(error, (ArrCocError, StreamError)):
        return text
    if text:
        return f"{type(error).__name__}: {text}"
    return type(error).__name__


def remote_error(name: str, message: str) -> ArrCocError | StreamError | None:
    """Returns an error of another process as it was raised there; None if its class is not the project's own.

    StageDied counts as none: the receiver knows better which stage that is.
    """
    kind = getattr(arr_coc_errors, name, None) or getattr(stream_errors, name, None)
    if isinstance(kind, type) and issubclass(kind, (ArrCocError, StreamError)) and not issubclass(kind, StageDied):
        try:
            return kind(message)
        except TypeError:  # its constructor takes more than a message; such errors are not sent
            return None
    return None


DESCRIPTORS = 65_536
"""Files and connections that a process asks to have: beside a thousand of others' there is room for its own."""

DESCRIPTORS_MIN = 256
"""Files and connections that a run may need: one camera with a page, metrics and a publisher has some 70. libzmq
ends the process if it gets none."""


def raise_descriptor_limit() -> int:
    """Raise this process's own limit of open files as far as the system lets it; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        limit = DESCRIPTORS
    else:
        limit = min(hard, DESCRIPTORS)
    if soft == resource.RLIM_INFINITY or soft >= limit:
        if soft == resource.RLIM_INFINITY:
            return DESCRIPTORS
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):
        return soft
    return limit


def check_descriptor_limit() -> None:
    """Raise ConfigError if this process may open too few files for a run, although its limit was raised."""
    if (limit := raise_descriptor_limit()) < DESCRIPTORS_MIN:
        raise ConfigError(
            f"this process may open {limit} files and connections, and a run needs {DESCRIPTORS_MIN}",
            "raise its hard limit (ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of a container)",
        )


STDOUT = 1
STDERR = 2


@contextmanager
def signals_handled(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Passes SIGINT, SIGTERM and SIGHUP (terminal closed, connection lost) to `handle` inside the block.

    If SIGHUP was ignored, as under `nohup`, it stays so. For the main thread.
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


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay SIGINT, SIGTERM and SIGHUP until the end of the block. Has no effect outside the main thread, in which no
    handler runs."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending_signals: list[int] = []
    # Not a signal mask: a thread without it would take the signal, and the handler would run here at once.
    before = {
        number: signal.signal(number, lambda number, _: pending_signals.append(number)) for number in _ending_signals()
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for signal_number in pending_signals:
            signal.raise_signal(signal_number)


def _ending_signals() -> list[signal.Signals]:
    ends = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return ends
    return [*ends, signal.SIGHUP]


def leave_gone_terminal() -> bool:
    """Redirects stdout and stderr to /dev/null if they are a terminal that is gone; returns whether one was.

    A terminal that is gone fails every write, and that may happen before SIGHUP comes.
    """
    descriptors = [number for number in (STDOUT, STDERR) if _is_gone_terminal(number)]
    if descriptors:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        for number in descriptors:
            os.dup2(nowhere, number)
        os.close(nowhere)
    return bool(descriptors)


def _is_gone_terminal(number: int) -> bool:
    try:
        termios.tcgetattr(number)
    except termios.error as error:
        return error.args[0] == errno.EIO
    return False
