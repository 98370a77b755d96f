"""Packets for the answer stage: an allocation's tokens with their pixels, or the whole frame with its allocation."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.allocator import FrameAllocation
from arr_coc.ops.view import TextureView
from arr_coc.types import Allocation, FramePacket, TokenPacket


def packet_from(view: TextureView, frame: FrameAllocation) -> TokenPacket:
    """The allocation's tokens with their pixels as `view` holds them (and its stamp): complete in itself."""
    regions = frame.allocation.regions.numpy()
    return TokenPacket(
        stamp=view.stamp,
        grid=view.grid,
        regions=regions.astype(np.int32),
        relevance=frame.allocation.relevance.numpy().copy(),
        pixels=view.gather(regions),
    )


def frame_packet_from(view: TextureView, frame: FrameAllocation) -> FramePacket:
    """The whole of level 0 with the allocation; `image` is the view's own memory, valid while its lease lasts."""
    return FramePacket(
        stamp=view.stamp,
        grid=view.grid,
        regions=frame.allocation.regions.numpy().astype(np.int32),
        relevance=frame.relevance.numpy().copy(),
        image=view.read(0),
    )


def all_tokens(view: TextureView) -> FrameAllocation:
    """Every tile of the frame at level 0, all equally relevant; for a frame whose allocation fails."""
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
