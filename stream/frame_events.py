"""What is told of a frame and of its source, made from what the allocate stage holds."""

from __future__ import annotations

import numpy as np

from arr_coc.allocator import FrameAllocation
from arr_coc.counting import counted
from arr_coc.types import NS_PER_S, TileGrid
from arr_coc.why import explain, weights_of
from stream.events import FrameMap, FrameReady, Notice, Outage, PictureChanged, Why
from stream.messages import Changed, Discontinuity, End, Lost

NS_PER_MS = 1_000_000


def ready_of(
    frame: FrameAllocation, changed: Changed, span_ns: tuple[int, int], slot: int | None, all_tiles: bool = False
) -> FrameReady:
    """Return the event of a frame that was allocated in `span_ns` (start, end).

    `slot` is where a picture of it lies for the sinks. With `all_tiles` the model reads every tile of a frame, not the
    chosen regions only.
    """
    start_ns, ready_ns = span_ns
    return FrameReady(
        frame_index=changed.stamp.frame_index,
        pts_s=changed.stamp.media_ns / NS_PER_S,
        capture_ns=changed.stamp.capture_ns,
        ready_ns=ready_ns,
        texture_ms=changed.texture_ms,
        allocate_ms=(ready_ns - start_ns) / NS_PER_MS,
        dirty_share=changed.dirty_share,
        tokens=frame.levels.size if all_tiles else frame.allocation.tokens,
        tiles=frame.levels.size,
        jitter_share=frame.jitter_share,
        slot=slot,
        duration_s=None if changed.duration_ns is None else changed.duration_ns / NS_PER_S,
    )


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


def picture_changed(changed: Changed, reason: Discontinuity, grid: TileGrid) -> PictureChanged:
    """From this frame on the picture has another size or form; `grid` covers it as it is worked on."""
    return PictureChanged(
        frame_index=changed.stamp.frame_index,
        pts_s=changed.stamp.media_ns / NS_PER_S,
        reason=reason,
        width_px=grid.width_px,
        height_px=grid.height_px,
    )


def repaired_of(end: End) -> Notice | None:
    """That frame times were made or corrected, if any were."""
    made, clamped = end.made_pts, end.clamped_pts
    if not made and not clamped:
        return None
    message = (
        f"repaired {counted(made + clamped, 'frame time')} from the frame rate ({made} missing, {clamped} going back)"
    )
    return Notice(code="pts-repaired", message=message)
