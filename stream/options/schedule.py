"""Weekly schedule as text: days, hours and time zone, such as `mon-fri 22:00-06:00 Europe/Berlin`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60

EXAMPLE = '"mon-fri 22:00-06:00 Europe/Berlin"'

_SPAN = re.compile(r"(?:(?P<days>[a-z][a-z,-]*)\s+)?(?P<begin>\d\d?:\d\d)-(?P<end>\d\d?:\d\d)(?:\s+(?P<zone>\S+))?")


@dataclass(frozen=True, slots=True)
class ScheduleSpan:
    """Hours of some days: from `begin` to `end`, in minutes of a day, on the `days` (0: Monday) on which they begin.

    An `end` that is not after `begin` is on the next day. `zone` None: the machine's own time.
    """

    days: frozenset[int]
    begin: int
    end: int
    zone: tzinfo | None

    def contains(self, unix_s: float) -> bool:
        """Return whether a Unix time lies in it."""
        local = datetime.fromtimestamp(unix_s, self.zone)
        minute = local.hour * 60 + local.minute
        today = local.weekday()
        if self.begin < self.end:
            return today in self.days and self.begin <= minute < self.end
        return (today in self.days and minute >= self.begin) or ((today - 1) % 7 in self.days and minute < self.end)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Times of a week: those of any of its spans."""

    spans: tuple[ScheduleSpan, ...]

    @classmethod
    def of(cls, text: str) -> Schedule:
        """Read a schedule: spans `[DAYS] HH:MM-HH:MM [ZONE]`, separated by `;`.

        DAYS are `mon` to `sun`, as ranges and lists (`mon-fri,sun`); every day if they are left out. ZONE is an IANA
        name. Raises ValueError, with the remedy.
        """
        return cls(tuple(_span_of(part.strip()) for part in text.split(";")))

    def contains(self, unix_s: float) -> bool:
        """Return whether a Unix time is in the schedule."""
        return any(span.contains(unix_s) for span in self.spans)


def check_schedule(text: str) -> str:
    """Return the text of a schedule. Raises ValueError if it is none."""
    Schedule.of(text)
    return text


def _span_of(text: str) -> ScheduleSpan:
    match = _SPAN.fullmatch(text) or _SPAN.fullmatch(text[:1].lower() + text[1:])
    if match is None:
        raise ValueError(f"should be days, hours and a time zone, such as {EXAMPLE}, got {text!r}")
    begin, end = (_minutes(match[name], text) for name in ("begin", "end"))
    if begin in (end, DAY_MINUTES):
        raise ValueError(
            f"should have hours that end after they begin, such as 22:00-06:00 or 00:00-24:00, got {text!r}"
        )
    return ScheduleSpan(_days(match["days"], text), begin, end, None if match["zone"] is None else _zone(match["zone"]))


def _minutes(text: str, span: str) -> int:
    hours, minutes = map(int, text.split(":"))
    if minutes >= 60 or hours * 60 + minutes > DAY_MINUTES:
        raise ValueError(f"should have hours from 00:00 to 24:00, got {text} in {span!r}")
    return hours * 60 + minutes


def _days(text: str | None, span: str) -> frozenset[int]:
    if text is None:
        return frozenset(range(7))
    days: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first not in DAYS or (last or first) not in DAYS:
            raise ValueError(f"should have days of {', '.join(DAYS)}, as mon-fri or sat,sun, got {part!r} in {span!r}")
        begin = DAYS.index(first)
        end = DAYS.index(last or first)
        days.update(day % 7 for day in range(begin, end + 1 + 7 * (end < begin)))
    return frozenset(days)


def _zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise ValueError(
            f"should have a time zone of the IANA database, such as Europe/Berlin or UTC, got {name!r}"
            " (a system without time zones needs the package tzdata)"
        ) from None
