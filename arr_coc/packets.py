"""What leaves for the answer stage: an allocation's tokens with their pixels, or the whole frame with its
allocation."""

from __future__ import annotations

import numpy as np

from arr_coc.allocator import FrameAllocation
from arr_coc.ops.view import TextureView
from arr_coc.types import FramePacket, TokenPacket


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
