"""Motion of tiles, given by hand."""

from __future__ import annotations

import numpy as np

from arr_coc.allocation.warping import Warp
from arr_coc.types import TILE_PX, TileMotion


def pan(shape: tuple[int, int], dy_px: float, dx_px: float) -> TileMotion:
    """The same motion of all tiles of a grid (rows, cols)."""
    down, right = (np.full(shape, value, np.float32) for value in (dy_px, dx_px))
    return TileMotion(down, right, np.ones(shape, np.float32))


def moved(shape: tuple[int, int], dy_tiles: float, dx_tiles: float) -> Warp:
    """The warp of a grid whose tiles all moved so far."""
    return Warp.of(pan(shape, dy_tiles * TILE_PX, dx_tiles * TILE_PX))
