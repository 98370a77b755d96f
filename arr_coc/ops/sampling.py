"""Trilinear sampling of a mipmap chain, with gradients to texels, places and levels."""

from __future__ import annotations

import torch

from arr_coc.ops.chain import MipChain
from arr_coc.types import LEVELS


def sample_trilinear(chain: MipChain, points: torch.Tensor, level: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    """Samples a chain between its texels and between its levels, as OpenGL's `textureLod` with LINEAR_MIPMAP_LINEAR
    and CLAMP_TO_EDGE (OpenGL 4.5, section 8.14; Williams, "Pyramidal parametrics", 1983).

    `points` float [..., 2] (y, x) in pixels of level 0, where pixel (r, c) covers [r, r + 1) × [c, c + 1): the centre
    of texel (i, j) of level L lies at ((i + ½)·2^L, (j + ½)·2^L). `level` float and `layer` int64 broadcast to [...];
    levels are clamped to 0…5. Returns [..., 3] of the places' dtype. Where points and level hit texel centres, the
    values are the texels'. There, and at the edge, where it has a kink, the gradient is that of one side.
    """
    limits = points.new_tensor((chain.grid.padded_height_px, chain.grid.padded_width_px))
    points = torch.minimum(points.clamp(min=0), limits)
    level = level.clamp(0, LEVELS - 1)
    lower = level.detach().floor().long()
    share = (level - lower).unsqueeze(-1)
    fine = _bilinear(chain, points, lower, layer)
    coarse = _bilinear(chain, points, (lower + 1).clamp(max=LEVELS - 1), layer)
    return fine + share * (coarse - fine)


def _bilinear(chain: MipChain, points: torch.Tensor, level: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
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
