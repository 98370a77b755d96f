"""Frame tap: copies of allocated frames for their viewers (sinks, live pages, recordings), and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from arr_coc.allocation.allocator import StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.group import GroupFrame
from arr_coc.texture.store.base import TextureView
from arr_coc.types import NS_PER_S, FrameStamp, TileMotion
from stream.control import WAIT_MS
from stream.events import AskedPicture, FrameMap
from stream.media import AllocationOverlay, MapLayer
from stream.protocol.buffers import SlotTable
from stream.protocol.inspection import crop_level, inspected_frame, known_levels, layers_of
from stream.protocol.picture_files import encode_jpeg
from stream.protocol.pictures import PictureBuffers, PictureExchange, PictureRequest, ViewedFrame, level_for

if TYPE_CHECKING:
    from stream.stages.frame_observer import FrameObserver

PICTURE_WIDTH_PX = 960
"""Greatest width of an `AskedPicture`; a wider frame is halved until it fits."""


@dataclass(frozen=True, slots=True)
class TapPolicy:
    """Subscriptions to frames that the configuration makes.

    Args:
        maps: Frame events hold their relevance and regions.
        answer_pictures: A picture is sent of each frame that is answered about or checked.
        interval_frames: A picture is also sent of every N-th frame.
        layers: Maps that a heat map draws, by their names in `LAYER_MAPS`.
        all_tiles: The model reads a token for every tile, chosen or not.
    """

    maps: bool = False
    answer_pictures: bool = False
    interval_frames: int | None = None
    layers: tuple[str, ...] = ()
    all_tiles: bool = False


@dataclass(frozen=True, slots=True)
class _FrameImage:
    """Picture of a frame at a mipmap level, uint8 RGB [H, W, 3]. It is copied with the frame's packet, as the texture
    may hold a newer frame when it is sent."""

    stamp: FrameStamp
    level: int
    pixels: npt.NDArray[np.uint8]


class FrameTap:
    """Copies of frames for their subscribers. Without any, nothing is copied or encoded.

    - `overlays`: every frame. The table waits for room, so the run is as slow as its heat map.
    - `exchanges`: the newest frame, if a viewer has requested one. Never waits.
    - `policy.answer_pictures`: the frames that are answered about, as events.
    - `observers`: those of the run, which copy what they want themselves.
    """

    def __init__(
        self,
        policy: TapPolicy,
        overlays: SlotTable[AllocationOverlay] | None,
        exchanges: tuple[PictureExchange, ...],
        check: Callable[[], None],
        observers: Sequence[FrameObserver] = (),
    ) -> None:
        self.policy = policy
        self._overlays = overlays
        self._exchanges = exchanges
        self._check = check
        self._observers = observers
        self._overlay: AllocationOverlay | None = None
        self._image: _FrameImage | None = None
        self._frames = 0

    def set_allocator(self, allocator: StreamAllocator) -> None:
        """Take the allocator whose maps viewers may inspect, and copies of which allocate their own pictures."""
        self._allocator = allocator
        for exchange in self._exchanges:
            exchange.make_allocator = allocator.copy_for_thread

    @property
    def needs_regions(self) -> bool:
        """Return True if the regions of the next frame are needed, even if it is not answered about."""
        has_request = any(exchange.request is not None for exchange in self._exchanges)
        is_observed = any(observer.wants_frames for observer in self._observers)
        return has_request or is_observed or self.policy.maps or self._overlays is not None

    def offer(self, view: TextureView, frame: FrameAllocation, motion: TileMotion | None) -> None:
        """Copy a frame for its subscribers, while its lease lasts.

        Args:
            view: View of the texture with the frame.
            frame: Its allocation.
            motion: Motion of its tiles, if known.
        """
        for observer in self._observers:
            if observer.wants_frames:
                observer.observe_frame(view, frame)
        requests = [(exchange, request) for exchange in self._exchanges if (request := exchange.request) is not None]
        group = self._allocator.group
        if group is None or (self._overlays is None and all(request.inspect is None for _, request in requests)):
            group_frame = None
        else:
            group_frame = group.preview(view, frame)
        for exchange, request in requests:
            exchange.put(self._view_frame(view, frame, motion, request, exchange.buffers, group_frame))
        if self._overlays is not None:
            layers: tuple[MapLayer, ...] = ()
            if self.policy.layers:
                inspected = inspected_frame(view, frame, {}, self._allocator, motion)
                layers = layers_of(self.policy.layers, inspected.maps, inspected.weights, view.grid.shape)
            relevance = frame.relevance.cpu().numpy()
            self._overlay = AllocationOverlay(
                crop_level(view, 0).copy(),
                frame.allocation.regions.numpy() if group_frame is None else group_frame.regions,
                relevance,
                frame.overview if group_frame is None else group_frame.overview,
                layers,
                states=None if group_frame is None else tuple(group_frame.states),
                overview_begin=0 if group_frame is None else group_frame.overview_begin,
            )

    def put_overlay(self) -> int | None:
        """Return the slot of the overlay of the frame offered last; waits until the sinks have room for it."""
        overlay = self._overlay
        self._overlay = None
        if overlay is None or self._overlays is None:
            return None
        while (slot := self._overlays.put(overlay, WAIT_MS / 1000)) is None:
            self._check()
        return slot

    def map_of(self, frame: FrameAllocation) -> FrameMap | None:
        """Return the map of a frame for its event, if events hold maps."""
        return packed_map(frame) if self.policy.maps else None

    def is_picture_due(self) -> bool:
        """Count a frame; return whether its picture is sent though it is not answered about."""
        self._frames += 1
        return self.policy.interval_frames is not None and (self._frames - 1) % self.policy.interval_frames == 0

    def keep_picture(self, view: TextureView, frame: FrameAllocation) -> None:
        """Copy the picture of a frame that is about to be answered about, if the texture still holds that frame."""
        if not self.policy.answer_pictures or self.has_picture(frame):
            return
        self._image = None
        if view.stamp.frame_index == frame.stamp.frame_index:
            level = level_for(view.grid.width_px, PICTURE_WIDTH_PX)
            self._image = _FrameImage(frame.stamp, level, crop_level(view, level).copy())

    def has_picture(self, frame: FrameAllocation) -> bool:
        """Return whether the picture of a frame was kept."""
        return self._image is not None and self._image.stamp == frame.stamp

    def picture_event(self, frame: FrameAllocation, *, has_question: bool) -> AskedPicture:
        """Return the event with the picture that was kept of a frame."""
        assert self._image is not None
        return AskedPicture(
            frame_index=frame.stamp.frame_index,
            pts_s=frame.stamp.media_ns / NS_PER_S,
            jpeg=encode_jpeg(self._image.pixels),
            level=self._image.level,
            map=packed_map(frame),
            asked=has_question,
        )

    def tokens_of(self, frame: FrameAllocation) -> int:
        """Return the number of visual tokens that the model reads of a frame."""
        if self.policy.all_tiles:
            return frame.tiles
        return frame.tokens

    def _view_frame(
        self,
        view: TextureView,
        frame: FrameAllocation,
        motion: TileMotion | None,
        request: PictureRequest,
        buffers: PictureBuffers,
        group_frame: GroupFrame | None,
    ) -> ViewedFrame:
        def copied(levels: Iterable[int]) -> dict[int, npt.NDArray[np.uint8]]:
            return {level: buffers.copy(crop_level(view, level)) for level in levels}

        levels = {width: level_for(view.grid.width_px, width) for width in request.widths}
        inspected = None
        if (inspection := request.inspect) is not None:
            images = copied(known_levels(inspection.levels))
            tokens = self.tokens_of(frame)
            inspected = inspected_frame(
                view, frame, images, self._allocator, motion, tokens=tokens, with_maps=inspection.maps
            )
            if group_frame is not None:
                inspected = replace(inspected, group=group_frame)
        return ViewedFrame(
            frame_index=view.stamp.frame_index,
            capture_ns=view.stamp.capture_ns,
            media_ns=view.stamp.media_ns,
            tokens=self.tokens_of(frame),
            map=packed_map(frame),
            images=copied(set(levels.values())),
            levels=levels,
            inspected=inspected,
        )


def packed_map(frame: FrameAllocation) -> FrameMap:
    """Return relevance and chosen regions of a frame, packed."""
    relevance = frame.relevance.cpu().numpy()
    regions = frame.allocation.regions.numpy()
    return FrameMap(
        rows=relevance.shape[0],
        cols=relevance.shape[1],
        relevance=np.rint(np.clip(relevance, 0, 1) * 255).astype(np.uint8).tobytes(),
        regions=regions.astype("<i2").tobytes(),
        overview=frame.overview,
    )
