"""View of a texture while its lease lasts, and gathering of patches."""

from __future__ import annotations

import threading
from typing import Protocol

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.errors import ShapeError, StoreError
from arr_coc.ops.store.planes import Plane, replicate_edges, tiled
from arr_coc.types import LEVELS, TILE_PX, FrameStamp, TileGrid, TileVersions

AT_ONCE = 64
"""Regions copied at a time: 192 KB, within a core's own cache."""


class PatchGatherer(threading.local):
    """Room for one thread's copies. cv2 takes channels apart far faster than a transposed copy does, given memory that
    is in use already: fresh pages from the system would cost more than the work."""

    def __init__(self) -> None:
        self._texels = np.empty((AT_ONCE, TILE_PX, TILE_PX, 3), np.uint8)
        self._channels = [np.empty((AT_ONCE * TILE_PX, TILE_PX), np.uint8) for _ in range(3)]

    def gather(self, levels: tuple[Plane, ...], regions: npt.NDArray[np.int64]) -> Plane:
        """The pixels of regions [K, 3] (level, row, col) that exist: uint8 [K, 3, 32, 32], edge-clamped."""
        out = np.empty((len(regions), 3, TILE_PX, TILE_PX), np.uint8)
        for index in np.unique(regions[:, 0]).tolist():
            level, slots = levels[index], np.flatnonzero(regions[:, 0] == index)
            places = regions[slots, 1:]
            whole = (places < (level.shape[0] // TILE_PX, level.shape[1] // TILE_PX)).all(axis=1)
            for copy, chosen in ((_copy_whole, whole), (_copy_clamped, ~whole)):
                some = np.flatnonzero(chosen)
                for start in range(0, len(some), AT_ONCE):
                    part = some[start : start + AT_ONCE]
                    texels = self._texels[: len(part)]
                    copy(level, places[part], texels)
                    self._put(texels, slots[part], out)
        return out

    def _put(self, texels: Plane, slots: npt.NDArray[np.intp], out: Plane) -> None:
        rows = texels.reshape(-1, TILE_PX, 3)
        channels = [channel[: len(rows)] for channel in self._channels]
        cv2.split(rows, channels)
        for index, channel in enumerate(channels):
            out[slots, index] = channel.reshape(-1, TILE_PX, TILE_PX)


def _copy_whole(level: Plane, places: npt.NDArray[np.int64], texels: Plane) -> None:
    rows, cols = places.T
    tiled(texels.reshape(-1, TILE_PX, 3), TILE_PX, TILE_PX)[:, :, 0] = tiled(level, TILE_PX, TILE_PX)[rows, :, cols]


def _copy_clamped(level: Plane, places: npt.NDArray[np.int64], texels: Plane) -> None:
    """Regions that reach beyond the level's edge, which is replicated."""
    for target, (row, col) in zip(texels, places.tolist(), strict=True):
        part = level[row * TILE_PX : (row + 1) * TILE_PX, col * TILE_PX : (col + 1) * TILE_PX]
        target[: part.shape[0], : part.shape[1]] = part
        replicate_edges(target, *part.shape[:2])


class TexelReader(Protocol):
    """The texels of one texture, as one thread reaches them."""

    def read(self, level: int) -> Plane:
        """One level that exists: uint8 [rows * 32 >> level, cols * 32 >> level, 3]."""
        ...

    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        """The pixels of regions [K, 3] (level, row, col) that exist: uint8 [K, 3, 32, 32], edge-clamped."""
        ...


class MemoryTexels:
    """Levels in host memory."""

    def __init__(self, levels: tuple[Plane, ...], gatherer: PatchGatherer | None = None) -> None:
        self._levels = levels
        self._gatherer = gatherer or PatchGatherer()

    def read(self, level: int) -> Plane:
        return self._levels[level]

    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        return self._gatherer.gather(self._levels, regions)


class TextureView:
    """The texture as one frame left it: `stamp`, `grid`, `versions`, and its texels until the lease ends."""

    def __init__(self, stamp: FrameStamp, grid: TileGrid, versions: TileVersions, texels: TexelReader) -> None:
        self.stamp = stamp
        self.grid = grid
        self.versions = versions
        self._texels: TexelReader | None = texels

    def read(self, level: int) -> Plane:
        """One level, read-only uint8 [rows * 32 >> level, cols * 32 >> level, 3], valid while the lease lasts.

        Raises StoreError after the lease has ended, ShapeError where the level does not exist.
        """
        if not 0 <= level < LEVELS:
            raise ShapeError(f"a texture has levels 0 to {LEVELS - 1}, got {level}")
        array = self._held().read(level).view()
        array.flags.writeable = False
        return array

    def gather(self, regions: npt.NDArray[np.integer]) -> Plane:
        """The pixels of regions [K, 3] (level, row, col): uint8 [K, 3, 32, 32], RGB.

        Region (L, r, c) shows the 32×32 texels at (32r, 32c) of level L, edge-clamped. Raises ShapeError where
        `regions` has another shape or a region lies outside the grid, StoreError after the lease has ended.
        """
        return self._held().gather(self._checked(np.asarray(regions)))

    def release(self) -> None:
        """Ends the view: its texels may be overwritten from here on."""
        self._texels = None

    def _held(self) -> TexelReader:
        if self._texels is None:
            raise StoreError("this view's lease has ended; take a new lease to read the texture")
        return self._texels

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
