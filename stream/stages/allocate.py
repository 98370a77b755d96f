"""Allocate: chooses tokens for every frame, decides when to speak, and holds the conversation with the answer stage.

Every event of the run leaves through this stage, so that events have one order: those of frames up to n, then answer n.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from msgspec import structs

from arr_coc.allocation.allocator import FrameAllocation, StreamAllocator
from arr_coc.allocation.packets import all_tokens, explain, frame_packet_from, packet_from, weights_of
from arr_coc.errors import StoreError, StoreReplaced, counted
from arr_coc.ops.store.view import TextureView
from arr_coc.types import NS_PER_S, Feedback, FramePacket, QueryEmbedding, TileGrid, TokenPacket
from stream.answer.latency import LatencyController
from stream.answer.request import ClientOptions
from stream.answer.scheduler import AnswerEndpoint, AnswerScheduler, Listener, SchedulePolicy
from stream.clock import Clock
from stream.control import WAIT_MS, RunControl, describe
from stream.events import (
    Answer,
    Cut,
    Event,
    Explanation,
    FrameMap,
    FrameReady,
    Notice,
    Outage,
    PictureChanged,
    Skipped,
    pack_event,
    store_lost,
)
from stream.media import Overlay, SkippedItem
from stream.protocol.buffers import Slots
from stream.protocol.messages import Credit, Discontinuity, End, ServerHello, SourceLost, TextureUpdated
from stream.recording.recorder import Recorder
from stream.stages.base import EVENTS, TEXTURE_ALLOCATE
from stream.transport import Transport, Waiter

T = TypeVar("T")

log = logging.getLogger(__name__)

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class AllocatePolicy:
    """`live`: answer points count capture time, not media time.

    `whole_frames`: the answer stage encodes whole frames, not tokens. `all_tiles`: the model reads a token for every
    tile, whatever was chosen. `with_maps`: frames are told with their relevance and regions. `with_reasons`: frames
    that are answered about are told with why their tokens were chosen. `learns`: answers teach later allocations; a
    server may send feedback to those who want none.
    """

    live: bool
    whole_frames: bool
    all_tiles: bool = False
    with_maps: bool = False
    with_reasons: bool = False
    learns: bool = True


@dataclass(frozen=True, slots=True)
class AllocateWiring:
    """What this stage shares with others.

    `answer` is who answers, `speak` when, `manners` how. `lease` gives the texture's view; `make_allocator` is called
    with the answer stage's greeting, because the best strategy depends on its model. `target` holds a latency;
    `recorder` takes every event.
    """

    transport: Transport
    answer: AnswerEndpoint
    speak: SchedulePolicy
    manners: ClientOptions
    overlays: Slots[Overlay] | None
    lease: Callable[[], AbstractContextManager[TextureView]]
    make_allocator: Callable[[ServerHello], StreamAllocator]
    target: LatencyController | None = None
    recorder: Recorder | None = None


class AllocateStage:
    """Owns the link to the answer stage and the way to the sinks."""

    name = "allocate"

    def __init__(self, policy: AllocatePolicy, wiring: AllocateWiring, control: RunControl, clock: Clock) -> None:
        self._policy = policy
        self._wiring = wiring
        self._control = control
        self._clock = clock
        self._last: FrameAllocation | None = None
        self._hello: ServerHello | None = None
        self._failures = 0
        self._store_lost = False
        listener = Listener(
            meet=self._meet,
            learn=self._learn,
            emit=self._heard,
            gather=self._gather,
            whole=lambda: self._read(_whole_packet),
            looked=lambda: self._allocator.mark_looked(),
            asked=self._asked,
        )
        self._talk = AnswerScheduler(wiring.speak, wiring.answer, wiring.manners, listener, control)

    @property
    def drops(self) -> dict[str, int]:
        """What the conversation dropped, and frames whose allocation failed."""
        return {**self._talk.drops, "allocate.failed": self._failures}

    def run(self) -> None:
        transport = self._wiring.transport
        with ExitStack() as stack:
            self._texture = stack.enter_context(closing(transport.link(TEXTURE_ALLOCATE, check=self._control.check)))
            self._events = stack.enter_context(closing(transport.event_sink(EVENTS)))
            self._talk.begin(transport, self._clock)
            stack.enter_context(closing(self._talk))
            try:
                self._talk.greet()
                self._finish(self._follow())
            except Exception:
                self._talk.cancel()
                raise

    def _meet(self, hello: ServerHello, embedding: QueryEmbedding) -> None:
        """The allocator must suit the model, and knows the question."""
        if hello != self._hello:
            self._allocator = self._wiring.make_allocator(hello)
            self._hello = hello
        self._allocator.set_query(embedding)

    def _learn(self, feedback: Feedback) -> None:
        if self._policy.learns:
            self._allocator.apply_feedback(feedback)

    def _asked(self) -> None:
        """The newest frame is being answered about."""
        self._allocator.mark_answered()
        if (target := self._wiring.target) is not None and self._last is not None:
            target.asked(self._last)
        if self._policy.with_reasons and self._last is not None:
            self._emit(_why_of(self._last))

    def _heard(self, event: Event) -> None:
        """Passes on what the conversation tells; what an answer took sets the budget of the next frames."""
        target = self._wiring.target
        for told in target.heard(event) if target is not None and isinstance(event, Answer) else [event]:
            self._emit(told)

    def _follow(self) -> End:
        """Takes frames, and speaks where that is due, until the last one; returns what came after it."""
        self._texture.offer(Credit())
        link, either = self._talk.link, Waiter(self._texture, self._talk.link)
        while True:
            if link is not self._talk.link:
                link, either = self._talk.link, Waiter(self._texture, self._talk.link)
            either.wait(WAIT_MS)
            self._talk.hear(0)
            self._talk.mind_silence()
            self._talk.speak_if_due()
            received = self._texture.receive()
            if received is None:
                continue
            if isinstance(received.message, End):
                return received.message
            if isinstance(received.message, SourceLost):
                self._emit(_outage_of(received.message))
            elif isinstance(received.message, TextureUpdated):
                if not self._control.found:
                    self._take(received.message)
                self._texture.offer(Credit())

    def _take(self, changed: TextureUpdated) -> None:
        """Allocates one frame, tells about it, and speaks where that is due."""
        start_ns = self._clock.now_ns()
        if changed.fallback is not None:
            self._tell_store_lost(changed.fallback)
        frame, grid, ready_ns, overlay = self._read(lambda view: self._looked_at(view, changed))
        begun, self._last, stamp = self._last is not None, frame, changed.stamp
        at_s = stamp.media_ns / NS_PER_S
        self._tell_skipped(changed.skipped, stamp.frame_index, at_s)
        if changed.cut_score is not None:
            self._emit(Cut(frame_index=stamp.frame_index, pts_s=at_s, score=changed.cut_score))
        discontinuity = changed.discontinuity if begun else None
        if discontinuity in ("resolution", "format"):
            self._emit(_picture_changed(changed, discontinuity, grid))
        slot = None if overlay is None else self._slot(overlay)
        ready = _ready_of(frame, changed, (start_ns, ready_ns), slot, self._policy.all_tiles)
        self._emit(structs.replace(ready, map=_map_of(frame)) if self._policy.with_maps else ready)
        time_ns = stamp.capture_ns if self._policy.live else stamp.media_ns
        self._talk.observe(
            frame.stamp,
            time_ns,
            change=frame.change_since,
            cut=changed.cut_score is not None,
            discontinuity=discontinuity is not None,
            change_since_look=frame.change_since_look,
        )

    def _read(self, look: Callable[[TextureView], T]) -> T:
        """What `look` makes of the texture; it looks again where the hardware under it gave up."""
        try:
            with self._wiring.lease() as view:
                return look(view)
        except StoreReplaced as replaced:
            self._tell_store_lost(str(replaced))
        with self._wiring.lease() as view:
            return look(view)

    def _tell_store_lost(self, reason: str) -> None:
        if not self._store_lost:
            self._store_lost = True
            self._emit(store_lost(reason))

    def _looked_at(
        self, view: TextureView, changed: TextureUpdated
    ) -> tuple[FrameAllocation, TileGrid, int, Overlay | None]:
        """The frame's allocation and grid, when it was ready, and a picture of it where somebody draws one."""
        frame = self._allocated(view, changed)
        return frame, view.grid, self._clock.now_ns(), self._overlay(view, frame)

    def _allocated(self, view: TextureView, changed: TextureUpdated) -> FrameAllocation:
        """The frame's allocation; all of its tiles where that fails, because a frame is better answered than lost."""
        try:
            target = self._wiring.target
            budget, at_most = (None, None) if target is None else target.limits(view.grid.tiles)
            return self._allocator.allocate(view, changed.shift, budget, at_most)
        except StoreError:
            raise
        except Exception as error:
            log.debug("allocation failed", exc_info=True)
            if not self._failures:
                message = f"allocation failed ({describe(error)}); such frames are shown with all their tokens"
                log.warning("frame %d: %s", view.stamp.frame_index, message)
                self._emit(Notice(code="allocation-failed", message=message))
            self._failures += 1
            return all_tokens(view)

    def _gather(self) -> TokenPacket | FramePacket | None:
        """The newest frame's packet, if the texture still holds that frame."""
        return self._read(self._packet)

    def _packet(self, view: TextureView) -> TokenPacket | FramePacket | None:
        frame = self._last
        assert frame is not None
        if replace(view.stamp, epoch=frame.stamp.epoch) != frame.stamp:
            return None
        return frame_packet_from(view, frame) if self._policy.whole_frames else packet_from(view, frame)

    def _finish(self, end: End) -> None:
        """Gives the last answer, and waits until the answer stage has done all that it was sent.

        Where what was watched for has been found, what was read beyond that is not told.
        """
        if self._control.found:
            self._talk.finish(last_answer=False)
            return
        stamp = None if self._last is None else self._last.stamp
        at_s = 0.0 if stamp is None else stamp.media_ns / NS_PER_S
        self._tell_skipped(end.skipped, 0 if stamp is None else stamp.frame_index + 1, at_s)
        if (repaired := _repaired_of(end)) is not None:
            self._emit(repaired)
        self._talk.finish(last_answer=end.reason == "finished")

    def _emit(self, event: Event) -> None:
        """Waits for the sinks, however slow they are, unless the run is cancelled."""
        if self._wiring.recorder is not None:
            self._wiring.recorder.event(event)
        data = pack_event(event)
        while not self._events.send(data, WAIT_MS):
            self._control.check()

    def _tell_skipped(self, items: tuple[SkippedItem, ...], frame_index: int, at_s: float) -> None:
        for item in items:
            pts_s = at_s if item.media_ns is None else item.media_ns / NS_PER_S
            self._emit(
                Skipped(frame_index=frame_index, pts_s=pts_s, what=item.what, reason=item.reason, count=item.count)
            )

    def _overlay(self, view: TextureView, frame: FrameAllocation) -> Overlay | None:
        """A copy of what a picture of this allocation is drawn from, where somebody draws it."""
        if self._wiring.overlays is None:
            return None
        image = view.read(0)[: view.grid.height_px, : view.grid.width_px].copy()
        return Overlay(image, frame.allocation.regions.numpy(), frame.relevance.numpy())

    def _slot(self, overlay: Overlay) -> int:
        """Waits until the sinks have room for another picture."""
        assert self._wiring.overlays is not None
        while (slot := self._wiring.overlays.put(overlay, WAIT_MS / 1000)) is None:
            self._control.check()
        return slot


def _whole_packet(view: TextureView) -> FramePacket:
    """A frame with all of its tokens and a copy of its image, which may wait for its turn."""
    packet = frame_packet_from(view, all_tokens(view))
    return replace(packet, image=packet.image.copy())


def _ready_of(
    frame: FrameAllocation, changed: TextureUpdated, span_ns: tuple[int, int], slot: int | None, all_tiles: bool = False
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


def _map_of(frame: FrameAllocation) -> FrameMap:
    relevance, regions = frame.relevance.numpy(), frame.allocation.regions.numpy()
    return FrameMap(
        rows=relevance.shape[0],
        cols=relevance.shape[1],
        relevance=np.rint(np.clip(relevance, 0, 1) * 255).astype(np.uint8).tobytes(),
        regions=regions.astype("<i2").tobytes(),
    )


def _why_of(frame: FrameAllocation) -> Explanation:
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


def _picture_changed(changed: TextureUpdated, reason: Discontinuity, grid: TileGrid) -> PictureChanged:
    """From this frame on the picture has another size or form; `grid` covers it as it is worked on."""
    return PictureChanged(
        frame_index=changed.stamp.frame_index,
        pts_s=changed.stamp.media_ns / NS_PER_S,
        reason=reason,
        width_px=grid.width_px,
        height_px=grid.height_px,
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
