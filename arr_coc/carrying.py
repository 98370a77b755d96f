"""Carrying maps along with camera motion, in whole tiles."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.types import TILE_PX

CARRY_AT_TILES = 0.6
"""How far content must have moved before maps follow it: a little over half a tile, so that a shaking hand at the
border does not carry them to and fro."""

_REMEMBERED_MOVES = 1024


def carried(values: npt.NDArray[Any], dy_tiles: int, dx_tiles: int, entering: float) -> npt.NDArray[Any]:
    """A map [gh, gw] (or [C, gh, gw]) moved down and right; tiles that come into view hold `entering`."""
    rows, cols = values.shape[-2:]
    moved = np.full_like(values, entering)
    if abs(dy_tiles) < rows and abs(dx_tiles) < cols:
        to = slice(max(dy_tiles, 0), rows + min(dy_tiles, 0)), slice(max(dx_tiles, 0), cols + min(dx_tiles, 0))
        source = slice(max(-dy_tiles, 0), rows - max(dy_tiles, 0)), slice(max(-dx_tiles, 0), cols - max(dx_tiles, 0))
        moved[..., to[0], to[1]] = values[..., source[0], source[1]]
    return moved


class Carrier:
    """Adds up an epoch's camera motion, gives it out in whole tiles, and remembers where the camera was."""

    def __init__(self, frame_index: int) -> None:
        """`frame_index`: the frame with which the epoch begins."""
        self._left_px = np.zeros(2)
        self._position = (0, 0)
        self._moves = deque([(frame_index, self._position)], maxlen=_REMEMBERED_MOVES)

    def move(self, frame_index: int, dy_px: float, dx_px: float) -> tuple[int, int]:
        """Content moved by so many pixels with this frame; by how many tiles (down, right) maps are to follow now."""
        if dy_px == 0 and dx_px == 0:
            return 0, 0
        self._left_px += dy_px, dx_px
        tiles = self._left_px / TILE_PX
        if np.abs(tiles).max() < CARRY_AT_TILES:
            return 0, 0
        whole = np.rint(tiles).astype(int)
        self._left_px -= whole * TILE_PX
        dy, dx = int(whole[0]), int(whole[1])
        self._position = self._position[0] + dy, self._position[1] + dx
        self._moves.append((frame_index, self._position))
        return dy, dx

    def since(self, frame_index: int) -> tuple[int, int] | None:
        """By how many tiles maps have moved since that frame; None where that is no longer known."""
        for moved_at, (row, col) in reversed(self._moves):
            if moved_at <= frame_index:
                return self._position[0] - row, self._position[1] - col
        return None
