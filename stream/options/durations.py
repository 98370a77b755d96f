"""Reading of durations, as users write them."""

from __future__ import annotations

import math
import re

from stream.errors import ConfigError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|min|s|m|h|d|\Z)")


def parse_duration(option: str, text: str) -> float:
    """Read a duration above 0; a number alone is seconds. Raises ConfigError, which names the option."""
    compact_text = "".join(text.split()).lower()
    seconds = 0.0
    at = 0
    while part := _PART.match(compact_text, at):
        seconds += float(part[1]) * _SECONDS[part[2] or "s"]
        at = part.end()
    if at < len(compact_text) or not 0 < seconds < math.inf:
        raise ConfigError(f"{option} needs a length of time above 0, such as 60s, 10m or 1h30m; got {text!r}")
    return seconds
