"""Events of frames and of their source, made of the messages that allocate receives."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from msgspec import structs

from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.group import GroupFrame
from arr_coc.allocation.packets import explain, weights_of
from arr_coc.errors import counted
from arr_coc.types import NS_PER_MS, NS_PER_S, TileGrid, TileMotion
from stream.control import describe
from stream.events import (
    AnswerPoint,
    Cut,
    Event,
    Explanation,
    FrameMap,
    FrameReady,
    Notice,
    Outage,
    PictureChanged,
    SegmentWritten,
    Skipped,
    TokenMemory,
    VideoFragment,
)
from stream.media import FragmentBytes, MediaSegment, SkippedItem
from stream.protocol.buffers import SlotTable
from stream.protocol.messages import Discontinuity, End, SourceLost, TextureUpdated


def events_before(update: TextureUpdated, grid: TileGrid, *, first: bool) -> list[Event]:
    """Return the events that come before a frame's own: skipped items, a cut, another size or form.

    `grid` covers the frame; the `first` frame of a run is no change.
    """
    index = update.stamp.frame_index
    pts_s = update.stamp.media_ns / NS_PER_S
    events: list[Event] = [*skipped_events(update.skipped, index, pts_s)]
    if update.cut_score is not None:
        events.append(Cut(frame_index=index, pts_s=pts_s, score=update.cut_score))
    if update.discontinuity in ("resolution", "format") and not first:
        events.append(picture_changed(update, update.discontinuity, grid))
    return events


def frame_ready(
    frame: FrameAllocation,
    update: TextureUpdated,
    motion: TileMotion | None,
    span_ns: tuple[int, int, int],
    *,
    tokens: int,
    slot: int | None,
    frame_map: FrameMap | None,
) -> FrameReady:
    """Return the event of a frame that was allocated in `span_ns` (start, end), and then released (the third).

    Args:
        frame: Allocation of the frame.
        update: Message of its texture.
        motion: Motion of its tiles.
        span_ns: Start and end of its allocation, and its release.
        tokens: Visual tokens that the model reads of it.
        slot: Slot of its overlay for the sinks.
        frame_map: Its map, if events hold maps.
    """
    start_ns, done_ns, ready_ns = span_ns
    moving = 0
    motion_px = 0.0
    if motion is not None and (moving := len(lengths_px := np.sort(motion.lengths_px))):
        # np.median takes ten times as long for so few numbers.
        motion_px = float(lengths_px[(moving - 1) // 2] + lengths_px[moving // 2]) / 2
    return FrameReady(
        frame_index=update.stamp.frame_index,
        pts_s=update.stamp.media_ns / NS_PER_S,
        capture_ns=update.stamp.capture_ns,
        ready_ns=ready_ns,
        texture_ms=update.texture_ms,
        allocate_ms=(done_ns - start_ns) / NS_PER_MS,
        dirty_share=update.dirty_share,
        tokens=tokens,
        tiles=frame.tiles,
        jitter_share=frame.jitter_share,
        slot=slot,
        map=frame_map,
        duration_s=None if update.duration_ns is None else update.duration_ns / NS_PER_S,
        held_ms=(ready_ns - done_ns) / NS_PER_MS,
        motion_px=motion_px,
        moving_share=0.0 if motion is None else moving / motion.dy_px.size,
    )


def skipped_events(items: tuple[SkippedItem, ...], frame_index: int, at_s: float) -> list[Skipped]:
    """Return an event for each unusable part of the source; `at_s` is the time of those without one."""
    return [
        Skipped(
            frame_index=frame_index,
            pts_s=at_s if item.media_ns is None else item.media_ns / NS_PER_S,
            what=item.what,
            reason=item.reason,
            count=item.count,
        )
        for item in items
    ]


def explanation_of(frame: FrameAllocation, group: GroupFrame | None = None) -> Explanation:
    """Return the event with the reasons for each region of a frame, or of the group of pictures that the model was
    shown with it."""
    return Explanation(
        frame_index=frame.stamp.frame_index,
        pts_s=frame.stamp.media_ns / NS_PER_S,
        strategy=frame.strategy,
        weights=weights_of(frame),
        tokens=explain(frame, None if group is None else group.regions),
        memory=None
        if group is None
        else [
            TokenMemory(state=state, since_s=since_ns / NS_PER_S)
            for state, since_ns in zip(group.states, group.shown_ns.tolist(), strict=True)
        ],
    )


def with_group(answer: AnswerPoint, group: GroupFrame | None) -> AnswerPoint:
    """Return an answer with the figures of its group of pictures; unchanged without a group."""
    if group is None or group.place is None or group.stamp.frame_index != answer.frame_index:
        return answer
    return structs.replace(
        answer,
        superseded_tokens=group.superseded_tokens,
        group=group.place.group,
        began=group.reason,
    )


def outage_of(loss: SourceLost) -> Outage:
    """Return the event of a source that was lost for a time."""
    return Outage(
        frame_index=loss.frame_index,
        pts_s=loss.media_ns / NS_PER_S,
        reason=loss.reason,
        lasted_s=loss.lasted_s,
        attempts=loss.attempts,
    )


def picture_changed(update: TextureUpdated, reason: Discontinuity, grid: TileGrid) -> PictureChanged:
    """Return the event of a frame that begins another size or form; `grid` covers it as it is processed."""
    return PictureChanged(
        frame_index=update.stamp.frame_index,
        pts_s=update.stamp.media_ns / NS_PER_S,
        reason=reason,
        width_px=grid.width_px,
        height_px=grid.height_px,
    )


FragmentTable = SlotTable[FragmentBytes]
"""Table of the bytes of segments in memory."""


def segment_events(segments: Iterable[MediaSegment], fragments: FragmentTable) -> list[SegmentWritten | VideoFragment]:
    """Return the events of recorded segments, as `segment_event`."""
    return [segment_event(segment, fragments) for segment in segments]


def segment_event(segment: MediaSegment, fragments: FragmentTable) -> SegmentWritten | VideoFragment:
    """Return the event of a recorded segment: a file, or bytes, which leave the table."""
    start_s, duration_s, track_s = (ns / NS_PER_S for ns in (segment.start_ns, segment.duration_ns, segment.track_ns))
    if segment.slot is not None:
        fragment = fragments.take(segment.slot)
        return VideoFragment(
            data=fragment.data,
            init=fragment.init,
            start_s=start_s,
            duration_s=duration_s,
            track_s=track_s,
            key=segment.key,
        )
    return SegmentWritten(
        file=segment.file,
        header=segment.header,
        start_s=start_s,
        duration_s=duration_s,
        track_s=track_s,
        size_bytes=segment.size_bytes,
        codec=segment.codec,
        width_px=segment.width_px,
        height_px=segment.height_px,
        error=segment.error,
    )


def repaired_times(end: End) -> Notice | None:
    """Return the notice that frame times were made or corrected, if any were."""
    missing = end.made_pts
    clamped = end.clamped_pts
    if not missing and not clamped:
        return None
    times = counted(missing + clamped, "frame time")
    message = f"repaired {times} from the frame rate ({missing} missing, {clamped} going back)"
    return Notice(code="pts-repaired", message=message)


def allocation_failed(error: Exception) -> Notice:
    """Return the notice of a frame that is shown with all of its tokens."""
    message = f"allocation failed ({describe(error)}); such frames are shown with all their tokens"
    return Notice(code="allocation-failed", message=message)


MEMORY_SNAPSHOTS = "memory-snapshots"
"""Code of the notice that the visual memory has nothing to keep."""

SNAPSHOTS_ONLY = (
    "most of the picture changes from answer to answer, so each is about one picture, as with --no-memory; it goes on "
    "with the visual memory once less changes"
)

SNAPSHOTS_REPORTED = 3
"""Groups of pictures in a row that end with the next answer, after which that is reported."""


class GroupWatch:
    """Watch on the groups of pictures of a run, for those that keep nothing from one answer to the next."""

    def __init__(self) -> None:
        self._snapshots = 0
        self._is_reported = False

    def take(self, event: Event, group: GroupFrame | None) -> tuple[Event, list[Notice]]:
        """Return an answer with the figures of its group, and the notice, once, that answers are about single pictures
        because too much changes between them. Another event is returned as it is."""
        if not isinstance(event, AnswerPoint):
            return event, []
        answer = with_group(event, group)
        if answer.began:
            if answer.began == "changed":
                self._snapshots = self._snapshots + 1
            else:
                self._snapshots = 0
        elif answer.group:
            self._snapshots = 0
        if self._snapshots < SNAPSHOTS_REPORTED or self._is_reported:
            return answer, []
        self._is_reported = True
        return answer, [Notice(code=MEMORY_SNAPSHOTS, message=SNAPSHOTS_ONLY)]
