"""What a reader sees of the texture while its lease lasts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from arr_coc.errors import ShapeError, StoreError
from arr_coc.ops.planes import Plane
from arr_coc.types import LEVELS, TILE_PX, FrameStamp, TileGrid, TileVersions


class TextureView:
    """The texture as one frame left it: `stamp`, `grid`, `versions`, and its texels until the lease ends."""

    def __init__(self, stamp: FrameStamp, grid: TileGrid, versions: TileVersions, levels: tuple[Plane, ...]) -> None:
        self.stamp = stamp
        self.grid = grid
        self.versions = versions
        self._levels = levels

    def read(self, level: int) -> Plane:
        """One level, read-only uint8 [rows * 32 >> level, cols * 32 >> level, 3], valid while the lease lasts.

        Raises StoreError after the lease has ended, ShapeError where the level does not exist.
        """
        if not 0 <= level < LEVELS:
            raise ShapeError(f"a texture has levels 0 to {LEVELS - 1}, got {level}")
        array = self._held()[level].view()
        array.flags.writeable = False
        return array

    def gather(self, regions: npt.NDArray[np.integer]) -> Plane:
        """The pixels of regions [K, 3] (level, row, col): uint8 [K, 3, 32, 32], RGB.

        Region (L, r, c) shows the 32×32 texels at (32r, 32c) of level L, edge-clamped. Raises ShapeError where
        `regions` has another shape or a region lies outside the grid, StoreError after the lease has ended.
        """
        levels = self._held()
        wanted = self._checked(np.asarray(regions))
        out = np.empty((len(wanted), 3, TILE_PX, TILE_PX), np.uint8)
        for level in np.unique(wanted[:, 0]).tolist():
            of_level = np.flatnonzero(wanted[:, 0] == level)
            _gather_level(levels[level], wanted[of_level, 1:], of_level, out)
        return out

    def release(self) -> None:
        """Ends the view: its texels may be overwritten from here on."""
        self._levels = ()

    def _held(self) -> tuple[Plane, ...]:
        if not self._levels:
            raise StoreError("this view's lease has ended; take a new lease to read the texture")
        return self._levels

    def _checked(self, regions: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        if regions.ndim != 2 or regions.shape[1] != 3 or not np.issubdtype(regions.dtype, np.integer):
            raise ShapeError(f"regions are integers [K, 3] (level, row, col), got {regions.dtype} {regions.shape}")
        wanted = regions.astype(np.int64)
        level, row, col = wanted.T
        inside = (wanted >= 0).all(axis=1) & (level < LEVELS)
        inside &= ((row << level) < self.grid.rows) & ((col << level) < self.grid.cols)
        if not inside.all():
            first = wanted[np.flatnonzero(~inside)[0]].tolist()
            raise ShapeError(f"region {first} (level, row, col) lies outside a grid of {self.grid.shape} tiles")
        return wanted


def _gather_level(texels: Plane, places: npt.NDArray[np.int64], slots: npt.NDArray[np.intp], out: Plane) -> None:
    """Copies the regions at `places` [k, 2] (row, col) of one level into `out[slots]`."""
    height, width = texels.shape[:2]
    whole_rows, whole_cols = height // TILE_PX, width // TILE_PX
    inside = (places[:, 0] < whole_rows) & (places[:, 1] < whole_cols)
    down, right, channel = texels.strides
    windows = as_strided(
        texels,
        (whole_rows, whole_cols, 3, TILE_PX, TILE_PX),
        (down * TILE_PX, right * TILE_PX, channel, down, right),
        writeable=False,
    )
    out[slots[inside]] = windows[places[inside, 0], places[inside, 1]]
    for slot, (row, col) in zip(slots[~inside].tolist(), places[~inside].tolist(), strict=True):
        part = texels[row * TILE_PX : (row + 1) * TILE_PX, col * TILE_PX : (col + 1) * TILE_PX]
        rows, cols = part.shape[:2]
        out[slot, :, :rows, :cols] = part.transpose(2, 0, 1)
        out[slot, :, :rows, cols:] = out[slot, :, :rows, cols - 1 : cols]
        out[slot, :, rows:] = out[slot, :, rows - 1 : rows]
