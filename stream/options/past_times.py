"""Times of a search, as given by users: a length of time ago, or a date."""

from __future__ import annotations

from datetime import datetime, timezone

from stream.errors import ConfigError
from stream.options.durations import parse_duration

EXAMPLES = "such as 2h, 3d, 14:30, 2026-11-27 or 2026-11-27T14:30"


def parse_past_time(option: str, text: str, now: datetime) -> int:
    """Return the Unix time, in milliseconds, of a length of time before `now`, a time of its day, or an ISO 8601 date.

    A time without a zone is in that of this machine; one before 1970 is 0. Raises ConfigError, which names the option.
    """
    time_text = text.strip()
    try:
        if time_text.isdigit():
            seconds = None
        else:
            seconds = parse_duration(option, time_text)
    except ConfigError:
        seconds = None
    try:
        if seconds is not None:
            return max(0, round((now.timestamp() - seconds) * 1000))
        iso_text = time_text.replace("Z", "+00:00").replace("z", "+00:00")
        at = datetime.fromisoformat(f"{now.date()}T{iso_text}" if ":" in iso_text[:3] else iso_text)
        return max(0, round(at.timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"{option} needs a time {EXAMPLES}; got {text!r}") from None


def iso_time(unix_ms: int) -> str:
    """Return a Unix time in ISO 8601 with milliseconds, in UTC: `2026-11-27T13:30:05.000Z`."""
    at = datetime.fromtimestamp(unix_ms / 1000, timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
