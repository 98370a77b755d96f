"""Which tiles of a frame differ from what the texture holds."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.planes import Plane, PlaneCopy, PlaneFormat, replicate_edges
from arr_coc.types import TILE_PX, FramePlanes

BAND_BYTES = 1 << 19
"""Bytes of one plane differenced at a time: new samples, old ones and their difference fit a core's second-level cache."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Above which difference, of 255, a tile is dirty: of its mean, or of its largest 2×2 mean."""

    mean: float = 3.0
    largest: float = 12.0


@dataclass(frozen=True, slots=True)
class Difference:
    """The outcome of one comparison: `dirty` bool [rows, cols]."""

    dirty: npt.NDArray[np.bool_]

    @property
    def dirty_share(self) -> float:
        return float(self.dirty.mean())


class PlaneDifference:
    """Compares frames with a padded copy of planes, tile by tile, every plane by itself."""

    def __init__(self, fmt: PlaneFormat, thresholds: Thresholds) -> None:
        self._grid = fmt.grid
        self._steps = fmt.steps()
        self._thresholds = thresholds
        self._channels = 3 if fmt.layout == "rgb" else 1
        row_bytes = TILE_PX * self._grid.padded_width_px * self._channels
        self._rows_at_once = max(1, BAND_BYTES // row_bytes)
        size = self._rows_at_once * row_bytes
        self._scratch = np.empty(size, np.uint8)
        self._cells = np.empty(size // 4, np.uint8)
        self._quarters = np.empty(size // 16, np.uint8)

    def of(self, planes: FramePlanes, own: PlaneCopy) -> Difference:
        dirty = np.zeros(self._grid.shape, bool)
        for new, old, (sy, sx) in zip(planes.planes, own.padded, self._steps, strict=True):
            tile = (TILE_PX // sy, TILE_PX // sx)
            for row in range(0, self._grid.rows, self._rows_at_once * sy):
                rows = min(self._rows_at_once * sy, self._grid.rows - row)
                self._mark(new, old, row, rows, tile, dirty)
        return Difference(dirty)

    def _mark(
        self, new: Plane, old: Plane, row: int, rows: int, tile: tuple[int, int], dirty: npt.NDArray[np.bool_]
    ) -> None:
        top, bottom = row * tile[0], (row + rows) * tile[0]
        filled = min(bottom, new.shape[0])
        width = new.shape[1]
        shape = (bottom - top, *old.shape[1:])
        delta = self._scratch[: int(np.prod(shape))].reshape(shape)
        cv2.absdiff(new[top:filled], old[top:filled, :width], dst=delta[: filled - top, :width])
        replicate_edges(delta, filled - top, width)
        if cv2.norm(delta, cv2.NORM_INF) <= min(self._thresholds.mean, self._thresholds.largest):
            return
        cells = _halved(delta, self._cells)
        quarters = _halved(cells, self._quarters)
        largest = _per_tile(np.maximum, cells, rows, self._grid.cols, self._channels, np.uint8)
        total = _per_tile(np.add, quarters, rows, self._grid.cols, self._channels, np.uint32)
        limit = self._thresholds.mean * (tile[0] * tile[1] // 16)
        dirty[row : row + rows] |= ((largest > self._thresholds.largest) | (total > limit)).any(axis=2)


def _halved(source: Plane, scratch: Plane) -> Plane:
    height, width = source.shape[0] // 2, source.shape[1] // 2
    out = scratch[: source.size // 4].reshape(height, width, *source.shape[2:])
    cv2.resize(source, (width, height), dst=out, interpolation=cv2.INTER_AREA)
    return out


def _per_tile(
    reduce: np.ufunc, values: Plane, rows: int, cols: int, channels: int, dtype: type
) -> npt.NDArray[np.integer]:
    """Reduces [rows * n, cols * m(, channels)] to [rows, cols, channels], first down the rows, where memory runs straight."""
    down = reduce.reduce(values.reshape(rows, values.shape[0] // rows, -1), axis=1, dtype=dtype)
    return reduce.reduce(down.reshape(rows, cols, -1, channels), axis=2)
