"""Allocate stage: chooses tokens for every frame, and has a scheduler ask the answer server about them.

Every event of the run leaves through this stage, so that events have one order: those of frames up to n, then answer n.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from arr_coc.types import NS_PER_S, TileMotion
from stream.answer.scheduler import AnswerObserver, AnswerScheduler
from stream.clock import Clock
from stream.control import WAIT_MS, RunControl
from stream.events import Event, pack_event
from stream.protocol.buffers import SlotTable
from stream.protocol.messages import Credit, End, SourceLost, TextureUpdated
from stream.stages import frame_events
from stream.stages.base import EVENTS, TEXTURE_ALLOCATE
from stream.stages.newest_frame import AllocatePolicy, FrameParts, NewestFrame
from stream.transport import LinkPoller, Transport

REPLIES_EVERY_NS = NS_PER_S // 100
"""While frames come one after another, the answer client is asked for more than messages so often: whether its server
is gone, and whether there is another question. Each time costs a tenth of a frame's work."""


@dataclass(frozen=True, slots=True)
class AllocateContext:
    """Objects that the allocate stage is given."""

    transport: Transport
    """Sockets of the run."""
    make_scheduler: Callable[[AnswerObserver], AnswerScheduler]
    """Makes the scheduler of answers about the newest frame."""
    frame: FrameParts
    motions: SlotTable[TileMotion]
    """Motion of frames, put there by the texture stage."""
    fragments: frame_events.FragmentTable
    """Video in memory, put there by the source."""
    observers: tuple[Callable[[Event], None], ...] = ()
    """Called with every event."""


class AllocateStage:
    """Stage that allocates frames, lets the scheduler ask about them, and sends all events to the sinks."""

    name = "allocate"

    def __init__(self, policy: AllocatePolicy, context: AllocateContext, control: RunControl, clock: Clock) -> None:
        self._live = policy.live
        self._context = context
        self._control = control
        self._clock = clock
        self._frame = NewestFrame(policy, context.frame, clock, self)
        self._scheduler = context.make_scheduler(self._frame)

    @property
    def drops(self) -> dict[str, int]:
        """Drops of the scheduler, and frames whose allocation failed."""
        return {**self._scheduler.drops, "allocate.failed": self._frame.failures}

    def run(self) -> None:
        """Run the stage to the end of the source, or until the run is cancelled."""
        transport = self._context.transport
        with ExitStack() as stack:
            self._texture = stack.enter_context(closing(transport.link(TEXTURE_ALLOCATE, check=self._control.check)))
            self._events = stack.enter_context(closing(transport.event_sender(EVENTS)))
            if self._context.frame.detections is not None:
                stack.enter_context(closing(self._context.frame.detections.open()))
            self._scheduler.connect(transport)
            stack.enter_context(closing(self._scheduler))
            try:
                self._scheduler.wait_until_ready()
                self._finish(self._process_frames())
            except Exception:
                self._scheduler.cancel()
                raise

    def emit(self, *events: Event) -> None:
        """Send events to the sinks; waits for them, however slow they are, unless the run is cancelled."""
        for event in events:
            for observe in self._context.observers:
                observe(event)
            data = pack_event(event)
            while not self._events.send(data, WAIT_MS):
                self._control.check()

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
                self.emit(frame_events.outage_of(envelope.message))
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
        """Allocate one frame, and ask about it if a question is due."""
        first = self._frame.stamp is None
        change, change_since_look = self._frame.take(update, motion)
        self.emit(*frame_events.segment_events(update.segments, self._context.fragments))
        stamp = self._frame.stamp
        assert stamp is not None
        self._scheduler.observe(
            stamp,
            stamp.capture_ns if self._live else stamp.media_ns,
            change=change,
            cut=update.cut_score is not None,
            discontinuity=update.discontinuity is not None and not first,
            change_since_look=change_since_look,
        )

    def _finish(self, end: End) -> None:
        """Give the last answer, and wait until the answer server has done all that it was sent.

        If the standing query has ended the run, later reads of the source are not reported.
        """
        self.emit(*frame_events.segment_events(end.segments, self._context.fragments))
        if self._control.has_match:
            self._scheduler.finish(last_answer=False)
            return
        stamp = self._frame.stamp
        if stamp is None:
            at_s = 0.0
        else:
            at_s = stamp.media_ns / NS_PER_S
        self.emit(*frame_events.skipped_events(end.skipped, 0 if stamp is None else stamp.frame_index + 1, at_s))
        if (notice := frame_events.repaired_times(end)) is not None:
            self.emit(notice)
        self._scheduler.finish(last_answer=end.reason == "finished")
