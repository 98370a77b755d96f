"""Displays of one or several cameras for the person at the terminal, and the choice between them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from stream import logs
from stream.sinks.base import SINGLE_CAMERA, Display

STDIN = 0
STDOUT_FD = 1


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of a display that is watched: time between lines of figures; whether lines of standard input are
    questions even if that is no terminal, and whether they may be if it is one; and whether a live view may be
    shown."""

    every_s: float | None
    ask_stdin: bool = False
    keyboard: bool = True
    live: bool = True


def in_foreground(descriptor: int) -> bool:
    """Return whether this is a terminal of this program, and not of a shell that put it in the background."""
    try:
        return os.isatty(descriptor) and os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


def open_display(
    names: Sequence[str] = SINGLE_CAMERA, *, captions: bool, watch_options: WatchOptions | None = None
) -> Display:
    """Return the display for these cameras, by the abilities of the output.

    JSON lines for machines. A run that is not watched has a progress bar. Others have a live view if stdout is a
    terminal that can show one, else plain lines. Without `captions` stdout belongs to an output, and gets no answers.
    """
    if watch_options is not None and watch_options.ask_stdin:
        stdin_fd = STDIN
    else:
        stdin_fd = None
    if logs.as_json():
        from stream.display.lines import JsonDisplay

        return JsonDisplay(names, captions=captions, questions_fd=stdin_fd)
    if watch_options is None or (names is SINGLE_CAMERA and not captions):
        from stream.display.progress import ProgressDisplay

        return ProgressDisplay(captions=captions, questions_fd=stdin_fd)
    if watch_options.keyboard and in_foreground(STDIN):
        keys = STDIN
    else:
        keys = None
    dumb = os.environ.get("TERM", "dumb") in ("", "dumb")
    if dumb or not watch_options.live or not captions or not in_foreground(STDOUT_FD):
        from stream.display.lines import LinesDisplay

        return LinesDisplay(
            watch_options.every_s, names, captions=captions, questions_fd=keys if stdin_fd is None else stdin_fd
        )
    from stream.display.live import LiveDisplay

    return LiveDisplay(STDOUT_FD, keys, names, questions_fd=stdin_fd if keys is None else None)
