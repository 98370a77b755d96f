"""Allocate: greeting, answer points, and the order of what it tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from arr_coc.allocator import AllocatorOptions, StreamAllocator
from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.updater import TextureUpdater
from stream.clock import FakeClock
from stream.errors import StageDied
from stream.events import Answer, Cut, Event, FrameReady, Notice, Skipped, unpack_event
from stream.messages import Answered, Cancel, Changed, Credit, End, Hello, Joined, Stopped, Tokens, WholeFrame
from stream.packets import frame_packet, specs_of, token_packet
from stream.sources.base import SkippedItem
from stream.stages.allocate import AllocatePolicy, AllocateStage, AllocateWiring, AnswerReach
from stream.stages.base import ALLOCATE_ANSWER, EVENTS, TEXTURE_ALLOCATE
from stream.triggers import TriggerRules
from tests.stage_runner import LIMIT_MS, StageRunner, expect, expect_whole, stage_runner

POLICY = AllocatePolicy(
    rules=TriggerRules(every_ns=10),
    query="what?",
    whole_frames=False,
    lockstep=True,
    live=False,
    drawn_source=False,
    silence_limit_s=60,
)


@pytest.fixture
def runner() -> Iterator[StageRunner]:
    with stage_runner() as made:
        yield made


class Fixture:
    """Plays the texture stage, the answer stage and the sinks."""

    def __init__(self, runner: StageRunner, policy: AllocatePolicy = POLICY) -> None:
        self.updater = TextureUpdater()
        self.hello: Hello | None = None
        self.sealed = False
        self.texture = runner.link(TEXTURE_ALLOCATE, bind=True)
        self.answer = runner.link(ALLOCATE_ANSWER)
        self.events = runner.transport.event_source(EVENTS)
        runner.closing(self.events)
        wiring = AllocateWiring(
            transport=runner.transport,
            answer=AnswerReach(ALLOCATE_ANSWER, None, self._seal),
            overlays=None,
            lease=self.updater.lease,
            make_allocator=self._make_allocator,
        )
        self.clock = FakeClock()
        self.stage = AllocateStage(policy, wiring, runner.control, self.clock)
        runner.start(self.stage)

    def _seal(self) -> None:
        self.sealed = True

    def _make_allocator(self, hello: Hello) -> StreamAllocator:
        self.hello = hello
        return StreamAllocator(AllocatorOptions(budget=4, levels=hello.knows_levels))

    def greet(self, known_world: str | None = None) -> None:
        embedding = np.zeros((2, 8), np.float32)
        self.answer.send(Joined())
        hello = Hello(
            model_id="m", knows_levels=False, known_world=known_world, query="what?", arrays=specs_of(embedding)
        )
        self.answer.send(hello, [embedding])

    def begin(self) -> None:
        self.greet()
        self.answer.send(Credit())
        expect(self.texture, Credit)

    def show(self, index: int, **fields: object) -> None:
        """Writes a frame into the texture and tells of it."""
        image = np.random.default_rng(index).integers(0, 256, (96, 128, 3), dtype=np.uint8)
        update = self.updater.process(FramePlanes("rgb", (image,)), FrameStamp(index, index, 1000 + index))
        stamp = update.change.stamp
        self.texture.send(Changed(stamp=stamp, texture_ms=0.5, dirty_share=1.0, **fields))  # type: ignore[arg-type]

    def reply(self, number: int, *, credit: bool = True) -> None:
        self.answer.send(
            Answered(
                answer=number, text="t", tokens_used=4, text_tokens=1, encode_ms=1.0, prefill_ms=1.0, decode_ms=1.0
            )
        )
        if credit:
            self.answer.send(Credit())

    def next_event(self) -> Event:
        data = self.events.receive(LIMIT_MS)
        assert data is not None
        return unpack_event(data)


def test_no_frame_is_wanted_before_the_model_is_known(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.answer.send(Joined())
    assert fixture.texture.receive(30) is None
    assert fixture.sealed
    fixture.greet()
    expect(fixture.texture, Credit)
    assert fixture.hello is not None
    assert fixture.hello.model_id == "m"


def test_in_lockstep_the_next_frame_waits_for_the_answer(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.begin()
    fixture.show(0)
    message, received = expect_whole(fixture.answer, Tokens)
    packet = token_packet(message, received.parts)
    assert len(packet.regions) == 4
    with fixture.updater.lease() as view:
        assert packet.stamp == view.stamp
        np.testing.assert_array_equal(packet.pixels, view.gather(packet.regions))
    assert fixture.texture.receive(30) is None
    fixture.reply(0)
    expect(fixture.texture, Credit)


def test_otherwise_frames_go_on_and_the_newest_one_is_sent_for_the_next_credit(runner: StageRunner) -> None:
    fixture = Fixture(runner, replace(POLICY, lockstep=False))
    fixture.begin()
    fixture.show(0)
    assert expect(fixture.answer, Tokens).stamp.frame_index == 0
    for index in (10, 20, 30):
        expect(fixture.texture, Credit)
        fixture.show(index)
    expect(fixture.texture, Credit)
    assert fixture.answer.receive(30) is None
    fixture.reply(0)
    assert expect(fixture.answer, Tokens).stamp.frame_index == 30
    fixture.texture.send(End(reason="finished"))
    fixture.reply(1)
    expect(fixture.answer, End)
    fixture.answer.send(Stopped())
    assert runner.join() is None
    assert fixture.stage.drops["answer.busy"] == 2


def test_a_frame_that_the_texture_no_longer_holds_is_not_sent(runner: StageRunner) -> None:
    fixture = Fixture(runner, replace(POLICY, lockstep=False))
    fixture.greet()
    expect(fixture.texture, Credit)
    fixture.show(0)
    expect(fixture.texture, Credit)
    image = np.zeros((96, 128, 3), np.uint8)
    update = fixture.updater.process(FramePlanes("rgb", (image,)), FrameStamp(1, 1, 1))
    fixture.answer.send(Credit())
    assert fixture.answer.receive(30) is None
    fixture.texture.send(Changed(stamp=update.change.stamp, texture_ms=0.0, dirty_share=1.0))
    assert expect(fixture.answer, Tokens).stamp.frame_index == 1


def test_live_triggers_count_capture_time(runner: StageRunner) -> None:
    fixture = Fixture(runner, replace(POLICY, live=True, rules=TriggerRules(every_ns=5)))
    fixture.begin()
    asked = []
    for index in (0, 4, 5):
        fixture.show(index)
        if (received := fixture.answer.receive(30)) is not None:
            asked.append(index)
            assert isinstance(received.message, Tokens)
            fixture.reply(len(asked) - 1)
        expect(fixture.texture, Credit)
    assert asked == [0, 5]


def test_what_happened_to_a_frame_comes_before_the_frame_and_its_answer(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.begin()
    lost = (SkippedItem("packet 3", "bad", None, 2), SkippedItem("packet 6", "bad", 500_000_000))
    fixture.show(8, skipped=lost, cut_score=0.5)
    expect(fixture.answer, Tokens)
    fixture.reply(0)
    events = [fixture.next_event() for _ in range(5)]
    assert [type(event) for event in events] == [Skipped, Skipped, Cut, FrameReady, Answer]
    assert events[0] == Skipped(frame_index=8, pts_s=8e-9, what="packet 3", reason="bad", count=2)
    assert events[1] == Skipped(frame_index=8, pts_s=0.5, what="packet 6", reason="bad")
    assert events[2] == Cut(frame_index=8, pts_s=8e-9, score=0.5)
    frame = events[3]
    assert isinstance(frame, FrameReady)
    assert (frame.frame_index, frame.capture_ns, frame.tokens, frame.tiles) == (8, 1008, 4, 12)
    assert (frame.texture_ms, frame.dirty_share, frame.slot) == (0.5, 1.0, None)


def test_whole_frames_are_sent_where_the_model_encodes_them(runner: StageRunner) -> None:
    fixture = Fixture(runner, replace(POLICY, whole_frames=True))
    fixture.begin()
    fixture.show(0)
    message, received = expect_whole(fixture.answer, WholeFrame)
    packet = frame_packet(message, received.parts)
    with fixture.updater.lease() as view:
        np.testing.assert_array_equal(packet.image, view.read(0))


def test_the_last_frame_is_answered_unless_it_was(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.begin()
    for index in (0, 3):
        fixture.show(index)
        if index == 0:
            expect(fixture.answer, Tokens)
            fixture.reply(0)
        expect(fixture.texture, Credit)
    fixture.texture.send(End(reason="finished"))
    assert expect(fixture.answer, Tokens).stamp.frame_index == 3
    fixture.reply(1)
    expect(fixture.answer, End)
    fixture.answer.send(Stopped())
    assert runner.join() is None


def test_after_ctrl_c_no_answer_is_asked_for(runner: StageRunner) -> None:
    fixture = Fixture(runner, replace(POLICY, lockstep=False))
    fixture.begin()
    for index in (0, 3):
        fixture.show(index)
        expect(fixture.texture, Credit)
    expect(fixture.answer, Tokens)
    fixture.texture.send(End(reason="interrupted"))
    assert fixture.answer.receive(30) is None
    fixture.reply(0)
    expect(fixture.answer, End)
    fixture.answer.send(Stopped())
    assert runner.join() is None


def test_a_source_without_a_frame_ends_without_an_answer(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.begin()
    lost = (SkippedItem("packet 1", "bad"),)
    fixture.texture.send(End(reason="finished", skipped=lost, made_pts=2, clamped_pts=1))
    expect(fixture.answer, End)
    fixture.answer.send(Stopped())
    assert runner.join() is None
    assert fixture.next_event() == Skipped(frame_index=0, pts_s=0.0, what="packet 1", reason="bad")
    notice = fixture.next_event()
    assert isinstance(notice, Notice)
    assert notice.message == "repaired 3 frame times from the frame rate (2 missing, 1 going back)"


def test_silence_is_counted_while_something_is_awaited(runner: StageRunner) -> None:
    fixture = Fixture(runner, replace(POLICY, silence_limit_s=0.1))
    fixture.begin()
    fixture.show(0)
    expect(fixture.answer, Tokens)
    failure = runner.join()
    assert isinstance(failure, StageDied)
    assert str(failure) == "the answer stage died: silent for 0.1 s; raise pipeline.timeout_s for slow models"
    expect(fixture.answer, Cancel)


def test_an_answer_that_never_comes_is_noticed_while_frames_go_on(runner: StageRunner) -> None:
    fixture = Fixture(runner, replace(POLICY, lockstep=False))
    fixture.begin()
    fixture.clock.advance(500 * 1_000_000_000)
    fixture.show(0)
    expect(fixture.answer, Tokens)
    expect(fixture.texture, Credit)
    fixture.clock.advance(59 * 1_000_000_000)
    fixture.show(1)
    expect(fixture.texture, Credit)
    fixture.clock.advance(2 * 1_000_000_000)
    failure = runner.join()
    assert isinstance(failure, StageDied)
    assert "silent for 60 s" in str(failure)


def test_cancelling_tells_the_answer_stage(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.begin()
    runner.control.cancel()
    assert runner.join() is None
    expect(fixture.answer, Cancel)
