"""Copies the pixels of regions out of a texture's levels."""

from __future__ import annotations

import threading

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.planes import Plane, replicate_edges, tiled
from arr_coc.types import TILE_PX

AT_ONCE = 64
"""Regions copied at a time: 192 KB, within a core's own cache."""


class Gatherer(threading.local):
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
