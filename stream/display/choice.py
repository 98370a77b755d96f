"""Choice of a display by the abilities of the output."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stream import logs
from stream.display import WatchOptions
from stream.extension import DisplayOpening
from stream.extension.registry import first_part
from stream.sinks.base import SINGLE_CAMERA, Display

STDIN = 0
STDOUT_FD = 1


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

    JSON lines for machines. A run that is not watched has a progress bar. Others have the display of an extension if
    stdout is a terminal that can show one, else plain lines. Without `captions` stdout belongs to an output, and gets
    no answers.
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
    if not dumb and watch_options.live and captions and in_foreground(STDOUT_FD):
        opening = DisplayOpening(names, STDOUT_FD, keys, stdin_fd if keys is None else None)
        display: Display | None = first_part("display", opening)
        if display is not None:
            return display
    from stream.display.lines import LinesDisplay

    return LinesDisplay(
        watch_options.every_s, names, captions=captions, questions_fd=keys if stdin_fd is None else stdin_fd
    )
