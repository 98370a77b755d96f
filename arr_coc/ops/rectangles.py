"""Rectangles of tiles: which cover a set of dirty tiles, and what lies in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from arr_coc.ops.planes import Rectangle


def cover(dirty: npt.NDArray[np.bool_]) -> tuple[Rectangle, ...]:
    """Disjoint rectangles (row0, col0, row1, col1), half-open, that cover exactly the True tiles of [rows, cols].

    Runs of a row, each joined with the row below while that has the very same run.
    """
    rows, cols = np.flatnonzero(dirty.any(axis=1)), np.flatnonzero(dirty.any(axis=0))
    if not len(rows):
        return ()
    box = (int(rows[0]), int(cols[0]), int(rows[-1]) + 1, int(cols[-1]) + 1)
    if dirty[box[0] : box[2], box[1] : box[3]].all():
        return (box,)
    edges = np.zeros((dirty.shape[0], dirty.shape[1] + 2), np.int8)
    edges[:, 1:-1] = dirty
    steps = np.diff(edges, axis=1)
    run_rows, starts = np.nonzero(steps == 1)
    ends = np.nonzero(steps == -1)[1]
    tops: list[Rectangle] = []
    index_of: dict[tuple[int, int, int], int] = {}
    for row, start, end in zip(run_rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        index = index_of.pop((row, start, end), len(tops))
        if index == len(tops):
            tops.append((row, start, row + 1, end))
        else:
            tops[index] = (tops[index][0], start, row + 1, end)
        index_of[row + 1, start, end] = index
    return tuple(tops)


def area(rectangle: Rectangle) -> int:
    """How many tiles it has."""
    row0, col0, row1, col1 = rectangle
    return (row1 - row0) * (col1 - col0)


def box_around(rectangles: Sequence[Rectangle]) -> Rectangle:
    """The smallest rectangle that holds all of them, of which there is at least one."""
    row0, col0, row1, col1 = zip(*rectangles, strict=True)
    return min(row0), min(col0), max(row1), max(col1)


def mask_of(rectangles: Sequence[Rectangle], box: Rectangle) -> npt.NDArray[np.bool_]:
    """Which tiles of the box the rectangles cover: bool [rows, cols]."""
    top, left, bottom, right = box
    mask = np.zeros((bottom - top, right - left), bool)
    for row0, col0, row1, col1 in rectangles:
        mask[row0 - top : row1 - top, col0 - left : col1 - left] = True
    return mask


def tiles_of(rectangles: Sequence[Rectangle]) -> npt.NDArray[np.intp]:
    """Every tile of disjoint rectangles, one after another and row by row: int [n, 2] (row, col)."""
    if len(rectangles) == 1:
        ((row0, col0, row1, col1),) = rectangles
        return np.mgrid[row0:row1, col0:col1].reshape(2, -1).T
    tiles = [
        (row, col) for row0, col0, row1, col1 in rectangles for row in range(row0, row1) for col in range(col0, col1)
    ]
    return np.array(tiles, np.intp).reshape(-1, 2)
