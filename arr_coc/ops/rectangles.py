"""Which rectangles of tiles cover a set of dirty tiles."""

from __future__ import annotations

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
