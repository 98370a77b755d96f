"""From which share of scattered tiles on it is dearer to do them one by one than to do the whole frame."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

from arr_coc.ops.backends import open_store
from arr_coc.ops.store import raster as repaint
from arr_coc.ops.store.base import Backend, TextureStore
from arr_coc.ops.store.difference import Difference
from arr_coc.ops.store.planes import PlaneFormat
from arr_coc.types import FramePlanes, FrameStamp
from benchmarks.texture_frames import Case, changing_tiles

SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)

WAYS = ("one by one", "as the store does it", "whole frame")


def crossing(
    backend: Backend,
    pictures: Sequence[FramePlanes],
    finisher: Callable[[TextureStore], Callable[[], None]],
    turns: int,
) -> dict[str, Any]:
    """Upload and mipmaps of RGB frames, three ways: medians in milliseconds, and where the first crosses the last."""
    fmt = PlaneFormat.of(pictures[0])
    store = open_store(fmt, backend)
    finish = finisher(store)
    store.update(pictures[0], FrameStamp(0, 0, 0))
    rows = []
    for share in SHARES:
        some = Difference(changing_tiles(Case(share, scattered=True), fmt.grid))
        took_ms: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(turns):
            for way in WAYS:
                difference = Difference.everywhere(fmt.grid) if way == "whole frame" else some
                with one_by_one(store) if way == "one by one" else nullcontext():
                    start_ns = time.perf_counter_ns()
                    store.write(pictures[turn % len(pictures)], difference, FrameStamp(turn, 0, 0))
                    finish()
                    took_ms[way].append((time.perf_counter_ns() - start_ns) / 1e6)
        rows.append({"share": share, **{way: round(statistics.median(times), 4) for way, times in took_ms.items()}})
    store.close()
    return {"store": backend, "grid": list(fmt.grid.shape), "crosses_at_share": crosses_at(rows), "shares": rows}


def crosses_at(rows: Sequence[dict[str, float]]) -> float | None:
    """The share at which one by one begins to cost more than the whole frame; None where it never does.

    Between two measured shares, a straight line of logarithms.
    """
    excess = [math.log(row["one by one"] / row["whole frame"]) for row in rows]
    for index, value in enumerate(excess):
        if value > 0:
            if index == 0:
                return rows[0]["share"]
            before, after = rows[index - 1]["share"], rows[index]["share"]
            part = -excess[index - 1] / (value - excess[index - 1])
            return round(before * (after / before) ** part, 4)
    return None


@contextmanager
def one_by_one(store: TextureStore) -> Iterator[None]:
    """The store does every rectangle by itself, whatever that costs."""
    with mock.patch.multiple(repaint, RECTANGLE_COST=0, STRIP_COST=0):
        if store.backend == "gl":
            store.way = "parts"  # type: ignore[attr-defined]
        try:
            yield
        finally:
            if store.backend == "gl":
                store.way = None  # type: ignore[attr-defined]
