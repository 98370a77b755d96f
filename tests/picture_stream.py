"""A stream of pictures as texture views, without a store: every level by plain box sums, versions as the test says."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.ops.view import MemoryTexels, TextureView
from arr_coc.types import LEVELS, TILE_PX, FrameStamp, TileGrid, TileVersions

FRAME_NS = 33_366_667


def levels_of(picture: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], ...]:
    """Levels 0…5 of a picture whose sides are multiples of 32."""
    levels = [picture]
    for _ in range(LEVELS - 1):
        wide = levels[-1].astype(np.uint16)
        sums = wide[0::2, 0::2] + wide[0::2, 1::2] + wide[1::2, 0::2] + wide[1::2, 1::2]
        levels.append(((sums + 2) >> 2).astype(np.uint8))
    return tuple(levels)


class PictureStream:
    """Gives out one view after the other; a tile's version moves where its pixels did."""

    def __init__(self, epoch: int = 1) -> None:
        self.epoch = epoch
        self._index = -1
        self._picture: npt.NDArray[np.uint8] | None = None
        self._frame = np.zeros((0, 0), np.int64)

    def cut(self) -> None:
        """Begin another epoch with the next picture."""
        self.epoch += 1
        self._picture = None

    def show(self, picture: npt.NDArray[np.uint8]) -> TextureView:
        self._index += 1
        grid = TileGrid.of(*picture.shape[:2])
        if self._picture is None:
            self._frame = np.full(grid.shape, self._index)
        else:
            differs = (picture != self._picture).any(axis=2)
            tiles = differs.reshape(grid.rows, TILE_PX, grid.cols, TILE_PX).any(axis=(1, 3))
            self._frame = np.where(tiles, self._index, self._frame)
        self._picture = picture
        stamp = FrameStamp(self._index, self._index * FRAME_NS, 0, self.epoch)
        return TextureView(stamp, grid, TileVersions(self.epoch, self._frame), MemoryTexels(levels_of(picture)))


def scenery(rows: int, cols: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """A picture of soft colours with blocks, a bar pattern and a noisy patch: uint8 [rows·32, cols·32, 3]."""
    rng = np.random.default_rng(seed)
    height, width = rows * TILE_PX, cols * TILE_PX
    down, right = np.linspace(60, 140, height)[:, None, None], np.linspace(-20, 20, width)[None, :, None]
    picture = np.broadcast_to(down + right, (height, width, 3)).copy()
    for _ in range(max(3, rows * cols // 24)):
        side = int(rng.integers(20, 80))
        top, left = int(rng.integers(0, height - side)), int(rng.integers(0, width - side))
        picture[top : top + side, left : left + side] = rng.integers(0, 256, 3)
    picture[30:60, 24:120:8] = 255
    picture[64:128, 32:96] = rng.integers(0, 256, (64, 64, 3))
    return picture.clip(0, 255).astype(np.uint8)
