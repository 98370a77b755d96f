"""Moments made by hand, and a file with some of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stream.extensions.past.moments import ANSWER, Moment, PastRun
from stream.extensions.past.store import PastStore

HOUR_MS = 3_600_000

BEGIN_MS = 1_700_000_000_000
"""Unix time of the first moment: 2023-11-14T22:13:20Z."""

YARD = PastRun("yard-run", "yard", "rtsp://yard.local/stream", BEGIN_MS, "tiny")
DOOR = PastRun("door-run", "door", "rtsp://door.local/stream", BEGIN_MS, "tiny")


def moment(number: int, text: str = "", run: PastRun = YARD, **changes: Any) -> Moment:
    """The `number`-th moment of a run, `number` seconds after BEGIN_MS."""
    fields: dict[str, Any] = {
        "kind": ANSWER,
        "unix_ms": BEGIN_MS + 1000 * number,
        "frame_index": 30 * number,
        "pts_s": float(number),
        "start_s": float(number),
        "end_s": float(number),
        "question": "What happens?",
    }
    return Moment(run=run, number=number, text=text or f"moment {number}", **{**fields, **changes})


def written(path: Path, moments: Iterable[Moment]) -> str:
    """Return the path of a file with these moments, which no run has open."""
    store = PastStore(str(path))
    store.write(list(moments))
    store.close()
    return str(path)
