"""How much of each tile of a grid lies in boxes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from training.truth import Box


def tile_shares(boxes: Iterable[Box], shape: tuple[int, int], tile_px: tuple[float, float]) -> npt.NDArray[np.float64]:
    """The share of every tile that lies in a box, float64 of `shape` (rows, cols): of several boxes the largest.

    `tile_px` is a tile's (height, width) in the boxes' pixels.
    """
    rows, cols = shape
    high_px, wide_px = tile_px
    shares = np.zeros(shape)
    for left, top, right, bottom in boxes:
        down = _overlap(top / high_px, bottom / high_px, rows)
        across = _overlap(left / wide_px, right / wide_px, cols)
        shares = np.maximum(shares, np.outer(down, across))
    return shares


def _overlap(first: float, last: float, count: int) -> npt.NDArray[np.float64]:
    """How much of each of `count` unit intervals lies between `first` and `last`."""
    edges = np.arange(count)
    return np.clip(np.minimum(edges + 1, last) - np.maximum(edges, first), 0, 1)
