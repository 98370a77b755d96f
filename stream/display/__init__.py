"""Displays of a run for the person at the terminal."""

from __future__ import annotations

from stream import logs
from stream.sinks.base import Display


def open_display(*, captions: bool) -> Display:
    """Progress for people, or lines for machines. `captions`: answers go to stdout."""
    if logs.as_json():
        from stream.display.lines import JsonDisplay

        return JsonDisplay(captions=captions)
    from stream.display.progress import ProgressDisplay

    return ProgressDisplay(captions=captions)
