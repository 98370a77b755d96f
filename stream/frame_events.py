"""What is told of a frame and of its source, made from what the allocate stage holds."""

from __future__ import annotations

import numpy as np

from arr_coc.allocator import FrameAllocation
from arr_coc.types import NS_PER_S
from arr_coc.why import explain, weights_of
from stream.events import FrameMap, Outage, Why
from stream.messages import Lost


def map_of(frame: FrameAllocation) -> FrameMap:
    relevance, regions = frame.relevance.numpy(), frame.allocation.regions.numpy()
    return FrameMap(
        rows=relevance.shape[0],
        cols=relevance.shape[1],
        relevance=np.rint(np.clip(relevance, 0, 1) * 255).astype(np.uint8).tobytes(),
        regions=regions.astype("<i2").tobytes(),
    )


def why_of(frame: FrameAllocation) -> Why:
    return Why(
        frame_index=frame.stamp.frame_index,
        pts_s=frame.stamp.media_ns / NS_PER_S,
        strategy=frame.strategy,
        weights=weights_of(frame),
        tokens=explain(frame),
    )


def outage_of(lost: Lost) -> Outage:
    return Outage(
        frame_index=lost.frame_index,
        pts_s=lost.media_ns / NS_PER_S,
        reason=lost.reason,
        lasted_s=lost.lasted_s,
        attempts=lost.attempts,
    )
