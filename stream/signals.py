"""The signals that end the program, and a terminal that is gone."""

from __future__ import annotations

import errno
import os
import signal
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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
