"""Sampling footprints that are longer than they are wide, such as those of a line of text."""

from __future__ import annotations

import torch

from arr_coc.ops.chain import MipChain
from arr_coc.ops.sampling import sample_trilinear
from arr_coc.types import TILE_PX

MOST_TAPS = 16
"""What graphics hardware offers as its largest degree of anisotropy."""


def sample_along(
    chain: MipChain, points: torch.Tensor, along: torch.Tensor, across_px: torch.Tensor, layer: torch.Tensor
) -> torch.Tensor:
    """The mean over footprints of length |along| and width `across_px` around points, by several taps along each.

    With P = |along| and p = across_px: N = min(⌈P/p⌉, 16) taps, all at level log2(max(P, p)/N). These are the
    formulas of EXT_texture_filter_anisotropic for OpenGL's `textureGrad(sampler, point, along, across)`, across being
    at right angles and not longer. The extension's example puts tap i of N at i/(N + 1) − ½ of the length; here it is
    (i − ½)/N − ½, which spaces taps evenly over the whole footprint, so that an axis-aligned one of whole texels gives
    its mean exactly. Drivers choose their own; equal values are not to be expected from them. A footprint that is
    shorter than wide is sampled as a square of its width.

    `points` and `along` [..., 2] (y, x) in pixels of level 0, `across_px` > 0 and `layer` int64 broadcast to [...].
    Returns [..., 3]; differentiable but for the number of taps.
    """
    length = torch.linalg.vector_norm(along, dim=-1)
    taps = (length.detach() / across_px.detach()).ceil().clamp(1, MOST_TAPS)
    level = torch.log2(torch.maximum(length, across_px) / taps)
    total = torch.zeros(*torch.broadcast_shapes(points.shape[:-1], length.shape, layer.shape), 3).to(points)
    for tap in range(int(taps.max()) if taps.numel() else 0):
        place = ((tap + 0.5) / taps - 0.5).unsqueeze(-1)
        weight = ((tap < taps) / taps).unsqueeze(-1)
        total = total + weight * sample_trilinear(chain, points + place * along, level, layer)
    return total


def gather_strips(
    chain: MipChain, centres: torch.Tensor, along: torch.Tensor, across_px: torch.Tensor, layer: torch.Tensor
) -> torch.Tensor:
    """Rectangles of any direction, each squeezed into the 32×32 texels of one token.

    `centres` and `along` [K, 2] (y, x), `across_px` and `layer` [K]. Texel columns go along, rows at right angles,
    downwards where `along` points right. Returns [K, 3, 32, 32].
    """
    steps = (torch.arange(TILE_PX).to(centres) + 0.5) / TILE_PX - 0.5
    length = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
    down = torch.stack((along[:, 1], -along[:, 0]), dim=-1) / length * across_px[:, None]
    points = centres[:, None, None] + steps[:, None, None] * down[:, None, None] + steps[:, None] * along[:, None, None]
    texels = sample_along(
        chain, points, along[:, None, None] / TILE_PX, across_px[:, None, None] / TILE_PX, layer[:, None, None]
    )
    return texels.permute(0, 3, 1, 2).contiguous()
