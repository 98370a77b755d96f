"""The box pyramid: six levels, each texel (a + b + c + d + 2) >> 2 of the four below it."""

from __future__ import annotations

import cv2
import numpy as np

from arr_coc.ops.planes import Plane, Rectangle
from arr_coc.types import LEVELS, TILE_PX


def allocate_levels(rows: int, cols: int, levels: int = LEVELS) -> tuple[Plane, ...]:
    """Zeroed uint8 arrays [rows * 32 >> level, cols * 32 >> level, 3], the finest first."""
    sides = (TILE_PX >> level for level in range(levels))
    return tuple(np.zeros((rows * side, cols * side, 3), np.uint8) for side in sides)


def refresh(levels: tuple[Plane, ...], rectangle: Rectangle) -> None:
    """Recomputes the other levels of a rectangle of tiles from level 0, in place.

    cv2's INTER_AREA by 2 equals the box filter bit for bit. As 32 = 2**5, no texel of a tile depends on another
    tile, so refreshing what changed gives the same bytes as refreshing all.
    """
    row0, col0, row1, col1 = rectangle
    for level in range(1, len(levels)):
        fine, coarse = TILE_PX >> (level - 1), TILE_PX >> level
        source = levels[level - 1][row0 * fine : row1 * fine, col0 * fine : col1 * fine]
        target = levels[level][row0 * coarse : row1 * coarse, col0 * coarse : col1 * coarse]
        cv2.resize(source, target.shape[1::-1], dst=target, interpolation=cv2.INTER_AREA)
