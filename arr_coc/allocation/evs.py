"""Efficient Video Sampling: the tiles that changed most since the frame that was shown before, by their pixels.

After Bagrov et al. 2025, "Efficient Video Sampling: Pruning Temporally Redundant Tokens for Faster VLM Inference"
(arXiv:2510.14624) and the differential token drop of Yao et al. 2025, "TimeChat-Online" (arXiv:2504.17343), here before
the encoder. Neither the question nor relevance plays a part.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.texture.store.base import TextureView
from arr_coc.types import TILE_PX, TileVersions

Tiles = npt.NDArray[np.bool_]
Change = npt.NDArray[np.floating]

CHANGE_LEVEL = 2
"""Level of the texture that is compared: means of 4×4 pixels, which hold less of a sensor's noise."""

_GOLDEN = (np.sqrt(5) - 1) / 2


def tile_change(before: npt.NDArray[np.uint8], after: npt.NDArray[np.uint8], tile_px: int) -> npt.NDArray[np.float64]:
    """Return the mean absolute difference of each tile of two pictures.

    Args:
        before: The earlier picture, uint8 [gh * tile_px, gw * tile_px, 3].
        after: The later picture, of the same shape.
        tile_px: Side of a tile in pixels.

    Returns:
        float64 [gh, gw], from 0 to 255.
    """
    rows = before.shape[0] // tile_px
    cols = before.shape[1] // tile_px
    difference = cv2.absdiff(before, after).reshape(rows, tile_px, cols, tile_px * 3)
    return difference.sum(axis=(1, 3), dtype=np.int64) / (3 * tile_px * tile_px)


def even_lattice(shape: tuple[int, int], tokens: int, base: Tiles | None = None) -> Tiles:
    """Return tiles with about the same number in every part of the grid, in addition to those of `base`.

    The tiles nearest to the points of a Fibonacci lattice (((i + ½)/n, i·φ mod 1); Niederreiter 1992, "Random Number
    Generation and Quasi-Monte Carlo Methods"), so that no row or column is left out; if two points meet in one
    tile, the next free one along its row or below it is taken.

    Args:
        shape: Rows and columns of the grid (gh, gw).
        tokens: Number of tiles to add.
        base: Tiles that are selected already, bool [gh, gw]; None for none.

    Returns:
        The tiles of `base` and the added ones, bool [gh, gw].
    """
    rows, cols = shape
    index = np.arange(tokens)
    row = np.minimum((index + 0.5) / max(1, tokens) * rows, rows - 1).astype(int)
    col = np.minimum((index * _GOLDEN + 0.5) % 1 * cols, cols - 1).astype(int)
    if base is None:
        tiles = np.zeros(rows * cols, bool)
    else:
        tiles = base.flatten()
    for place in row * cols + col:
        free = np.flatnonzero(~np.roll(tiles, -int(place)))[0]
        tiles[(place + free) % tiles.size] = True
    return tiles.reshape(shape)


def changed_tiles(change: Change | None, shape: tuple[int, int], tokens: int) -> Tiles:
    """Return the tiles of one frame that changed most; of equals, the first.

    Tokens that remain once every tile that changed is shown cover the frame evenly.

    Args:
        change: By how much each tile changed since the frame before, float [gh, gw]; None without a frame before: all
            tokens cover the frame evenly.
        shape: Rows and columns of the grid (gh, gw).
        tokens: Number of tiles.

    Returns:
        The tiles, bool [gh, gw].
    """
    if change is None:
        return even_lattice(shape, tokens)
    tiles = _largest(change.ravel(), tokens).reshape(shape) & (change > 0)
    return even_lattice(shape, tokens - int(tiles.sum()), tiles)


def clip_tiles(changes: Sequence[Change], shape: tuple[int, int], tokens: int) -> list[Tiles]:
    """Return the tiles of each frame of a clip that a budget buys.

    With a budget of at least one frame the first one is shown whole, and of all others together the tiles that changed
    most, of each frame at least one. With less, each frame has its own budget.

    Args:
        changes: By how much the tiles changed, float [gh, gw], of each frame but the first.
        shape: Rows and columns of the grid (gh, gw).
        tokens: Budget of each frame.

    Returns:
        The tiles of each frame, bool [gh, gw].
    """
    spare = tokens * (len(changes) + 1) - shape[0] * shape[1]
    if spare < len(changes) or not changes:
        return [changed_tiles(change, shape, tokens) for change in (None, *changes)]
    priorities = np.stack([change.ravel() for change in changes])
    priorities[np.arange(len(priorities)), priorities.argmax(axis=1)] = (
        np.inf
    )  # a frame that shows nothing cannot be introduced
    tiles = _largest(priorities.ravel(), spare).reshape(len(changes), *shape)
    return [np.ones(shape, bool), *tiles]


def _largest(values: Change, count: int) -> Tiles:
    """Mask of the `count` largest; of equals, the first."""
    mask = np.zeros(len(values), bool)
    mask[np.argsort(-values, kind="stable")[:count]] = True
    return mask


class ComparedPicture:
    """The picture of one epoch's frame that was shown to a model last, and that of the newest frame.

    `weight`: that of a frame that is shown, in the picture that later ones are compared with; with less than 1, this
    is a mean of those shown so far, in which the older ones fade.
    """

    def __init__(self, weight: float = 1.0) -> None:
        self._weight = weight
        self._versions: TileVersions | None = None
        self._newest: npt.NDArray[np.uint8] | None = None
        self._reference: npt.NDArray[np.uint8] | None = None
        self._mean: npt.NDArray[np.float32] | None = None
        self._change: torch.Tensor | None = None

    def change(self, view: TextureView) -> torch.Tensor | None:
        """Return by how much each tile of a new frame, whose texture is `view`, changed since the frame that was shown
        last: float32 [gh, gw], the same tensor while nothing changes; None if none was shown."""
        if self._versions is None or self._versions.stale(view.versions).any():
            self._versions = view.versions
            self._newest = view.read(CHANGE_LEVEL).copy()
            self._change = None
        if self._reference is None or self._newest is None:
            return None
        if self._change is None:
            change = tile_change(self._reference, self._newest, TILE_PX >> CHANGE_LEVEL)
            self._change = torch.from_numpy(change.astype(np.float32))
        return self._change

    def mark(self) -> None:
        """The newest frame is shown: later ones are compared with it, or with the mean that it is part of."""
        self._change = None
        if self._weight == 1 or self._newest is None:
            self._reference = self._newest
            return
        newest = self._newest.astype(np.float32)
        if self._mean is None:
            self._mean = newest
        else:
            self._mean += np.float32(self._weight) * (newest - self._mean)
        self._reference = np.rint(self._mean).astype(np.uint8)
