"""Allocate: chooses tokens for every frame, decides when to speak, and holds the conversation with the answer stage.

Every event of the run leaves through this stage, so that events have one order: those of frames up to n, then answer n.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass

import numpy as np

from arr_coc.allocator import FrameAllocation, StreamAllocator
from arr_coc.errors import StoreError
from arr_coc.ops.view import TextureView
from arr_coc.packets import frame_packet_from, packet_from
from arr_coc.types import NS_PER_S
from stream.all_tokens import all_tokens
from stream.clock import Clock
from stream.dialogue import NS_PER_MS, Dialogue, Manners
from stream.errors import ConnectionRefused, StageDied
from stream.events import Cut, Event, FrameMap, FrameReady, Notice, Outage, Skipped, pack_event
from stream.journal import Journal
from stream.messages import Changed, Credit, End, Hello, Lost
from stream.overlay import Overlay
from stream.slots import Slots
from stream.snapshot import SnapshotWriter
from stream.sources.base import SkippedItem
from stream.stages.base import EVENTS, TEXTURE_ALLOCATE, WAIT_MS, Control, describe
from stream.transport import Link, Transport, Waiter
from stream.transport.curve import ClientCurve
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

    `whole_frames`: the answer stage encodes whole frames, not tokens. `with_maps`: frames are told with their relevance
    and regions. `rejoin`: an answer stage that is lost has a successor. `silence_limit_s`: how long it may say nothing
    while an answer is due; `reach_limit_s`: how long it may take to be met.
    """

    rules: TriggerRules
    query: str
    whole_frames: bool
    lockstep: bool
    live: bool
    drawn_source: bool
    silence_limit_s: float
    with_maps: bool = False
    rejoin: bool = False
    reach_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerReach:
    """How the answer stage is reached.

    `snapshot` is the memory shared with it, where it is a process of this machine. `supervised`: somebody notices its
    death. `hung` is called where it says nothing for too long and its successor is looked for.
    """

    endpoint: str
    curve: ClientCurve | None = None
    snapshot: SnapshotWriter | None = None
    supervised: bool = True
    hung: Callable[[], None] = lambda: None


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
    journal: Journal | None = None


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
        self._hello: Hello | None = None
        self._dialogue: Dialogue | None = None
        self._failures = 0

    @property
    def drops(self) -> dict[str, int]:
        """Answer points that came while another one still waited, answers that were lost, frames without allocation."""
        lost = 0 if self._dialogue is None else self._dialogue.given_up
        return {"answer.busy": self._triggers.missed, "answer.lost": lost, "allocate.failed": self._failures}

    def run(self) -> None:
        transport, check = self._wiring.transport, self._control.check
        with ExitStack() as stack:
            self._texture = stack.enter_context(closing(transport.link(TEXTURE_ALLOCATE, check=check)))
            self._events = stack.enter_context(closing(transport.event_sink(EVENTS)))
            self._talk = stack.enter_context(closing(self._begin_dialogue()))
            try:
                self._greet()
                self._finish(self._follow())
            except Exception:
                self._talk.cancel()
                raise

    def _begin_dialogue(self) -> Dialogue:
        policy, wiring, reach = self._policy, self._wiring, self._wiring.answer
        manners = Manners(
            rejoin=policy.rejoin,
            repeat=policy.lockstep,
            supervised=reach.supervised,
            snapshot=reach.snapshot,
            journal=wiring.journal,
        )
        watched = not reach.endpoint.startswith("inproc://")

        def connect() -> Link:
            check = self._control.check
            return wiring.transport.link(reach.endpoint, check=check, curve=reach.curve, watched=watched)

        self._dialogue = Dialogue(connect, self._clock, policy.query, manners)
        return self._dialogue

    def _greet(self) -> None:
        """Waits for the answer stage, and for the allocator that suits its model."""
        limit_s, waited_ms = self._policy.reach_limit_s, 0
        while not self._talk.ready:
            self._hear(WAIT_MS)
            waited_ms += WAIT_MS
            if limit_s is not None and waited_ms > limit_s * MS_PER_S and not self._talk.link.connected:
                raise ConnectionRefused(
                    f"no answer stage at {self._wiring.answer.endpoint} within {limit_s:g} s; start one there with "
                    "`serve-answers`, and check address, firewall and keys"
                )

    def _meet(self, hello: Hello) -> None:
        """The answer stage has greeted: the allocator must suit its model."""
        if hello != self._hello:
            self._allocator = self._wiring.make_allocator(hello)
        if self._hello is None and hello.known_world is not None and not self._policy.drawn_source:
            self._emit(Notice(code="model-world", message=MODEL_WORLD.format(world=hello.known_world)))
        self._hello = hello

    def _follow(self) -> End:
        """Takes frames, and speaks where that is due, until the last one; returns what came after it."""
        self._texture.offer(Credit())
        waited_for, either = self._talk.link, Waiter(self._texture, self._talk.link)
        while True:
            if waited_for is not self._talk.link:
                waited_for, either = self._talk.link, Waiter(self._texture, self._talk.link)
            either.wait(WAIT_MS)
            self._hear(0)
            self._mind_silence(self._talk.silence_s)
            self._speak_if_due()
            received = self._texture.receive()
            if received is None:
                continue
            if isinstance(received.message, End):
                return received.message
            if isinstance(received.message, Lost):
                self._emit(_outage(received.message))
            elif isinstance(received.message, Changed):
                self._take(received.message)
                self._texture.offer(Credit())

    def _speak_if_due(self) -> None:
        if self._triggers.due and not self._talk.busy:
            self._talk.want()
            if self._talk.wants_packet:
                self._speak()

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
                map=_map_of(frame) if self._policy.with_maps else None,
            )
        )
        time_ns = stamp.capture_ns if self._policy.live else stamp.media_ns
        self._triggers.observe(time_ns, change=frame.change_since, cut=changed.cut_score is not None)
        if self._policy.lockstep:
            self._speak_now()
        else:
            self._speak_if_due()

    def _speak_now(self) -> None:
        """Where an answer is due: asks for it, and waits until it has been given."""
        if not self._triggers.due:
            return
        assert self._last is not None
        if self._talk.recall(self._last.stamp):
            self._triggers.fire()
            self._allocator.mark_answered()
        else:
            self._await(lambda: self._wanted())
            self._speak()
        self._await(lambda: not self._talk.busy)

    def _wanted(self) -> bool:
        self._talk.want()
        return self._talk.wants_packet

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
            self._talk.ask(packet, self._triggers.fire())
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
            self._speak_now()
        self._await(lambda: not self._talk.busy)
        self._talk.leave()

    def _await(self, done: Callable[[], bool]) -> None:
        """Hears the answer stage until `done`. Raises StageDied where it says nothing for too long.

        Silence is counted in waits, not by the clock, so that a run that was suspended has not been silent.
        """
        silent_ms = 0
        while not done():
            heard = self._talk.heard
            self._hear(WAIT_MS)
            silent_ms = silent_ms + WAIT_MS if self._talk.ready and self._talk.heard == heard else 0
            self._mind_silence(silent_ms / MS_PER_S)

    def _mind_silence(self, silence_s: float) -> None:
        """Gives up an answer stage that says nothing for too long."""
        limit_s = self._policy.silence_limit_s
        if silence_s <= limit_s:
            return
        if not self._policy.rejoin:
            raise StageDied("answer", f"silent for {limit_s:g} s; raise pipeline.timeout_s for slow models")
        self._wiring.answer.hung()
        self._talk.lose()

    def _hear(self, timeout_ms: int) -> None:
        """Passes on what the answer stage says, and what it teaches to the allocator. Raises CancelledError."""
        self._control.check()
        talk = self._talk
        question = self._control.take_question()
        if question is not None:
            talk.put_question(question)
        for event in talk.hear(timeout_ms):
            self._emit(event)
        embedding = talk.take_embedding()
        if embedding is not None:
            assert talk.hello is not None
            asked_before = self._hello is not None
            self._meet(talk.hello)
            self._allocator.set_query(embedding)
            if asked_before:
                self._triggers.ask()
        feedback = talk.take_feedback()
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


def _map_of(frame: FrameAllocation) -> FrameMap:
    relevance, regions = frame.relevance.numpy(), frame.allocation.regions.numpy()
    return FrameMap(
        rows=relevance.shape[0],
        cols=relevance.shape[1],
        relevance=np.rint(np.clip(relevance, 0, 1) * 255).astype(np.uint8).tobytes(),
        regions=regions.astype("<i2").tobytes(),
    )


def _outage(lost: Lost) -> Outage:
    return Outage(
        frame_index=lost.frame_index,
        pts_s=lost.media_ns / NS_PER_S,
        reason=lost.reason,
        lasted_s=lost.lasted_s,
        attempts=lost.attempts,
    )
