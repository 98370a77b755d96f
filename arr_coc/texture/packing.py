"""Dirty tiles as a device takes them: rectangles that cover them, and tiles packed one after another."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import TILE_PX

Plane = npt.NDArray[np.uint8]
Rectangle = tuple[int, int, int, int]
"""(row0, col0, row1, col1), half-open, in tiles."""


def tile_view(array: Plane, tile_height: int, tile_width: int) -> npt.NDArray[np.void]:
    """Return a view of the whole tiles of an array, in which an element is a row of a tile, so that it is copied at
    once.

    Args:
        array: [H, W] or [H, W, 3].
        tile_height: Rows of a tile.
        tile_width: Columns of a tile.

    Returns:
        [rows, tile height, cols].
    """
    rows = array.shape[0] // tile_height
    cols = array.shape[1] // tile_width
    samples = array[: rows * tile_height, : cols * tile_width].reshape(rows * tile_height, -1)
    return samples.view(np.dtype((np.void, samples.shape[1] // cols))).reshape(rows, tile_height, cols)


AT_ONCE = 64
"""Tiles packed at a time: 192 KB, within a core's own cache."""


class TilePacker:
    """Packer that copies tiles of a level 0, one after another; scratch memory is made once."""

    def __init__(self) -> None:
        self._texels = np.empty((AT_ONCE * TILE_PX, TILE_PX, 3), np.uint8)

    def pack(self, level0: Plane, tiles: npt.NDArray[np.intp], out: Plane) -> None:
        """Copy tiles of level 0 one after the other.

        Args:
            level0: uint8 [H, W, 3].
            tiles: Places of n tiles, [n, 2] (row, col).
            out: Destination, uint8 [≥ n, 32, 32, 3 or 4]; a fourth channel is 255.
        """
        source = tile_view(level0, TILE_PX, TILE_PX)
        for start in range(0, len(tiles), AT_ONCE):
            rows, cols = tiles[start : start + AT_ONCE].T
            count = len(rows)
            target = out[start : start + count].reshape(count * TILE_PX, TILE_PX, out.shape[-1])
            if out.shape[-1] == 3:
                texels = target
            else:
                texels = self._texels[: count * TILE_PX]
            tile_view(texels, TILE_PX, TILE_PX)[:, :, 0] = source[rows, :, cols]
            if texels is not target:
                cv2.cvtColor(texels, cv2.COLOR_RGB2RGBA, dst=target)


def cover(dirty: npt.NDArray[np.bool_]) -> tuple[Rectangle, ...]:
    """Disjoint rectangles (row0, col0, row1, col1), half-open, that cover exactly the True tiles of [rows, cols].

    Runs of a row, each joined with the row below while that has the very same run.
    """
    rows = np.flatnonzero(dirty.any(axis=1))
    cols = np.flatnonzero(dirty.any(axis=0))
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
