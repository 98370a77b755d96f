"""Allocate: chooses tokens for every frame, decides when to speak, and holds the conversation with the answer stage.

Every event of the run leaves through this stage, so that events have one order: those of frames up to n, then answer n.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass

from arr_coc.allocator import FrameAllocation, StreamAllocator
from arr_coc.errors import StoreError
from arr_coc.ops.view import TextureView
from arr_coc.packets import frame_packet_from, packet_from
from arr_coc.types import NS_PER_S
from stream.all_tokens import all_tokens
from stream.clock import Clock
from stream.dialogue import NS_PER_MS, Dialogue
from stream.errors import StageDied
from stream.events import Cut, Event, FrameReady, Notice, Outage, Skipped, pack_event
from stream.messages import Changed, Credit, End, Hello, Lost
from stream.overlay import Overlay
from stream.slots import Slots
from stream.snapshot import SnapshotWriter
from stream.sources.base import SkippedItem
from stream.stages.base import EVENTS, TEXTURE_ALLOCATE, WAIT_MS, Control, describe
from stream.transport import Transport, Waiter
from stream.triggers import TriggerRules, Triggers

log = logging.getLogger(__name__)

MS_PER_S = 1000

MODEL_WORLD = (
    "this model only knows {world}; for real video give --model Qwen/Qwen3-VL-2B-Instruct, "
    "or the folder of such a model"
)


@dataclass(frozen=True, slots=True)
class AllocatePolicy:
    """`lockstep`: at an answer point no frame follows before the answer. `live`: triggers count capture time.

    `whole_frames`: the answer stage encodes whole frames, not tokens. `silence_limit_s`: how long it may say nothing
    while an answer is due.
    """

    rules: TriggerRules
    query: str
    whole_frames: bool
    lockstep: bool
    live: bool
    drawn_source: bool
    silence_limit_s: float


@dataclass(frozen=True, slots=True)
class AnswerReach:
    """How the answer stage is reached.

    `snapshot` is the memory shared with it, where it is a process; `seal` removes the socket's name once both ends
    have met, so that nobody else joins and nothing is left behind.
    """

    endpoint: str
    snapshot: SnapshotWriter | None = None
    seal: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class AllocateWiring:
    """What this stage shares with others.

    `lease` gives the texture's view; `make_allocator` is called with the answer stage's greeting, because the best
    strategy depends on its model.
    """

    transport: Transport
    answer: AnswerReach
    overlays: Slots[Overlay] | None
    lease: Callable[[], AbstractContextManager[TextureView]]
    make_allocator: Callable[[Hello], StreamAllocator]


class AllocateStage:
    """Owns the link to the answer stage and the way to the sinks."""

    name = "allocate"

    def __init__(self, policy: AllocatePolicy, wiring: AllocateWiring, control: Control, clock: Clock) -> None:
        self._policy = policy
        self._wiring = wiring
        self._control = control
        self._clock = clock
        self._triggers = Triggers(policy.rules)
        self._last: FrameAllocation | None = None
        self._failures = 0

    @property
    def drops(self) -> dict[str, int]:
        """Answer points that came while another one still waited, and frames whose allocation failed."""
        return {"answer.busy": self._triggers.missed, "allocate.failed": self._failures}

    def run(self) -> None:
        transport, answer, check = self._wiring.transport, self._wiring.answer, self._control.check
        with ExitStack() as stack:
            self._texture = stack.enter_context(closing(transport.link(TEXTURE_ALLOCATE, check=check)))
            self._answer = stack.enter_context(closing(transport.link(answer.endpoint, bind=True, check=check)))
            self._events = stack.enter_context(closing(transport.event_sink(EVENTS)))
            self._dialogue = Dialogue(self._answer, self._clock, self._policy.query, answer.snapshot)
            try:
                self._greet()
                self._finish(self._follow())
            except Exception:
                self._dialogue.cancel()
                raise

    def _greet(self) -> None:
        """Waits for the answer stage, and makes the allocator that suits its model."""
        dialogue = self._dialogue
        while not dialogue.joined:
            self._hear(WAIT_MS)
        self._wiring.answer.seal()
        while dialogue.hello is None or dialogue.embedding is None:
            self._hear(WAIT_MS)
        self._allocator = self._wiring.make_allocator(dialogue.hello)
        self._allocator.set_query(dialogue.embedding)
        world = dialogue.hello.known_world
        if world is not None and not self._policy.drawn_source:
            self._emit(Notice(code="model-world", message=MODEL_WORLD.format(world=world)))

    def _follow(self) -> End:
        """Takes frames, and speaks where that is due, until the last one; returns what came after it."""
        either = Waiter(self._texture, self._answer)
        self._texture.offer(Credit())
        while True:
            either.wait(WAIT_MS)
            self._hear(0)
            if self._dialogue.silence_s > self._policy.silence_limit_s:
                raise self._silent()
            if self._triggers.due and self._dialogue.wants_packet:
                self._speak()
            received = self._texture.receive()
            if received is not None and isinstance(received.message, End):
                return received.message
            if received is not None and isinstance(received.message, Lost):
                self._emit(_outage(received.message))
            if received is not None and isinstance(received.message, Changed):
                self._take(received.message)
                self._texture.offer(Credit())

    def _take(self, changed: Changed) -> None:
        """Allocates one frame, tells about it, and speaks where that is due."""
        start_ns = self._clock.now_ns()
        with self._wiring.lease() as view:
            self._last = self._allocated(view, changed)
            ready_ns = self._clock.now_ns()
            overlay = self._overlay(view, self._last)
        stamp, frame = changed.stamp, self._last
        at_s = stamp.media_ns / NS_PER_S
        self._tell_skipped(changed.skipped, stamp.frame_index, at_s)
        if changed.cut_score is not None:
            self._emit(Cut(frame_index=stamp.frame_index, pts_s=at_s, score=changed.cut_score))
        self._emit(
            FrameReady(
                frame_index=stamp.frame_index,
                pts_s=at_s,
                capture_ns=stamp.capture_ns,
                ready_ns=ready_ns,
                texture_ms=changed.texture_ms,
                allocate_ms=(ready_ns - start_ns) / NS_PER_MS,
                dirty_share=changed.dirty_share,
                tokens=frame.allocation.tokens,
                tiles=frame.levels.size,
                jitter_share=frame.jitter_share,
                slot=None if overlay is None else self._slot(overlay),
            )
        )
        time_ns = stamp.capture_ns if self._policy.live else stamp.media_ns
        due = self._triggers.observe(time_ns, change=frame.change_since, cut=changed.cut_score is not None)
        if due and self._policy.lockstep:
            self._await(lambda: self._dialogue.wants_packet)
        if due and self._dialogue.wants_packet:
            self._speak()
        if self._policy.lockstep:
            self._await(lambda: not self._dialogue.busy)

    def _allocated(self, view: TextureView, changed: Changed) -> FrameAllocation:
        """The frame's allocation; all of its tiles where that fails, because a frame is better answered than lost."""
        try:
            return self._allocator.allocate(view, changed.shift)
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

    def _speak(self) -> None:
        """Sends the newest frame's packet, if the texture still holds that frame."""
        frame = self._last
        assert frame is not None
        with self._wiring.lease() as view:
            if view.stamp != frame.stamp:
                return
            packet = frame_packet_from(view, frame) if self._policy.whole_frames else packet_from(view, frame)
            self._dialogue.ask(packet, self._triggers.fire())
        self._allocator.mark_answered()

    def _finish(self, end: End) -> None:
        """Gives the last answer, and waits until the answer stage has done all that it was sent."""
        stamp = None if self._last is None else self._last.stamp
        at_s = 0.0 if stamp is None else stamp.media_ns / NS_PER_S
        self._tell_skipped(end.skipped, 0 if stamp is None else stamp.frame_index + 1, at_s)
        made, clamped = end.made_pts, end.clamped_pts
        if made or clamped:
            message = (
                f"repaired {made + clamped} frame times from the frame rate ({made} missing, {clamped} going back)"
            )
            self._emit(Notice(code="pts-repaired", message=message))
        if end.reason == "finished" and self._triggers.finish():
            self._await(lambda: self._dialogue.wants_packet)
            self._speak()
        self._await(lambda: not self._dialogue.busy)
        self._dialogue.end()
        self._await(lambda: self._dialogue.stopped)

    def _await(self, done: Callable[[], bool]) -> None:
        """Hears the answer stage until `done`. Raises StageDied where it says nothing for too long.

        Silence is counted in waits, not by the clock, so that a run that was suspended has not been silent.
        """
        silent_ms, limit_ms = 0, self._policy.silence_limit_s * MS_PER_S
        while not done():
            heard = self._dialogue.heard
            self._hear(WAIT_MS)
            silent_ms = silent_ms + WAIT_MS if self._dialogue.heard == heard else 0
            if silent_ms > limit_ms:
                raise self._silent()

    def _silent(self) -> StageDied:
        limit_s = self._policy.silence_limit_s
        return StageDied("answer", f"silent for {limit_s:g} s; raise pipeline.timeout_s for slow models")

    def _hear(self, timeout_ms: int) -> None:
        """Passes on what the answer stage says, and its feedback to the allocator. Raises CancelledError."""
        self._control.check()
        for event in self._dialogue.hear(timeout_ms):
            self._emit(event)
        feedback = self._dialogue.take_feedback()
        if feedback is not None:
            self._allocator.apply_feedback(feedback)

    def _emit(self, event: Event) -> None:
        """Waits for the sinks, however slow they are, unless the run is cancelled."""
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


def _outage(lost: Lost) -> Outage:
    return Outage(
        frame_index=lost.frame_index,
        pts_s=lost.media_ns / NS_PER_S,
        reason=lost.reason,
        lasted_s=lost.lasted_s,
        attempts=lost.attempts,
    )
