"""What a frame is shown with where its allocation fails: everything."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.allocator import FrameAllocation
from arr_coc.ops.view import TextureView
from arr_coc.types import Allocation


def all_tokens(view: TextureView) -> FrameAllocation:
    """Every tile of the frame at level 0, all equally relevant."""
    rows, cols = view.grid.shape
    row, col = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    regions = torch.stack([torch.zeros_like(row), row, col], dim=-1).reshape(-1, 3)
    tiles = len(regions)
    return FrameAllocation(
        stamp=view.stamp,
        allocation=Allocation(regions, torch.ones(tiles), torch.ones(tiles, dtype=torch.bool)),
        relevance=torch.ones(rows, cols),
        scores=torch.zeros(3, rows, cols),
        weights=torch.zeros(3),
        levels=np.zeros((rows, cols), np.int8),
        jitter_share=0.0,
        change_since=1.0,
        strategy="all",
    )
