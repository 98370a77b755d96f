"""What a person is told of events that are neither frames nor answers, each in one line."""

from __future__ import annotations

from collections.abc import Callable

from arr_coc.counting import counted
from stream.events import (
    ANSWERS_LOST,
    AnswerCancelled,
    Asked,
    Cut,
    Event,
    Notice,
    Outage,
    PictureChanged,
    Restarted,
    Skipped,
    Turned,
)
from stream.printable import printable

SKIPS_SHOWN = 3
"""Losses that are told one by one; the others are counted in the summary."""

CHANGES_SHOWN = 3
"""Changes of the picture's size or format that are told one by one: a folder may hold a thousand pictures of different
sizes."""


def clock_text(at_s: float) -> str:
    """Media time for people: `0:02.0`, `1:02:03.4`."""
    tenths = round(max(0.0, at_s) * 10)
    minutes, tenths = divmod(tenths, 600)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{tenths // 10:02}.{tenths % 10}"
    return f"{hours}:{minutes:02}:{seconds}" if hours else f"{minutes}:{seconds}"


def seconds_text(at_s: float) -> str:
    """Media time in whole seconds: `0:02`, `1:02:03`."""
    return clock_text(float(int(at_s)))[:-2]


def turned_text(event: Turned) -> str:
    """The turn of a standing answer, with how probable that is: `yes (97 %): is there a red car?`; and its warning."""
    warning = "" if event.warning is None else f" ({event.warning})"
    chance = event.yes if event.to == "yes" else 1 - event.yes
    return printable(f"{event.to} ({chance:.0%}): {event.question}".replace("%", " %", 1) + warning)


def breaks_off(event: Event) -> bool:
    """Whether what was being spoken comes to nothing: it was cancelled, or the process that spoke is gone."""
    lost = isinstance(event, Notice) and event.code == ANSWERS_LOST
    return lost or isinstance(event, (Restarted, AnswerCancelled))


class Remarks:
    """Makes the lines; where many parts of a source are broken, they do not flood.

    `clock` makes a time for people of media time; `cuts` says whether scene cuts are told.
    """

    def __init__(self, clock: Callable[[float], str] = clock_text, *, cuts: bool = False) -> None:
        self._clock = clock
        self._cuts = cuts
        self._skips = 0
        self._changes = 0

    def of(self, event: Event) -> str | None:
        """The line for an event that a person should know about, None for any other."""
        line = self._line(event)
        return None if line is None else printable(line)

    def _line(self, event: Event) -> str | None:
        if isinstance(event, Notice):
            return None if event.code == "loading" else f"note: {event.message}"
        if isinstance(event, Skipped):
            return self._skipped(event)
        if isinstance(event, Outage):
            return self._outage(event)
        if isinstance(event, PictureChanged):
            return self._changed(event)
        if isinstance(event, AnswerCancelled):
            return f"answer cancelled by the {event.by} at {self._clock(event.by_pts_s)}"
        if isinstance(event, Cut) and self._cuts:
            return f"cut at {self._clock(event.pts_s)}"
        if isinstance(event, Restarted):
            again = "" if event.count == 1 else f", for the {ordinal(event.count)} time"
            return f"restarting {event.process}{again}: {event.cause}"
        if isinstance(event, Asked):
            return f"asked: {event.query}" if event.error is None else f"not asked: {event.error}"
        return None

    def _skipped(self, event: Skipped) -> str | None:
        self._skips += 1
        if self._skips > SKIPS_SHOWN:
            return "skipped more; the summary counts them" if self._skips == SKIPS_SHOWN + 1 else None
        return f"skipped {event.what} before {self._clock(event.pts_s)}: {event.reason}"

    def _changed(self, event: PictureChanged) -> str | None:
        self._changes += 1
        if self._changes > CHANGES_SHOWN:
            return (
                "the picture goes on changing; .jsonl tells each time" if self._changes == CHANGES_SHOWN + 1 else None
            )
        what = "size" if event.reason == "resolution" else "format"
        return (
            f"the picture changes its {what} at {self._clock(event.pts_s)}; from here on it is worked on at "
            f"{event.width_px}x{event.height_px}"
        )

    def _outage(self, event: Outage) -> str:
        if event.lasted_s is None:
            return f"source lost at {self._clock(event.pts_s)}: {event.reason}"
        tries = "" if event.attempts < 2 else f" and {counted(event.attempts, 'attempt')}"
        return f"source back after {event.lasted_s:.1f} s{tries}"


def ordinal(number: int) -> str:
    last = number % 10
    suffix = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(last, "th")
    return f"{number}{suffix}"
