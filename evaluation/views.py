"""A frame as the model's own processor fits it, cut into the tiles that a strategy may choose from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.qwen.preprocess import Preprocessing, Rgb, to_tiles
from arr_coc.qwen.resize import resize_image, smart_resize
from arr_coc.types import TILE_PX, FramePacket, FrameStamp, TileGrid, TokenPacket

Chosen = npt.NDArray[np.bool_]
"""Which tiles are shown: bool [rows, cols]."""


@dataclass(frozen=True, slots=True)
class View:
    """`image` uint8 [rows * tile_px, cols * tile_px, 3] on `grid`, at the time that `stamp` says."""

    image: Rgb
    grid: TileGrid
    tile_px: int
    stamp: FrameStamp

    @classmethod
    def fit(cls, prep: Preprocessing, frame: Rgb, stamp: FrameStamp) -> View:
        """Raises ShapeError where the frame is too narrow."""
        height_px, width_px = frame.shape[:2]
        size = smart_resize(height_px, width_px, prep.tile_px, prep.min_px, prep.max_px)
        rows, cols = size[0] // prep.tile_px, size[1] // prep.tile_px
        grid = TileGrid.of(rows * TILE_PX, cols * TILE_PX)
        return cls(resize_image(frame, *size), grid, prep.tile_px, stamp)

    def tiles(self) -> npt.NDArray[np.uint8]:
        """Every tile in token order: [rows * cols, 3, tile_px, tile_px]."""
        return to_tiles(torch.from_numpy(np.array(self.image)), self.tile_px).numpy()

    def chosen_only(self, chosen: Chosen) -> TokenPacket:
        """What the sparse encoder takes."""
        regions = regions_of(chosen)
        worth = np.ones(len(regions), np.float32)
        return TokenPacket(self.stamp, self.grid, regions, worth, self.tiles()[chosen.ravel()])

    def whole(self, chosen: Chosen) -> FramePacket:
        """What encoders of the whole frame take."""
        return FramePacket(self.stamp, self.grid, regions_of(chosen), chosen.astype(np.float32), self.image)


def regions_of(chosen: Chosen) -> npt.NDArray[np.int32]:
    """The chosen tiles as regions of level 0, in token order: int32 [K, 3] (level, row, col)."""
    rows, cols = np.nonzero(chosen)
    return np.stack([np.zeros_like(rows), rows, cols], axis=1).astype(np.int32)
