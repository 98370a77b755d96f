"""Allocate stage: chooses tokens for every frame, and has a scheduler ask the answer server about them.

Every event of the run leaves through this stage, so that events have one order: those of frames up to n, then answer n.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from typing import TypeVar

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
    GroupPlace,
    QueryEmbedding,
    TileMotion,
    TokenPacket,
)
from stream.answer.idle import IdleFrames
from stream.answer.request import GlanceOutcome
from stream.answer.scheduler import AnswerObserver, AnswerScheduler
from stream.clock import Clock
from stream.control import WAIT_MS, RunControl
from stream.events import Event, pack_event, store_lost
from stream.protocol.buffers import SlotTable
from stream.protocol.messages import Credit, End, ServerHello, SourceLost, TextureUpdated
from stream.protocol.playout import PlayoutDelay
from stream.stages import frame_events
from stream.stages.base import EVENTS, TEXTURE_ALLOCATE, BoxFeed, RunBudget
from stream.stages.frame_tap import FrameTap
from stream.transport import LinkPoller, Transport

T = TypeVar("T")

REPLIES_EVERY_NS = NS_PER_S // 100
"""While frames come one after another, the answer client is asked for more than messages so often: whether its server
is gone, and whether there is another question. Each time costs a tenth of a frame's work."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AllocatePolicy:
    """Policy of allocation and of the events about it.

    Args:
        live: Answer points count capture time, not media time.
        whole_frames: The answer server encodes whole frames, not tokens.
        even: Frames are released at even intervals, after a short delay.
        with_reasons: Frames that are answered about are explained.
        learns: Feedback of answers changes later allocations; a server may send it without need.
    """

    live: bool
    whole_frames: bool
    even_intervals: bool = False
    with_reasons: bool = False
    learns: bool = True


@dataclass(frozen=True, slots=True)
class AllocateContext:
    """Objects that the allocate stage is given.

    Args:
        transport: Sockets of the run.
        make_scheduler: Makes the scheduler of answers, which the stage observes.
        tap: Gives copies of frames to their viewers.
        lease: Gives the texture's view.
        motions: Motion of frames, put there by the texture stage.
        fragments: Video in memory, put there by the source.
        make_allocator: Called with the server's hello, because the best strategy depends on its model.
        budget: What moves the budget of the run.
        detections: Boxes of another program.
        observers: Called with every event.
    """

    transport: Transport
    make_scheduler: Callable[[AnswerObserver], AnswerScheduler]
    tap: FrameTap
    lease: Callable[[], AbstractContextManager[TextureView]]
    motions: SlotTable[TileMotion]
    fragments: frame_events.FragmentTable
    make_allocator: Callable[[ServerHello], StreamAllocator]
    budget: RunBudget
    detections: BoxFeed | None = None
    observers: tuple[Callable[[Event], None], ...] = ()


class AllocateStage:
    """Stage that allocates frames, observes the answers (AnswerObserver), and sends all events to the sinks."""

    name = "allocate"

    def __init__(self, policy: AllocatePolicy, context: AllocateContext, control: RunControl, clock: Clock) -> None:
        self._policy = policy
        self._context = context
        self._control = control
        self._clock = clock
        self._last: FrameAllocation | None = None
        self._groups = frame_events.GroupWatch()
        self.idle = IdleFrames(self._read, lambda: (self._last, self._allocator.group), clock)
        self._hello: ServerHello | None = None
        self._failures = 0
        self._store_lost = False
        self._motion: TileMotion | None = None
        self._tap = context.tap
        self._detections = context.detections
        self._playout = PlayoutDelay() if policy.even_intervals else None
        self._scheduler = context.make_scheduler(self)

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
            if self._detections is not None:
                stack.enter_context(closing(self._detections.open()))
            self._scheduler.connect(transport)
            stack.enter_context(closing(self._scheduler))
            try:
                self._scheduler.wait_until_ready()
                self._finish(self._process_frames())
            except Exception:
                self._scheduler.cancel()
                raise

    def on_model(self, hello: ServerHello, embedding: QueryEmbedding, *others: QueryEmbedding) -> None:
        """Make the allocator that suits the model, and give it the query, and those of watches."""
        if hello != self._hello:
            self._allocator = self._context.make_allocator(hello)
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
            self._emit(*self._context.budget.on_event(event, self._last.relevance.numel()))

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
            self._context.budget.on_request(self._last, appended_tokens)
        if self._policy.with_reasons and self._last is not None:
            self._emit(frame_events.explanation_of(self._last, group_frame))
        self._send_picture()

    def on_yes_no(self) -> None:
        """Watches are evaluated with the newest frame."""
        self._allocator.mark_looked()
        if self._detections is not None:
            self._detections.mark_looked()
        self._send_picture()

    def _send_picture(self, *, has_question: bool = True) -> None:
        """Send the picture of the newest frame, if an output shows it and the texture still holds the frame."""
        if (frame := self._last) is None or not self._tap.policy.answer_pictures:
            return
        if not self._tap.has_picture(frame):
            self._read(lambda view: self._tap.keep_picture(view, frame))
        if self._tap.has_picture(frame):
            self._emit(self._tap.picture_event(frame, has_question=has_question))

    def make_packet(self, next_place: GroupPlace | None = None) -> TokenPacket | FramePacket | None:
        """Return the newest frame's packet, if the texture still holds that frame.

        With a visual memory, it holds the regions that are new to the group of pictures at `next_place`.
        """
        return self._read(lambda view: self._packet(view, next_place))

    def make_full_packet(self) -> FramePacket | None:
        """Return the frame with all of its tokens and a copy of its image, which may wait for its turn."""
        return self._read(lambda view: _full_packet(view, self._allocator))

    def _process_frames(self) -> End:
        """Process frames and replies until the last frame; returns what came after it."""
        scheduler = self._scheduler
        self._texture.offer(Credit())
        link = scheduler.link
        poller = LinkPoller(self._texture, scheduler.link)
        replies_due_ns = 0
        while True:
            if link is not scheduler.link:
                link = scheduler.link
                poller = LinkPoller(self._texture, scheduler.link)
            poller.wait(WAIT_MS)
            is_frame = poller.has_message(self._texture)
            now_ns = self._clock.now_ns()
            if not is_frame or poller.has_message(link) or now_ns >= replies_due_ns:
                scheduler.process_replies(0)
                scheduler.check_timeout()
                scheduler.ask_if_due()
                replies_due_ns = now_ns + REPLIES_EVERY_NS
            envelope = self._texture.receive() if is_frame else None
            if envelope is None:
                continue
            if isinstance(envelope.message, End):
                scheduler.process_replies(0)  # a question that came since
                return envelope.message
            if isinstance(envelope.message, SourceLost):
                self._emit(frame_events.outage_of(envelope.message))
            elif isinstance(envelope.message, TextureUpdated):
                slot = envelope.message.motion_slot
                if slot is None:
                    motion = None
                else:
                    motion = self._context.motions.take(slot)
                if not self._control.has_match:
                    self._process_frame(envelope.message, motion)
                self._texture.offer(Credit())

    def _process_frame(self, update: TextureUpdated, motion: TileMotion | None) -> None:
        """Allocate one frame, whose tiles moved by `motion`, emit its events, and ask about it if a question is due."""
        start_ns = self._clock.now_ns()
        if update.fallback is not None:
            self._emit_store_lost(update.fallback)
        if self._detections is not None:
            self._emit(*self._detections.receive(update.stamp))
        frame, events, done_ns = self._read(lambda view: self._allocate_view(view, update, motion))
        if self._policy.live:
            self.idle.note_deadline(update.stamp.capture_ns, done_ns)
        ready_ns = self._wait_until_due(update.stamp.capture_ns, done_ns)
        first = self._last is None
        self._last = frame
        stamp = update.stamp
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
        self._emit(*frame_events.segment_events(update.segments, self._context.fragments))
        changes = frame.change_since, frame.change_since_look
        if self._detections is not None:
            changes = self._detections.changes(*changes)
        self._scheduler.observe(
            frame.stamp,
            stamp.capture_ns if self._policy.live else stamp.media_ns,
            change=changes[0],
            cut=update.cut_score is not None,
            discontinuity=update.discontinuity is not None and not first,
            change_since_look=changes[1],
        )

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
            with self._context.lease() as view:
                return make(view)
        except StoreReplaced as replaced:
            self._emit_store_lost(str(replaced))
        with self._context.lease() as view:
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
        limits = self._context.budget.limits(view.grid.tiles)
        return limits.budget, limits.most_tokens

    def _report_failure(self, view: TextureView, error: Exception) -> None:
        """Count an allocation that failed, and report the first one."""
        log.debug("allocation failed", exc_info=True)
        if not self._failures:
            notice = frame_events.allocation_failed(error)
            log.warning("frame %d: %s", view.stamp.frame_index, notice.message)
            self._emit(notice)
        self._failures += 1

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

    def _finish(self, end: End) -> None:
        """Give the last answer, and wait until the answer server has done all that it was sent.

        If the standing query has ended the run, later reads of the source are not reported.
        """
        self._emit(*frame_events.segment_events(end.segments, self._context.fragments))
        if self._control.has_match:
            self._scheduler.finish(last_answer=False)
            return
        stamp = None if self._last is None else self._last.stamp
        if stamp is None:
            at_s = 0.0
        else:
            at_s = stamp.media_ns / NS_PER_S
        self._emit(*frame_events.skipped_events(end.skipped, 0 if stamp is None else stamp.frame_index + 1, at_s))
        if (notice := frame_events.repaired_times(end)) is not None:
            self._emit(notice)
        self._scheduler.finish(last_answer=end.reason == "finished")

    def _emit(self, *events: Event) -> None:
        """Send events to the sinks; waits for them, however slow they are, unless the run is cancelled."""
        for event in events:
            for observe in self._context.observers:
                observe(event)
            data = pack_event(event)
            while not self._events.send(data, WAIT_MS):
                self._control.check()

    def _emit_store_lost(self, reason: str) -> None:
        if not self._store_lost:
            self._store_lost = True
            self._emit(store_lost(reason))


def _full_packet(view: TextureView, allocator: StreamAllocator) -> FramePacket:
    packet = packets.frame_packet_from(view, packets.all_tokens(view, allocator.within(view.grid)))
    return replace(packet, image=packet.image.copy())
