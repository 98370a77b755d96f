"""Allocate stage: chooses tokens for every frame, and has a scheduler ask the answer server about them.

Every event of the run leaves through this stage, so that events have one order: those of frames up to n, then answer n.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from msgspec import structs

from arr_coc.allocation.allocator import StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.packets import (
    DevicePatches,
    all_tokens,
    explain,
    frame_packet_from,
    overview_packet,
    packet_from,
    weights_of,
)
from arr_coc.errors import BudgetError, StoreError, StoreReplaced, counted
from arr_coc.ops.store.base import TextureView
from arr_coc.types import (
    NS_PER_MS,
    NS_PER_S,
    Feedback,
    FramePacket,
    FrameStamp,
    QueryEmbedding,
    TileGrid,
    TileMotion,
    TokenPacket,
)
from stream.answer.connection import AnswerEndpoint
from stream.answer.latency import LatencyController
from stream.answer.request import ClientOptions, GlanceOutcome
from stream.answer.scheduler import AnswerScheduler, SchedulePolicy
from stream.clock import Clock
from stream.control import WAIT_MS, RunControl, describe
from stream.events import (
    Answer,
    AskedPicture,
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
    pack_event,
    store_lost,
)
from stream.media import AllocationOverlay, MapLayer, MediaSegment, SkippedItem
from stream.protocol.buffers import SlotTable
from stream.protocol.codec import motion_of
from stream.protocol.inspection import InspectedFrame, cropped, inspected_frame, known_levels, layers_of
from stream.protocol.messages import Credit, Discontinuity, End, ServerHello, SourceLost, TextureUpdated
from stream.protocol.picture_files import encode_jpeg
from stream.protocol.pictures import PictureBuffers, PictureExchange, PictureRequest, ViewedFrame, level_for
from stream.protocol.playout import PlayoutDelay
from stream.recording.recorder import Recorder
from stream.stages.base import EVENTS, TEXTURE_ALLOCATE
from stream.transport import LinkPoller, Transport

T = TypeVar("T")

PICTURE_WIDTH_PX = 960
"""Greatest width of an `AskedPicture`; a wider frame is halved until it fits."""

REPLIES_EVERY_NS = 10 * NS_PER_MS
"""While frames come one after another, the answer client is asked for more than messages so often: whether its server
is gone, and whether there is another question. Each time costs a tenth of a frame's work."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AllocatePolicy:
    """Policy of allocation and of what is reported of it.

    `live`: answer points count capture time, not media time. `even`: frames are let out at even intervals, after a
    short delay. `whole_frames`: the answer server encodes whole frames,
    not tokens. `all_tiles`: the model reads a token for every tile, whatever was chosen. `with_maps`: frame events hold
    their relevance and regions. `with_reasons`: frames that are answered about are explained. `with_pictures`: a
    picture is sent of them, and of those that are looked at for a standing question; `pictures_every`: of every so many
    frames, too. `learns`: feedback of answers changes later allocations; a server may send it to those who want none.
    `drawn_layers`: maps that a sink draws, by their names in `LAYER_MAPS`.
    """

    live: bool
    whole_frames: bool
    all_tiles: bool = False
    even: bool = False
    with_maps: bool = False
    with_reasons: bool = False
    with_pictures: bool = False
    pictures_every: int | None = None
    learns: bool = True
    drawn_layers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AllocateContext:
    """Objects and options that the allocate stage is given.

    `endpoint` and `client` are the way to the answer server, `schedule` says when it is asked. `lease` gives the
    texture's view; `make_allocator` is called with the server's hello, because the best strategy depends on its model.
    `latency` holds a latency target; `recorder` takes every event; whoever looks wants frames in one of `pictures`.
    """

    transport: Transport
    endpoint: AnswerEndpoint
    schedule: SchedulePolicy
    client: ClientOptions
    overlays: SlotTable[AllocationOverlay] | None
    lease: Callable[[], AbstractContextManager[TextureView]]
    make_allocator: Callable[[ServerHello], StreamAllocator]
    latency: LatencyController | None = None
    recorder: Recorder | None = None
    pictures: tuple[PictureExchange, ...] = ()


@dataclass(frozen=True, slots=True)
class _FrameImage:
    """Picture of a frame at a mipmap level, uint8 RGB [H, W, 3]. It is copied with the frame's packet, as the texture
    may hold a newer frame when it is sent."""

    stamp: FrameStamp
    level: int
    pixels: npt.NDArray[np.uint8]


class AllocateStage:
    """Stage that allocates frames, observes the answers (AnswerObserver), and sends all events to the sinks."""

    name = "allocate"

    def __init__(self, policy: AllocatePolicy, context: AllocateContext, control: RunControl, clock: Clock) -> None:
        self._policy = policy
        self._context = context
        self._control = control
        self._clock = clock
        self._last: FrameAllocation | None = None
        self._hello: ServerHello | None = None
        self._failures = 0
        self._store_lost = False
        self._frames = 0
        self._image: _FrameImage | None = None
        self._motion: TileMotion | None = None
        self._playout = PlayoutDelay() if policy.even else None
        self._scheduler = AnswerScheduler(context.schedule, context.endpoint, context.client, self, control, clock)

    @property
    def drops(self) -> dict[str, int]:
        """Drops of the scheduler, and frames whose allocation failed."""
        return {**self._scheduler.drops, "allocate.failed": self._failures}

    def run(self) -> None:
        """Run the stage to the end of the source, or until the run is cancelled."""
        transport = self._context.transport
        with ExitStack() as stack:
            self._texture = stack.enter_context(closing(transport.link(TEXTURE_ALLOCATE, check=self._control.check)))
            self._events = stack.enter_context(closing(transport.event_sender(EVENTS)))
            self._scheduler.connect(transport)
            stack.enter_context(closing(self._scheduler))
            try:
                self._scheduler.wait_until_ready()
                self._finish(self._process_frames())
            except Exception:
                self._scheduler.cancel()
                raise

    def on_model(self, hello: ServerHello, embedding: QueryEmbedding) -> None:
        """Make the allocator that suits the model, and give it the query."""
        if hello != self._hello:
            self._allocator = self._context.make_allocator(hello)
            self._hello = hello
        self._allocator.set_query(embedding)
        for exchange in self._context.pictures:
            exchange.make_allocator = self._allocator.copy_for_thread

    def on_feedback(self, feedback: Feedback) -> None:
        """Let the feedback of an answer change later allocations."""
        if self._policy.learns:
            self._allocator.apply_feedback(feedback)

    def is_glance_due(self) -> bool:
        """Return whether the model is to look at an overview of the newest frame before it is asked about it."""
        return self._last is not None and self._allocator.glance_due(self._last.stamp.media_ns)

    def make_glance_packet(self) -> TokenPacket | None:
        """Return the newest frame's overview, if the texture still holds that frame; it is looked at."""
        packet = self._read(self._overview_packet)
        if packet is not None:
            self._allocator.on_glance()
        return packet

    def on_glance(self, glance: GlanceOutcome) -> None:
        """Let where the model looked change later allocations, and that of the newest frame at once."""
        self._allocator.apply_glance(glance.feedback)
        frame, overlay = self._read(self._reallocate_view)
        if frame is None:
            self._emit(glance.event)
            return
        self._last = frame
        slot = None if overlay is None else self._put_overlay(overlay)
        shown = _map_of(frame) if self._policy.with_maps else None
        self._emit(structs.replace(glance.event, slot=slot, map=shown))

    def on_event(self, event: Event) -> None:
        """Emit an event of the scheduler; the times of an answer set the budget of the next frames."""
        latency = self._context.latency
        for made in latency.on_answer(event) if latency is not None and isinstance(event, Answer) else [event]:
            self._emit(made)

    def on_asked(self) -> None:
        """The newest frame is being answered about."""
        if self._last is not None:
            self._last = self._read(self._chosen)
        self._allocator.mark_answered()
        if (latency := self._context.latency) is not None and self._last is not None:
            latency.on_request(self._last)
        if self._policy.with_reasons and self._last is not None:
            self._emit(_explanation_of(self._last))
        self._send_picture()

    def on_yes_no(self) -> None:
        """The standing query is evaluated with the newest frame."""
        self._allocator.mark_looked()
        self._send_picture()

    def _send_picture(self, *, asked: bool = True) -> None:
        """Send the picture of the newest frame, where an output wants it and there is one."""
        frame = self._last
        if not self._policy.with_pictures or frame is None:
            return
        if self._image is None or self._image.stamp != frame.stamp:
            self._image = self._read(self._image_of)
        if self._image is None:
            return
        self._emit(
            AskedPicture(
                frame_index=frame.stamp.frame_index,
                pts_s=frame.stamp.media_ns / NS_PER_S,
                jpeg=encode_jpeg(self._image.pixels),
                level=self._image.level,
                map=_map_of(frame),
                asked=asked,
            )
        )

    def _send_every(self) -> None:
        """Send the picture of every so many frames."""
        every = self._policy.pictures_every
        if every is None:
            return
        if self._frames % every == 0:
            self._last = self._read(self._chosen)
            self._send_picture(asked=False)
        self._frames += 1

    def _image_of(self, view: TextureView) -> _FrameImage | None:
        """Return a copy of the newest frame's picture, if the texture still holds that frame."""
        if self._last is None or view.stamp.frame_index != self._last.stamp.frame_index:
            return None
        level = level_for(view.grid.width_px, PICTURE_WIDTH_PX)
        return _FrameImage(self._last.stamp, level, cropped(view, level).copy())

    def make_packet(self) -> TokenPacket | FramePacket | None:
        """Return the newest frame's packet, if the texture still holds that frame."""
        return self._read(self._packet)

    def make_full_packet(self) -> FramePacket | None:
        """Return the frame with all of its tokens and a copy of its image, which may wait for its turn."""
        return self._read(_full_packet)

    def _process_frames(self) -> End:
        """Process frames and replies until the last frame; returns what came after it."""
        scheduler = self._scheduler
        self._texture.offer(Credit())
        link, either, replies_due_ns = scheduler.link, LinkPoller(self._texture, scheduler.link), 0
        while True:
            if link is not scheduler.link:
                link, either = scheduler.link, LinkPoller(self._texture, scheduler.link)
            either.wait(WAIT_MS)
            is_frame, now_ns = either.has_message(self._texture), self._clock.now_ns()
            if not is_frame or either.has_message(link) or now_ns >= replies_due_ns:
                scheduler.process_replies(0)
                scheduler.check_timeout()
                scheduler.ask_if_due()
                replies_due_ns = now_ns + REPLIES_EVERY_NS
            received = self._texture.receive() if is_frame else None
            if received is None:
                continue
            if isinstance(received.message, End):
                scheduler.process_replies(0)  # a question that came since
                return received.message
            if isinstance(received.message, SourceLost):
                self._emit(_outage_of(received.message))
            elif isinstance(received.message, TextureUpdated):
                if not self._control.found:
                    self._process_frame(received.message, motion_of(received.message, received.parts))
                self._texture.offer(Credit())

    def _process_frame(self, update: TextureUpdated, motion: TileMotion | None) -> None:
        """Allocate one frame, whose tiles moved by `motion`, emit its events, and ask about it where that is due."""
        start_ns = self._clock.now_ns()
        if update.fallback is not None:
            self._emit_store_lost(update.fallback)
        frame, grid, done_ns, overlay = self._read(lambda view: self._allocate_view(view, motion))
        ready_ns = self._wait_until_due(update.stamp.capture_ns, done_ns)
        begun, self._last, stamp = self._last is not None, frame, update.stamp
        at_s = stamp.media_ns / NS_PER_S
        self._emit_skipped(update.skipped, stamp.frame_index, at_s)
        if update.cut_score is not None:
            self._emit(Cut(frame_index=stamp.frame_index, pts_s=at_s, score=update.cut_score))
        discontinuity = update.discontinuity if begun else None
        if discontinuity in ("resolution", "format"):
            self._emit(_picture_changed(update, discontinuity, grid))
        slot = None if overlay is None else self._put_overlay(overlay)
        ready = _ready_of(frame, update, (start_ns, done_ns, ready_ns), slot, self._policy.all_tiles)
        if motion is not None:
            lengths_px = motion.lengths_px
            median_px = float(np.median(lengths_px)) if len(lengths_px) else 0.0
            ready = structs.replace(ready, motion_px=median_px, moving_share=len(lengths_px) / motion.dy_px.size)
        self._emit(structs.replace(ready, map=_map_of(frame)) if self._policy.with_maps else ready)
        self._send_every()
        self._emit_segments(update.segments)
        self._scheduler.observe(
            frame.stamp,
            stamp.capture_ns if self._policy.live else stamp.media_ns,
            change=frame.change_since,
            cut=update.cut_score is not None,
            discontinuity=discontinuity is not None,
            change_since_look=frame.change_since_look,
        )

    def _wait_until_due(self, capture_ns: int, done_ns: int) -> int:
        """Wait until a frame whose allocation was done at `done_ns` may be let out; returns when it is ready."""
        if self._playout is None:
            return done_ns
        rest_ns = self._playout.release_ns(capture_ns, done_ns) - self._clock.now_ns()
        if rest_ns > 0:
            time.sleep(rest_ns / NS_PER_S)
        return self._clock.now_ns()

    def _read(self, make: Callable[[TextureView], T]) -> T:
        """Return what `make` reads from the texture; it reads again where the hardware under it gave up."""
        try:
            with self._context.lease() as view:
                return make(view)
        except StoreReplaced as replaced:
            self._emit_store_lost(str(replaced))
        with self._context.lease() as view:
            return make(view)

    def _allocate_view(
        self, view: TextureView, motion: TileMotion | None
    ) -> tuple[FrameAllocation, TileGrid, int, AllocationOverlay | None]:
        """Return the frame's allocation and grid, when it was done, and a picture of it where a sink draws one."""
        frame = self._allocate(view, motion)
        done_ns = self._clock.now_ns()
        self._motion = motion
        self._offer_pictures(view, frame)
        return frame, view.grid, done_ns, self._overlay(view, frame)

    def _allocate(self, view: TextureView, motion: TileMotion | None) -> FrameAllocation:
        """Return the frame's allocation; all of its tiles where that fails."""

        def allocated() -> FrameAllocation:
            frame = self._allocator.observe(view, motion, *self._limits(view))
            return _chosen(frame) if self._shows_regions else frame

        return self._or_all_tokens(view, allocated)

    @property
    def _shows_regions(self) -> bool:
        """Whether somebody looks at the regions of every frame. Otherwise they are chosen once they are asked for."""
        viewed = any(exchange.request is not None for exchange in self._context.pictures)
        return viewed or self._policy.with_maps or self._context.overlays is not None

    def _chosen(self, view: TextureView) -> FrameAllocation:
        """Return the newest frame with its regions; all of its tiles where choosing them fails."""
        frame = self._last
        assert frame is not None
        return self._or_all_tokens(view, lambda: _chosen(frame))

    def _or_all_tokens(self, view: TextureView, allocate: Callable[[], FrameAllocation]) -> FrameAllocation:
        """Return what `allocate` gives; all tokens where it fails: better answered about than lost."""
        try:
            return allocate()
        except (StoreError, BudgetError):
            raise
        except Exception as error:
            self._report_failure(view, error)
            return all_tokens(view)

    def _reallocate_view(self, view: TextureView) -> tuple[FrameAllocation | None, AllocationOverlay | None]:
        """Return the newest frame's allocation after a glance, and a picture of it; None where the frame is gone, or
        keeps the allocation that it has."""
        if self._last is None or view.stamp != self._last.stamp:
            return None, None
        try:
            frame = self._allocator.reallocate(view, *self._limits(view))
        except (StoreError, BudgetError):
            raise
        except Exception as error:
            self._report_failure(view, error)
            return None, None
        self._offer_pictures(view, frame)
        return frame, self._overlay(view, frame)

    def _limits(self, view: TextureView) -> tuple[int | None, int | None]:
        """Return the budget that the latency target allows, and the most tokens; None where nothing limits them."""
        latency = self._context.latency
        return (None, None) if latency is None else latency.limits(view.grid.tiles)

    def _report_failure(self, view: TextureView, error: Exception) -> None:
        """Count an allocation that failed, and tell of the first one."""
        log.debug("allocation failed", exc_info=True)
        if not self._failures:
            message = f"allocation failed ({describe(error)}); such frames are shown with all their tokens"
            log.warning("frame %d: %s", view.stamp.frame_index, message)
            self._emit(Notice(code="allocation-failed", message=message))
        self._failures += 1

    def _overview_packet(self, view: TextureView) -> TokenPacket | None:
        frame = self._last
        if frame is None or view.stamp != frame.stamp:
            return None
        return overview_packet(view, frame.glance_tokens)

    def _packet(self, view: TextureView) -> TokenPacket | FramePacket | None:
        frame = self._last
        assert frame is not None
        if replace(view.stamp, epoch=frame.stamp.epoch) != frame.stamp:
            return None
        if not frame.relevance.is_cpu and not isinstance(view, DevicePatches):
            frame = self._last = self._allocate(view, None)  # what was chosen went with the device
        frame = self._last = self._chosen(view)
        if self._policy.with_pictures:
            self._image = self._image_of(view)
        return frame_packet_from(view, frame) if self._policy.whole_frames else packet_from(view, frame)

    def _finish(self, end: End) -> None:
        """Give the last answer, and wait until the answer server has done all that it was sent.

        Where the standing query has ended the run, what was read beyond that is not reported.
        """
        self._emit_segments(end.segments)
        if self._control.found:
            self._scheduler.finish(last_answer=False)
            return
        stamp = None if self._last is None else self._last.stamp
        at_s = 0.0 if stamp is None else stamp.media_ns / NS_PER_S
        self._emit_skipped(end.skipped, 0 if stamp is None else stamp.frame_index + 1, at_s)
        if (notice := _repaired_of(end)) is not None:
            self._emit(notice)
        self._scheduler.finish(last_answer=end.reason == "finished")

    def _emit(self, event: Event) -> None:
        """Send an event to the sinks; waits for them, however slow they are, unless the run is cancelled."""
        if self._context.recorder is not None:
            self._context.recorder.event(event)
        data = pack_event(event)
        while not self._events.send(data, WAIT_MS):
            self._control.check()

    def _emit_store_lost(self, reason: str) -> None:
        if not self._store_lost:
            self._store_lost = True
            self._emit(store_lost(reason))

    def _emit_segments(self, segments: tuple[MediaSegment, ...]) -> None:
        for segment in segments:
            self._emit(_segment_written(segment))

    def _emit_skipped(self, items: tuple[SkippedItem, ...], frame_index: int, at_s: float) -> None:
        for item in items:
            pts_s = at_s if item.media_ns is None else item.media_ns / NS_PER_S
            self._emit(
                Skipped(frame_index=frame_index, pts_s=pts_s, what=item.what, reason=item.reason, count=item.count)
            )

    def _overlay(self, view: TextureView, frame: FrameAllocation) -> AllocationOverlay | None:
        """Return a copy of what a picture of this allocation is drawn from, where a sink draws it."""
        if self._context.overlays is None:
            return None
        shown, layers, relevance = cropped(view, 0).copy(), self._layers(view, frame), frame.relevance.cpu().numpy()
        return AllocationOverlay(shown, frame.allocation.regions.numpy(), relevance, frame.overview, layers)

    def _layers(self, view: TextureView, frame: FrameAllocation) -> tuple[MapLayer, ...]:
        """Return the maps that a sink draws below the frame."""
        if not self._policy.drawn_layers:
            return ()
        inspected = self._inspected(view, frame, {})
        return layers_of(self._policy.drawn_layers, inspected.maps, inspected.weights, view.grid.shape)

    def _offer_pictures(self, view: TextureView, frame: FrameAllocation) -> None:
        """Leave the frame for those who want it; never waits."""
        for exchange in self._context.pictures:
            if (request := exchange.request) is not None:
                exchange.put(self._viewed(view, frame, request, exchange.buffers))

    def _viewed(
        self, view: TextureView, frame: FrameAllocation, request: PictureRequest, buffers: PictureBuffers
    ) -> ViewedFrame:
        def copied(levels: Iterable[int]) -> dict[int, npt.NDArray[np.uint8]]:
            return {level: buffers.copy(cropped(view, level)) for level in levels}

        levels = {width: level_for(view.grid.width_px, width) for width in request.widths}
        inspected = None
        if (wanted := request.inspect) is not None:
            inspected = self._inspected(view, frame, copied(known_levels(wanted.levels)), with_maps=wanted.maps)
        return ViewedFrame(
            frame_index=view.stamp.frame_index,
            capture_ns=view.stamp.capture_ns,
            media_ns=view.stamp.media_ns,
            tokens=self._tokens_of(frame),
            map=_map_of(frame),
            images=copied(set(levels.values())),
            levels=levels,
            inspected=inspected,
        )

    def _inspected(
        self,
        view: TextureView,
        frame: FrameAllocation,
        images: dict[int, npt.NDArray[np.uint8]],
        *,
        with_maps: bool = True,
    ) -> InspectedFrame:
        maps, query = self._allocator.inspect(view.stamp) if with_maps else None, self._allocator.question
        tokens = self._tokens_of(frame)
        return inspected_frame(view, frame, images, maps, self._motion, tokens=tokens, query=query)

    def _tokens_of(self, frame: FrameAllocation) -> int:
        """Return how many visual tokens the model reads of a frame."""
        return frame.tiles if self._policy.all_tiles else frame.tokens

    def _put_overlay(self, overlay: AllocationOverlay) -> int:
        """Return the slot of the overlay; waits until the sinks have room for it."""
        assert self._context.overlays is not None
        while (slot := self._context.overlays.put(overlay, WAIT_MS / 1000)) is None:
            self._control.check()
        return slot


def _chosen(frame: FrameAllocation) -> FrameAllocation:
    """Return the frame once its regions are in host memory, which may fail."""
    _ = frame.allocation
    return frame


def _full_packet(view: TextureView) -> FramePacket:
    packet = frame_packet_from(view, all_tokens(view))
    return replace(packet, image=packet.image.copy())


def _ready_of(
    frame: FrameAllocation,
    update: TextureUpdated,
    span_ns: tuple[int, int, int],
    slot: int | None,
    all_tiles: bool = False,
) -> FrameReady:
    """Return the event of a frame that was allocated in `span_ns` (start, end), and then let out (the third).

    `slot` is where a picture of it lies for the sinks. With `all_tiles` the model reads every tile of a frame, not the
    chosen regions only.
    """
    start_ns, done_ns, ready_ns = span_ns
    return FrameReady(
        frame_index=update.stamp.frame_index,
        pts_s=update.stamp.media_ns / NS_PER_S,
        capture_ns=update.stamp.capture_ns,
        ready_ns=ready_ns,
        texture_ms=update.texture_ms,
        allocate_ms=(done_ns - start_ns) / NS_PER_MS,
        dirty_share=update.dirty_share,
        tokens=frame.tiles if all_tiles else frame.tokens,
        tiles=frame.tiles,
        jitter_share=frame.jitter_share,
        slot=slot,
        duration_s=None if update.duration_ns is None else update.duration_ns / NS_PER_S,
        held_ms=(ready_ns - done_ns) / NS_PER_MS,
    )


def _map_of(frame: FrameAllocation) -> FrameMap:
    """Return relevance and chosen regions of a frame, packed."""
    relevance, regions = frame.relevance.cpu().numpy(), frame.allocation.regions.numpy()
    return FrameMap(
        rows=relevance.shape[0],
        cols=relevance.shape[1],
        relevance=np.rint(np.clip(relevance, 0, 1) * 255).astype(np.uint8).tobytes(),
        regions=regions.astype("<i2").tobytes(),
        overview=frame.overview,
    )


def _explanation_of(frame: FrameAllocation) -> Explanation:
    return Explanation(
        frame_index=frame.stamp.frame_index,
        pts_s=frame.stamp.media_ns / NS_PER_S,
        strategy=frame.strategy,
        weights=weights_of(frame),
        tokens=explain(frame),
    )


def _outage_of(lost: SourceLost) -> Outage:
    return Outage(
        frame_index=lost.frame_index,
        pts_s=lost.media_ns / NS_PER_S,
        reason=lost.reason,
        lasted_s=lost.lasted_s,
        attempts=lost.attempts,
    )


def _picture_changed(update: TextureUpdated, reason: Discontinuity, grid: TileGrid) -> PictureChanged:
    """From this frame on the picture has another size or form; `grid` covers it as it is worked on."""
    return PictureChanged(
        frame_index=update.stamp.frame_index,
        pts_s=update.stamp.media_ns / NS_PER_S,
        reason=reason,
        width_px=grid.width_px,
        height_px=grid.height_px,
    )


def _segment_written(segment: MediaSegment) -> SegmentWritten:
    return SegmentWritten(
        file=segment.file,
        header=segment.header,
        start_s=segment.start_ns / NS_PER_S,
        duration_s=segment.duration_ns / NS_PER_S,
        track_s=segment.track_ns / NS_PER_S,
        size_bytes=segment.size_bytes,
        codec=segment.codec,
        width_px=segment.width_px,
        height_px=segment.height_px,
        error=segment.error,
    )


def _repaired_of(end: End) -> Notice | None:
    """That frame times were made or corrected, if any were."""
    made, clamped = end.made_pts, end.clamped_pts
    if not made and not clamped:
        return None
    message = (
        f"repaired {counted(made + clamped, 'frame time')} from the frame rate ({made} missing, {clamped} going back)"
    )
    return Notice(code="pts-repaired", message=message)
