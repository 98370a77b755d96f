"""JSON from elsewhere, read within limits of size and depth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DEPTH_MAX = 64
"""Lists and objects inside each other. A configuration has fewer than ten; Python's own limit ends in RecursionError,
if not here then in a library that walks through the values."""

FILE_BYTES_MAX = 16 << 20
"""The weight index of a model with 90,000 tensors has 9 MB."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of JSON. Raises ValueError if it is none, or nested deeper than `DEPTH_MAX`."""
    too_deep = ValueError(f"nested deeper than {DEPTH_MAX} levels")
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep from None
    holders = [value] if isinstance(value, (dict, list)) else []
    for _ in range(DEPTH_MAX):
        items = (item for holder in holders for item in (holder.values() if isinstance(holder, dict) else holder))
        holders = [item for item in items if isinstance(item, (dict, list))]
        if not holders:
            return value
    raise too_deep


def read_json(path: Path, bytes_max: int = FILE_BYTES_MAX) -> Any:
    """Return the value of a JSON file. Raises OSError, and ValueError as `parse_json` and for a larger file."""
    with path.open("rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise ValueError(f"more than {bytes_max >> 20} MiB")
    return parse_json(data.decode("utf-8"))
