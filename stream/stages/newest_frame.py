"""The newest frame of a run: its allocation, packets that are made of it, and what answers change for later ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from msgspec import structs

from arr_coc.allocation import packets
from arr_coc.allocation.allocator import StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.errors import BudgetError, StoreError, StoreReplaced
from arr_coc.texture.store.base import TextureView
from arr_coc.types import (
    NS_PER_S,
    Feedback,
    FramePacket,
    FrameStamp,
    GroupPlace,
    QueryEmbedding,
    TileMotion,
    TokenPacket,
)
from stream.answer.idle import IdleFrames
from stream.answer.request import GlanceOutcome
from stream.answer.scheduler import AnswerObserver
from stream.clock import Clock
from stream.events import Event, store_lost
from stream.protocol.messages import ServerHello, TextureUpdated
from stream.protocol.playout import PlayoutDelay
from stream.stages import frame_events
from stream.stages.base import BoxFeed, RunBudget
from stream.stages.frame_tap import FrameTap

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AllocatePolicy:
    """Policy of allocation and of the events about it."""

    live: bool
    """Answer points count capture time, not media time."""
    whole_frames: bool
    """The answer server encodes whole frames, not tokens."""
    even_intervals: bool = False
    """Frames are released at even intervals, after a short delay."""
    with_reasons: bool = False
    """Frames that are answered about are explained."""
    learns: bool = True
    """Feedback of answers changes later allocations; a server may send it without need."""


@dataclass(frozen=True, slots=True)
class FrameParts:
    """Objects that allocation is made with."""

    tap: FrameTap
    """Gives copies of frames to their viewers."""
    lease: Callable[[], AbstractContextManager[TextureView]]
    """Gives the texture's view."""
    make_allocator: Callable[[ServerHello], StreamAllocator]
    """Called with the server's hello, because the best strategy depends on its model."""
    budget: RunBudget
    """What moves the budget of the run."""
    detections: BoxFeed | None = None
    """Boxes of another program."""


class EventOutlet(Protocol):
    """Way out for the events of a run."""

    def emit(self, *events: Event) -> None:
        """Send events to the sinks."""
        ...


class NewestFrame(AnswerObserver):
    """The newest frame of a run, which answers are about. Belongs to the thread that allocates.

    `idle`: what the frame has to read ahead.
    """

    def __init__(self, policy: AllocatePolicy, parts: FrameParts, clock: Clock, outlet: EventOutlet) -> None:
        self._policy = policy
        self._parts = parts
        self._clock = clock
        self._emit = outlet.emit
        self._last: FrameAllocation | None = None
        self._groups = frame_events.GroupWatch()
        self.idle = IdleFrames(self._read, lambda: (self._last, self._allocator.group), clock)
        self._hello: ServerHello | None = None
        self._store_lost = False
        self._motion: TileMotion | None = None
        self._tap = parts.tap
        self._detections = parts.detections
        self._playout = PlayoutDelay() if policy.even_intervals else None
        self.failures = 0
        """Number of frames whose allocation failed."""

    @property
    def stamp(self) -> FrameStamp | None:
        """Stamp of the frame; None before the first."""
        return None if self._last is None else self._last.stamp

    def take(self, update: TextureUpdated, motion: TileMotion | None) -> tuple[float, float]:
        """Allocate a frame, whose tiles moved by `motion`, and emit its events.

        Returns the relevance-weighted change since the last answer, and since the last check, 0 to 1.
        """
        start_ns = self._clock.now_ns()
        if update.fallback is not None:
            self._emit_store_lost(update.fallback)
        if self._detections is not None:
            self._emit(*self._detections.receive(update.stamp))
        frame, events, done_ns = self._read(lambda view: self._allocate_view(view, update, motion))
        if self._policy.live:
            self.idle.note_deadline(update.stamp.capture_ns, done_ns)
        ready_ns = self._wait_until_due(update.stamp.capture_ns, done_ns)
        self._last = frame
        self._emit(*events)
        slot = self._tap.put_overlay()
        tokens = self._tap.tokens_of(frame)
        frame_map = self._tap.map_of(frame)
        span_ns = start_ns, done_ns, ready_ns
        self._emit(
            frame_events.frame_ready(frame, update, motion, span_ns, tokens=tokens, slot=slot, frame_map=frame_map)
        )
        if self._tap.is_picture_due():
            self._last = self._read(self._with_regions)
            self._send_picture(has_question=False)
        changes = frame.change_since, frame.change_since_look
        return changes if self._detections is None else self._detections.changes(*changes)

    def on_model(self, hello: ServerHello, embedding: QueryEmbedding, *others: QueryEmbedding) -> None:
        """Make the allocator that suits the model, and give it the query, and those of watches."""
        if hello != self._hello:
            self._allocator = self._parts.make_allocator(hello)
            self._hello = hello
        self._allocator.set_query(embedding, *others)
        self._tap.set_allocator(self._allocator)

    def on_feedback(self, feedback: Feedback) -> None:
        """Apply the feedback of an answer to later allocations."""
        if self._policy.learns:
            self._allocator.apply_feedback(feedback)

    def is_glance_due(self) -> bool:
        """Return whether the model is to look at an overview of the newest frame before it is asked about it."""
        return self._last is not None and self._allocator.glance_due(self._last.stamp.media_ns)

    def make_glance_packet(self, next_place: GroupPlace | None = None) -> TokenPacket | None:
        """Return the newest frame's overview, if the texture still holds that frame; the model looks at it.

        If the group of pictures at `next_place` goes on, the model glances at that, and no regions are sent.
        """
        frame = self._last
        if frame is None:
            return None
        packet = self._read(lambda view: self._glance_packet(view, frame, next_place))
        if packet is not None:
            self._allocator.on_glance()
        return packet

    def on_glance(self, glance: GlanceOutcome) -> None:
        """Apply the model's glance to later allocations, and to that of the newest frame at once."""
        self._allocator.apply_glance(glance.feedback)
        frame = self._read(self._reallocate_view)
        if frame is None:
            self._emit(glance.event)
            return
        self._last = frame
        self._emit(structs.replace(glance.event, slot=self._tap.put_overlay(), map=self._tap.map_of(frame)))

    def on_event(self, event: Event) -> None:
        """Emit an event of the scheduler, which may set the budget of the next frames."""
        # A server that is lost before its first hello has events too: there is no allocator yet.
        if self._hello is not None and self._allocator.group is not None:
            event, notices = self._groups.take(event, self._allocator.group.newest)
            self._emit(*notices)
        if self._last is None:
            self._emit(event)
        else:
            self._emit(*self._parts.budget.on_event(event, self._last.relevance.numel()))

    def on_asked(self) -> None:
        """The newest frame is being answered about."""
        if self._last is not None:
            self._last = self._read(self._with_regions)
        self._allocator.mark_answered()
        if self._detections is not None:
            self._detections.mark_answered()
        if self._allocator.group is None:
            group_frame = None
        else:
            group_frame = self._allocator.group.newest_of(self._last)
        if self._last is not None:
            appended_tokens = None if group_frame is None else group_frame.appended_tokens
            self._parts.budget.on_request(self._last, appended_tokens)
        if self._policy.with_reasons and self._last is not None:
            self._emit(frame_events.explanation_of(self._last, group_frame))
        self._send_picture()

    def on_yes_no(self) -> None:
        """Watches are evaluated with the newest frame."""
        self._allocator.mark_looked()
        if self._detections is not None:
            self._detections.mark_looked()
        self._send_picture()

    def make_packet(self, next_place: GroupPlace | None = None) -> TokenPacket | FramePacket | None:
        """Return the newest frame's packet, if the texture still holds that frame.

        With a visual memory, it holds the regions that are new to the group of pictures at `next_place`.
        """
        return self._read(lambda view: self._packet(view, next_place))

    def make_full_packet(self) -> FramePacket | None:
        """Return the frame with all of its tokens and a copy of its image, which may wait for its turn."""
        return self._read(lambda view: _full_packet(view, self._allocator))

    def _send_picture(self, *, has_question: bool = True) -> None:
        """Send the picture of the newest frame, if an output shows it and the texture still holds the frame."""
        if (frame := self._last) is None or not self._tap.policy.answer_pictures:
            return
        if not self._tap.has_picture(frame):
            self._read(lambda view: self._tap.keep_picture(view, frame))
        if self._tap.has_picture(frame):
            self._emit(self._tap.picture_event(frame, has_question=has_question))

    def _wait_until_due(self, capture_ns: int, done_ns: int) -> int:
        """Wait until a frame whose allocation was done at `done_ns` is due; returns when it is ready."""
        if self._playout is None:
            return done_ns
        rest_ns = self._playout.release_ns(capture_ns, done_ns) - self._clock.now_ns()
        if rest_ns > 0:
            time.sleep(rest_ns / NS_PER_S)
        return self._clock.now_ns()

    def _read(self, make: Callable[[TextureView], T]) -> T:
        """Return what `make` reads from the texture; read again after the hardware texture failed."""
        try:
            with self._parts.lease() as view:
                return make(view)
        except StoreReplaced as replaced:
            self._emit_store_lost(str(replaced))
        with self._parts.lease() as view:
            return make(view)

    def _allocate_view(
        self, view: TextureView, update: TextureUpdated, motion: TileMotion | None
    ) -> tuple[FrameAllocation, list[Event], int]:
        """Return the frame's allocation, the events before its own, and when it was done; the tap gets its copies."""
        if self._detections is not None:
            self._allocator.set_floor(self._detections.floor(view.grid))
        frame = self._allocate(view, motion)
        done_ns = self._clock.now_ns()
        self._motion = motion
        self._tap.offer(view, frame, motion)
        return frame, frame_events.events_before(update, view.grid, first=self._last is None), done_ns

    def _allocate(self, view: TextureView, motion: TileMotion | None) -> FrameAllocation:
        """Return the frame's allocation; all of its tiles if allocation fails."""

        def allocated() -> FrameAllocation:
            frame = self._allocator.observe(view, motion, *self._limits(view))
            if self._tap.needs_regions:
                return frame.with_regions()
            return frame

        return self._or_all_tokens(view, allocated)

    def _with_regions(self, view: TextureView) -> FrameAllocation:
        """Return the newest frame with its regions; all of its tiles if choosing them fails."""
        frame = self._last
        assert frame is not None
        return self._or_all_tokens(view, frame.with_regions)

    def _or_all_tokens(self, view: TextureView, allocate: Callable[[], FrameAllocation]) -> FrameAllocation:
        """Return what `allocate` returns; all tokens if it fails, so that the frame can still be answered about."""
        try:
            return allocate()
        except (StoreError, BudgetError):
            raise
        except Exception as error:
            self._report_failure(view, error)
            return packets.all_tokens(view, self._allocator.within(view.grid))

    def _reallocate_view(self, view: TextureView) -> FrameAllocation | None:
        """Return the newest frame's allocation after a glance; None if the frame is gone or keeps its allocation."""
        if self._last is None or view.stamp != self._last.stamp:
            return None
        try:
            frame = self._allocator.reallocate(view, *self._limits(view))
        except (StoreError, BudgetError):
            raise
        except Exception as error:
            self._report_failure(view, error)
            return None
        self._tap.offer(view, frame, self._motion)
        return frame

    def _limits(self, view: TextureView) -> tuple[int | None, int | None]:
        """Return the budget of the frame and its most tokens; None for those of the options."""
        limits = self._parts.budget.limits(view.grid.tiles)
        return limits.budget, limits.most_tokens

    def _report_failure(self, view: TextureView, error: Exception) -> None:
        """Count an allocation that failed, and report the first one."""
        log.debug("allocation failed", exc_info=True)
        if not self.failures:
            notice = frame_events.allocation_failed(error)
            log.warning("frame %d: %s", view.stamp.frame_index, notice.message)
            self._emit(notice)
        self.failures += 1

    def _glance_packet(
        self, view: TextureView, frame: FrameAllocation, next_place: GroupPlace | None
    ) -> TokenPacket | None:
        if view.stamp != frame.stamp:
            return None
        if self._allocator.group is None:
            packet = None
        else:
            packet = self._allocator.group.glance_packet(view, frame, next_place)
        if packet is None:
            return packets.overview_packet(view, frame.glance_tokens, frame.inputs.plan.overview)
        return packet

    def _packet(self, view: TextureView, next_place: GroupPlace | None) -> TokenPacket | FramePacket | None:
        frame = self._last
        assert frame is not None
        if replace(view.stamp, epoch=frame.stamp.epoch) != frame.stamp:
            return None
        if frame.went_with_device(view):
            frame = self._last = self._allocate(view, None)
        frame = self._last = self._with_regions(view)
        self._tap.keep_picture(view, frame)
        if self._policy.whole_frames:
            return packets.frame_packet_from(view, frame)
        group = self._allocator.group
        if group is None:
            return packets.packet_from(view, frame)
        return group.packet(view, frame, next_place)

    def _emit_store_lost(self, reason: str) -> None:
        if not self._store_lost:
            self._store_lost = True
            self._emit(store_lost(reason))


def _full_packet(view: TextureView, allocator: StreamAllocator) -> FramePacket:
    packet = packets.frame_packet_from(view, packets.all_tokens(view, allocator.within(view.grid)))
    return replace(packet, image=packet.image.copy())
