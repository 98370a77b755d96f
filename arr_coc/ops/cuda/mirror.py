"""The host's copy of the texture's levels, brought up to date where somebody reads it and only where it is stale."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from arr_coc.ops.cuda.device import Device
from arr_coc.ops.cuda.ordering import Order
from arr_coc.ops.cuda.staging import Slot
from arr_coc.ops.cuda.texture import MipTexture
from arr_coc.ops.mipmaps import allocate_levels
from arr_coc.ops.planes import Plane, tiled
from arr_coc.types import LEVELS, TILE_PX

AT_ONCE = 512
"""Tiles that travel at a time."""

PLACE_BYTES = 8
"""Row and column of a tile, int32 each."""

FINE_BYTES = TILE_PX * TILE_PX * 3

Tiles = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]


def room_for(tiles: int) -> int:
    """Bytes that the places and the level 0 of so many tiles take."""
    return places_bytes(tiles) + tiles * FINE_BYTES


def places_bytes(tiles: int) -> int:
    """Bytes that places take, up to where texels may begin."""
    return -(-tiles * PLACE_BYTES // 256) * 256


def put_places(slot: Slot, tiles: Tiles) -> int:
    """Writes the places of tiles int [n, 2] where a slot begins; returns how many bytes that takes."""
    slot.host[: len(tiles) * PLACE_BYTES].view(np.int32).reshape(-1, 2)[:] = tiles
    return places_bytes(len(tiles))


class Mirror:
    """Levels in ordinary memory. `level0` belongs to who converts frames on the host, and is stale only after frames
    that never were there; the others are stale after every write."""

    def __init__(self, device: Device, texture: MipTexture, order: Order, slot: Slot, level0: Plane) -> None:
        """`slot` has room for `AT_ONCE` tiles, and serves nobody else."""
        self._device, self._texture, self._order, self._slot = device, texture, order, slot
        rows, cols = level0.shape[0] // TILE_PX, level0.shape[1] // TILE_PX
        self.levels = (level0, *allocate_levels(rows, cols)[1:])
        self._fine_stale, self._coarse_stale = np.zeros((rows, cols), bool), np.zeros((rows, cols), bool)
        self._bringing = threading.Lock()

    def note(self, tiles: Tiles | Mask, level0: bool) -> None:
        """Tiles were written, int [n, 2] or bool [rows, cols]; `level0`: also where the mirror's own level 0 is not."""
        where = tuple(tiles.T) if tiles.dtype != bool else tiles
        self._coarse_stale[where] = True
        if level0:
            self._fine_stale[where] = True

    def read(self, level: int) -> Plane:
        """One level, up to date: uint8 [rows * 32 >> level, cols * 32 >> level, 3].

        Raises DeviceLost where the device gave up.
        """
        with self._bringing:
            stale = self._fine_stale if level == 0 else self._coarse_stale
            if stale.any():
                self._bring(np.argwhere(stale), 0 if level == 0 else 1)
                stale[:] = False
        return self.levels[level]

    def _bring(self, tiles: Tiles, first: int) -> None:
        """Copies tiles [n, 2] from the device: level 0, or where `first` is 1 all the others."""
        for start in range(0, len(tiles), AT_ONCE):
            part = tiles[start : start + AT_ONCE]
            levels = range(first, LEVELS if first else 1)
            packed = self._fetched(part, first, sum(_tile_bytes(level) for level in levels) * len(part))
            for level in levels:
                side, nbytes = TILE_PX >> level, _tile_bytes(level) * len(part)
                texels, packed = packed[:nbytes].reshape(-1, side, 3), packed[nbytes:]
                rows, cols = part.T
                tiled(self.levels[level], side, side)[rows, :, cols] = tiled(texels, side, side)[:, :, 0]

    def _fetched(self, tiles: Tiles, first: int, nbytes: int) -> Plane:
        slot, texture = self._slot, self._texture
        start = put_places(slot, tiles)
        name = "fetch_coarse" if first else "fetch_fine"
        with self._device.current() as stream:
            self._order.before_read(stream)
            slot.upload(start, stream)
            size = (texture.width_px, texture.height_px)
            wanted = (texture.handle, slot.device, *size, slot.device + start)
            self._device.kernels.launch(name, (len(tiles), 1), stream, *wanted)
            slot.download(start, nbytes, stream)
            slot.mark(stream)
            slot.wait()
        return slot.host[start : start + nbytes]


def _tile_bytes(level: int) -> int:
    return (TILE_PX >> level) ** 2 * 3
