"""Where tokens and patches stand: float positions of regions, for the vision encoder and for M-RoPE.

A region (L, r, c) shows 2^L tiles a side in one token, so its positions lie between those of level 0.
They stay floats up to the cosines: rounding would shift coarse tokens. At level 0 they are the stock integers
(Qwen2-VL, arXiv:2409.12191, section 2.1).
"""

from __future__ import annotations

import torch

from arr_coc.ops.regions import token_positions
from arr_coc.types import TileGrid

MERGE = 2
"""Patches a side that one token merges; the same in Qwen2-VL, Qwen2.5-VL and Qwen3-VL."""


def grid_regions(grid: TileGrid, device: torch.device | str = "cpu") -> torch.Tensor:
    """Every tile of the grid at level 0, in token order: int64 [rows * cols, 3] (level, row, col)."""
    rows = torch.arange(grid.rows, device=device).repeat_interleave(grid.cols)
    cols = torch.arange(grid.cols, device=device).repeat(grid.rows)
    return torch.stack([torch.zeros_like(rows), rows, cols], dim=-1)


def patch_positions(regions: torch.Tensor) -> torch.Tensor:
    """Centre of each region's four patches in level-0 patches: float32 [..., 4K, 2] (row, col).

    The order is the encoder's: the four patches of a token follow each other, row by row.
    """
    side_tiles = torch.exp2(regions[..., :1].float()).unsqueeze(-2)
    step = torch.arange(MERGE, device=regions.device, dtype=torch.float32)
    inner = torch.stack(torch.meshgrid(step, step, indexing="ij"), dim=-1).reshape(MERGE * MERGE, 2)
    corner = regions[..., 1:].float().unsqueeze(-2) * (MERGE * side_tiles)
    places = corner + inner * side_tiles + (side_tiles - 1) / 2
    return places.flatten(-3, -2)


def text_positions(start: int, tokens: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """M-RoPE rows of a run of text: float32 [3, tokens], all three counting from `start`."""
    return torch.arange(start, start + tokens, device=device, dtype=torch.float32).expand(3, -1)


def visual_positions(start: int, regions: torch.Tensor) -> torch.Tensor:
    """M-RoPE rows of one frame's tokens: float32 [3, ..., K] (t, h, w), the frame standing at `start`."""
    places = token_positions(regions).movedim(-1, 0) + start
    return torch.cat([torch.full_like(places[:1], start), places])


def after_frame(start: int, grid: TileGrid) -> int:
    """Where text goes on after a frame at `start`; the number of its tokens plays no part."""
    return start + max(grid.rows, grid.cols)
