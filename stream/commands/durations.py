"""Lengths of time as people write them on the command line: 60, 60s, 10m, 1h30m, 500ms."""

from __future__ import annotations

import math
import re
from contextlib import suppress

from stream.errors import ConfigError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|min|s|m|h|$)")


def seconds_of(option: str, text: str) -> float:
    """Seconds, more than 0; a number without a unit is seconds. Raises ConfigError, which names the option."""
    written = "".join(text.split()).lower()
    seconds, at = 0.0, 0
    while part := _PART.match(written, at):
        seconds += float(part[1]) * _SECONDS[part[2] or "s"]
        at = part.end()
    if at < len(written) or not 0 < seconds < math.inf:
        raise ConfigError(f"{option} needs a length of time above 0, such as 60s, 10m or 1h30m; got {text!r}")
    return seconds


_CLOCK = re.compile(r"(?:(\d+):)?(\d{1,2}):(\d{1,2}(?:\.\d*)?)")


def media_time_of(option: str, text: str) -> float:
    """A media time or a length of it in seconds, 0 or more: `90`, `1:30`, `0:01:30.5`, or as `seconds_of` takes it.

    Raises ConfigError, which names the option.
    """
    written = text.strip()
    if clock := _CLOCK.fullmatch(written):
        hours, minutes, seconds = int(clock[1] or 0), int(clock[2]), float(clock[3])
        if seconds < 60 and (minutes < 60 or clock[1] is None):
            return hours * 3600 + minutes * 60 + seconds
    elif re.fullmatch(r"0+(\.0*)?s?", written):
        return 0.0
    else:
        with suppress(ConfigError):
            return seconds_of(option, written)
    raise ConfigError(f"{option} needs seconds or h:mm:ss, such as 90, 1:30 or 0:01:30.5; got {text!r}")
