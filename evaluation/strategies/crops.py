"""Rectangles of tiles that hold the most worth for a number of tiles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Map = npt.NDArray[np.float32]

MOST_ASPECT = 4.0
"""Longest rectangle: a line of text has it, a thing has not."""

LEAST_TILES = 4
"""Fewer tiles show pieces of things."""

PART_COST = 0.1
"""Share of the worth that each further rectangle must bring: one part shows things in their place."""


class Crop(NamedTuple):
    """A rectangle of tiles."""

    top: int
    left: int
    rows: int
    cols: int

    @property
    def tiles(self) -> tuple[slice, slice]:
        """Rows and columns of its tiles."""
        return slice(self.top, self.top + self.rows), slice(self.left, self.left + self.cols)


def best_crops(worth: Map, tokens: int, most: int = 3) -> list[Crop]:
    """Return the rectangles that hold the most worth together, one after the other the richest one left.

    Args:
        worth: float32 [rows, cols], 0 or more.
        tokens: Number of tiles of all rectangles, at most.
        most: Largest number of rectangles.

    Returns:
        The rectangles, from top to bottom; none if the budget has no room for one.
    """
    best: list[Crop] = []
    best_value = 0.0
    for count in range(1, most + 1):
        found = _greedy(worth, tokens, count)
        value = sum(value for _, value in found) * (1 - PART_COST * (len(found) - 1))
        if value > best_value:
            best_value = value
            best = [crop for crop, _ in found]
    return sorted(best)


def _greedy(worth: Map, tokens: int, count: int) -> list[tuple[Crop, float]]:
    left = worth.astype(np.float64)
    found: list[tuple[Crop, float]] = []
    for number in range(count):
        richest = _richest(left, tokens // (count - number))
        if richest is None:
            break
        found.append(richest)
        crop = richest[0]
        left[crop.tiles] = 0
        tokens -= crop.rows * crop.cols
    return found


def _richest(worth: npt.NDArray[np.float64], tokens: int) -> tuple[Crop, float] | None:
    """Return the rectangle of at most so many tiles that holds most, and how much; None if none is allowed."""
    high, wide = worth.shape
    total = np.pad(worth.cumsum(axis=0).cumsum(axis=1), ((1, 0), (1, 0)))
    best: tuple[Crop, float] | None = None
    for rows in range(1, min(high, tokens) + 1):
        cols = min(wide, tokens // rows)
        if max(rows / cols, cols / rows) > MOST_ASPECT or rows * cols < LEAST_TILES:
            continue
        sums = total[rows:, cols:] - total[:-rows, cols:] - total[rows:, :-cols] + total[:-rows, :-cols]
        top, left = np.unravel_index(int(sums.argmax()), sums.shape)
        if best is None or sums[top, left] > best[1]:
            best = Crop(int(top), int(left), rows, cols), float(sums[top, left])
    return best
