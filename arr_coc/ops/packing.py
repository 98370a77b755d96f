"""Lays dirty tiles side by side in the memory that hardware takes them from."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.planes import Plane, tiled
from arr_coc.types import TILE_PX

AT_ONCE = 64
"""Tiles packed at a time: 192 KB, within a core's own cache."""


class TilePacker:
    """Copies tiles of a level 0 out, one after another; scratch memory is made once."""

    def __init__(self) -> None:
        self._texels = np.empty((AT_ONCE * TILE_PX, TILE_PX, 3), np.uint8)

    def pack(self, level0: Plane, tiles: npt.NDArray[np.intp], out: Plane) -> None:
        """Writes tiles int [n, 2] (row, col) of `level0` uint8 [H, W, 3] into `out` uint8 [≥ n, 32, 32, 3 or 4].

        A fourth channel is 255.
        """
        source = tiled(level0, TILE_PX, TILE_PX)
        for start in range(0, len(tiles), AT_ONCE):
            rows, cols = tiles[start : start + AT_ONCE].T
            count = len(rows)
            target = out[start : start + count].reshape(count * TILE_PX, TILE_PX, out.shape[-1])
            texels = target if out.shape[-1] == 3 else self._texels[: count * TILE_PX]
            tiled(texels, TILE_PX, TILE_PX)[:, :, 0] = source[rows, :, cols]
            if texels is not target:
                cv2.cvtColor(texels, cv2.COLOR_RGB2RGBA, dst=target)
