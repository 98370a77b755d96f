"""Packed mip chain, trilinear and anisotropic sampling with gradients."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from arr_coc.ops.hardware import HardwareSample, TextureUnits
from arr_coc.ops.mipmaps import generate_mipmaps
from arr_coc.texture.regions import FOOTPRINTS, Footprint
from arr_coc.texture.store.planes import Plane
from arr_coc.types import LEVELS, TILE_PX, TileGrid


class PackedMipChain:
    """`texels` [layers * texels of a chain, 3]: layer after layer, in each level after level, row by row.

    `texels` carries gradients to the picture that it was made from. `hardware` samples a chain of one layer in float32,
    if it is set.
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
        self.hardware: TextureUnits | None = None

    def level(self, level: int) -> torch.Tensor:
        """One level that exists: a view [layers, 3, h, w]."""
        height, width = self._sizes[level]
        start = self._starts[level]
        chains = self.texels.view(self.layers, self._length, 3)
        return chains[:, start : start + height * width].unflatten(1, (height, width)).permute(0, 3, 1, 2)

    def fetch(self, layer: torch.Tensor, level: torch.Tensor, row: torch.Tensor, col: torch.Tensor) -> torch.Tensor:
        """Single texels: [..., 3].

        Args:
            layer: int64 that broadcasts to [...], as the others.
            level: int64, 0 to 5.
            row: int64, clamped to the edge.
            col: int64, clamped to the edge.
        """
        start, rows, cols = self._table[level].unbind(-1)
        row = torch.minimum(row.clamp(min=0), rows - 1)
        col = torch.minimum(col.clamp(min=0), cols - 1)
        index = layer * self._length + start + row * cols + col
        return self.texels.index_select(0, index.reshape(-1)).reshape(*index.shape, 3)

    def gather(self, layer: torch.Tensor, regions: torch.Tensor) -> torch.Tensor:
        """Return the texels of regions int64 [K, 3] (shape, row, col) that exist, of layers int64 [K]: [K, 3, 32, 32].

        Means of uint8 texels are rounded, halves up.
        """
        texels = self.texels.new_empty(len(regions), TILE_PX, TILE_PX, 3)
        for code in regions[:, 0].unique().tolist():
            members = (regions[:, 0] == code).nonzero()[:, 0]
            texels = texels.index_copy(0, members, self._means(FOOTPRINTS[code], layer[members], regions[members, 1:]))
        return texels.permute(0, 3, 1, 2).contiguous()

    def _means(self, footprint: Footprint, layer: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Texels of regions of one shape at `places` [k, 2]: [k, 32, 32, 3]."""
        rows = torch.arange(TILE_PX * footprint.down, device=places.device)
        cols = torch.arange(TILE_PX * footprint.across, device=places.device)
        row, col = (part[:, None, None] for part in places.unbind(1))
        level = torch.full_like(row, footprint.level)
        texels = self.fetch(layer[:, None, None], level, row * len(rows) + rows[:, None], col * len(cols) + cols)
        if footprint.texels == 1:
            return texels
        boxes = texels.unflatten(2, (TILE_PX, -1)).unflatten(1, (TILE_PX, -1))
        if texels.dtype == torch.uint8:
            total = boxes.sum(dim=(2, 4), dtype=torch.int32)
            return ((total + footprint.texels // 2) // footprint.texels).to(torch.uint8)
        return boxes.mean(dim=(2, 4))


def sample_trilinear(
    chain: PackedMipChain, points: torch.Tensor, level: torch.Tensor, layer: torch.Tensor
) -> torch.Tensor:
    """Samples a chain between its texels and between its levels, as OpenGL's `textureLod` with LINEAR_MIPMAP_LINEAR
    and CLAMP_TO_EDGE (OpenGL 4.5, section 8.14; Williams, "Pyramidal parametrics", 1983).

    Pixel (r, c) covers [r, r + 1) × [c, c + 1): the centre of texel (i, j) of level L is ((i + ½)·2^L, (j + ½)·2^L). If
    points and level hit texel centres, the values are the texels'. There, and at the kink of the edge, the gradient is
    that of one side.

    Args:
        chain: The mip chain.
        points: float [..., 2] (y, x) in pixels of level 0.
        level: float that broadcasts to [...], clamped to 0…5.
        layer: int64 that broadcasts to [...].

    Returns:
        [..., 3] of the points' dtype.
    """
    limits = points.new_tensor((chain.grid.padded_height_px, chain.grid.padded_width_px))
    points = torch.minimum(points.clamp(min=0), limits)
    level = level.clamp(0, LEVELS - 1)
    if chain.hardware is None or points.dtype != torch.float32:
        return _trilinear(chain, points, level, layer)
    shape = torch.broadcast_shapes(points.shape[:-1], level.shape, layer.shape)
    exact = partial(_trilinear, chain, layer=layer)
    sampled: torch.Tensor = HardwareSample.apply(
        points.expand(*shape, 2), level.to(points.dtype).expand(shape), chain.hardware, exact
    )
    return sampled


def _trilinear(chain: PackedMipChain, points: torch.Tensor, level: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    lower = level.detach().floor().long()
    share = (level - lower).unsqueeze(-1)
    fine = _bilinear(chain, points, lower, layer)
    coarse = _bilinear(chain, points, (lower + 1).clamp(max=LEVELS - 1), layer)
    return fine + share * (coarse - fine)


def _bilinear(chain: PackedMipChain, points: torch.Tensor, level: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    texel_px = (torch.ones_like(level) << level).to(points.dtype).unsqueeze(-1)
    at = points / texel_px - 0.5
    corner = at.detach().floor()
    down, across = (at - corner).unsqueeze(-2).unbind(-1)
    row, col = corner.long().unbind(-1)
    rows = []
    for step in (0, 1):
        left, right = (chain.fetch(layer, level, row + step, col + side).to(points.dtype) for side in (0, 1))
        rows.append((1 - across) * left + across * right)
    return (1 - down) * rows[0] + down * rows[1]


def sample_along(
    chain: PackedMipChain, points: torch.Tensor, along: torch.Tensor, across_px: torch.Tensor, layer: torch.Tensor
) -> torch.Tensor:
    """Return the mean over footprints around points, by several taps along each.

    With P = |along| and p = across_px: N = min(⌈P/p⌉, 16) taps, all at level log2(max(P, p)/N). These are the
    formulas of EXT_texture_filter_anisotropic for OpenGL's `textureGrad(sampler, point, along, across)`, across being
    at right angles and not longer. The extension's example puts tap i of N at i/(N + 1) − ½ of the length; here it is
    (i − ½)/N − ½, which spaces taps evenly over the whole footprint, so that an axis-aligned one of whole texels gives
    its mean exactly. Drivers choose their own; equal values are not to be expected from them. A footprint that is
    shorter than wide is sampled as a square of its width.

    Args:
        chain: The mip chain.
        points: Centres, [..., 2] (y, x) in pixels of level 0.
        along: Directions and lengths, [..., 2] (y, x) in pixels of level 0.
        across_px: Widths above 0 that broadcast to [...].
        layer: int64 that broadcasts to [...].

    Returns:
        [..., 3]; differentiable but for the number of taps.
    """
    length = torch.linalg.vector_norm(along, dim=-1)
    # what graphics hardware offers as its largest degree of anisotropy
    taps = (length.detach() / across_px.detach()).ceil().clamp(1, 16)
    level = torch.log2(torch.maximum(length, across_px) / taps)
    total = torch.zeros(*torch.broadcast_shapes(points.shape[:-1], length.shape, layer.shape), 3).to(points)
    for tap in range(int(taps.max()) if taps.numel() else 0):
        place = ((tap + 0.5) / taps - 0.5).unsqueeze(-1)
        weight = ((tap < taps) / taps).unsqueeze(-1)
        total = total + weight * sample_trilinear(chain, points + place * along, level, layer)
    return total


def gather_strips(
    chain: PackedMipChain, centres: torch.Tensor, along: torch.Tensor, across_px: torch.Tensor, layer: torch.Tensor
) -> torch.Tensor:
    """Rectangles of any direction, each squeezed into the 32×32 texels of one token.

    Texel columns go along, rows at right angles, downwards if `along` points right.

    Args:
        chain: The mip chain.
        centres: [K, 2] (y, x) in pixels of level 0.
        along: Directions and lengths, [K, 2] (y, x) in pixels of level 0.
        across_px: Widths, [K].
        layer: int64 [K].

    Returns:
        [K, 3, 32, 32].
    """
    steps = (torch.arange(TILE_PX).to(centres) + 0.5) / TILE_PX - 0.5
    length = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
    down = torch.stack((along[:, 1], -along[:, 0]), dim=-1) / length * across_px[:, None]
    points = centres[:, None, None] + steps[:, None, None] * down[:, None, None] + steps[:, None] * along[:, None, None]
    texels = sample_along(
        chain, points, along[:, None, None] / TILE_PX, across_px[:, None, None] / TILE_PX, layer[:, None, None]
    )
    return texels.permute(0, 3, 1, 2).contiguous()
