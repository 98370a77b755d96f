"""All levels of one or several pictures in one block of memory, so that one index reaches any texel of any level."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.ops.mipmap_tensor import generate_mipmaps
from arr_coc.ops.planes import Plane
from arr_coc.types import LEVELS, TILE_PX, TileGrid


class MipChain:
    """`texels` [layers * texels of a chain, 3]: layer after layer, in each level after level, row by row.

    `texels` carries gradients to the picture that it was made from.
    """

    def __init__(self, image: torch.Tensor | Plane) -> None:
        """`image`: torch [layers, 3, H, W] or NumPy [layers, H, W, 3]; raises what `generate_mipmaps` raises."""
        if isinstance(image, torch.Tensor):
            self.layers, height, width = len(image), *image.shape[-2:]
            levels = [level.permute(0, 2, 3, 1).reshape(self.layers, -1, 3) for level in generate_mipmaps(image)]
            texels = torch.cat(levels, dim=1)
        else:
            self.layers, height, width = image.shape[:3]
            texels = torch.from_numpy(
                np.concatenate([level.reshape(self.layers, -1, 3) for level in generate_mipmaps(image)], axis=1)
            )
        self.grid = TileGrid.of(height, width)
        self.texels = texels.reshape(-1, 3)
        self._sizes = tuple((self.grid.padded_height_px >> at, self.grid.padded_width_px >> at) for at in range(LEVELS))
        counts = [rows * cols for rows, cols in self._sizes]
        self._starts = [sum(counts[:at]) for at in range(LEVELS)]
        self._length = sum(counts)
        table = [(start, rows, cols) for start, (rows, cols) in zip(self._starts, self._sizes, strict=True)]
        self._table = torch.tensor(table, device=self.texels.device)

    def level(self, level: int) -> torch.Tensor:
        """One level that exists: a view [layers, 3, h, w]."""
        height, width = self._sizes[level]
        start = self._starts[level]
        chains = self.texels.view(self.layers, self._length, 3)
        return chains[:, start : start + height * width].unflatten(1, (height, width)).permute(0, 3, 1, 2)

    def fetch(self, layer: torch.Tensor, level: torch.Tensor, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        """Single texels [..., 3]: int64 indices that broadcast to [...]; rows and columns are clamped to the edge."""
        start, rows, cols = self._table[level].unbind(-1)
        row = torch.minimum(row.clamp(min=0), rows - 1)
        col = torch.minimum(col.clamp(min=0), cols - 1)
        index = layer * self._length + start + row * cols + col
        return self.texels.index_select(0, index.reshape(-1)).reshape(*index.shape, 3)

    def gather(self, layer: torch.Tensor, regions: torch.Tensor) -> torch.Tensor:
        """The texels of regions int64 [K, 3] (level, row, col) that exist, of layers int64 [K]: [K, 3, 32, 32]."""
        side = torch.arange(TILE_PX, device=regions.device)
        level, row, col = (part[:, None, None] for part in regions.unbind(1))
        texels = self.fetch(layer[:, None, None], level, row * TILE_PX + side[:, None], col * TILE_PX + side)
        return texels.permute(0, 3, 1, 2).contiguous()
