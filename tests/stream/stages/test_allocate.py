"""Allocate: greeting, answer points, and the order of its events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import Mock

import cv2
import numpy as np
import pytest
import torch
from msgspec import structs

from arr_coc.allocation import frame as selection
from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import Selection, SelectionInputs
from arr_coc.allocation.group import GroupOptions
from arr_coc.allocation.zones import ZoneOptions
from arr_coc.backends.cuda.view import CudaView
from arr_coc.errors import StoreError
from arr_coc.types import (
    NS_PER_MS,
    NS_PER_S,
    FramePlanes,
    FrameStamp,
    GroupPlace,
    QueryEmbedding,
    TileMotion,
    TokenPacket,
    Work,
)
from arr_coc.video.texture_updater import TextureUpdater
from stream.answer.connection import AnswerEndpoint
from stream.answer.request import ClientOptions
from stream.answer.scheduler import AnswerScheduler, SchedulePolicy
from stream.config import AnswerConfig
from stream.control import Ask
from stream.errors import StageDied
from stream.events import (
    STORE_LOST,
    Answer,
    AskedPicture,
    Cut,
    Event,
    Explanation,
    FrameReady,
    Notice,
    Outage,
    PictureChanged,
    QueryChanged,
    Skipped,
    unpack_event,
)
from stream.extensions.shadow.checks import ShadowChecks
from stream.extensions.shadow.section import ShadowSection
from stream.media import AllocationOverlay, FragmentBytes, SkippedItem
from stream.protocol.buffers import SlotTable
from stream.protocol.codec import TakePixels, frame_packet, specs_of, token_packet
from stream.protocol.device_pixels import LocalPixels
from stream.protocol.messages import (
    AnswerReply,
    Cancel,
    Connect,
    Credit,
    Disconnect,
    Embed,
    Embedded,
    End,
    ErrorReply,
    FramePacketMessage,
    IdleGrant,
    IdlePacketMessage,
    IdleReply,
    IdleRequest,
    Message,
    ServerHello,
    SourceLost,
    TextureUpdated,
    TokenPacketMessage,
    TurnGrant,
    TurnRequest,
)
from stream.stages import newest_frame
from stream.stages.allocate import AllocateContext, AllocateStage
from stream.stages.base import ALLOCATE_ANSWER, EVENTS, TEXTURE_ALLOCATE, BudgetSetter, RunBudget
from stream.stages.frame_tap import FrameTap, TapPolicy
from stream.stages.newest_frame import AllocatePolicy, FrameParts
from stream.transport import Envelope
from tests.cuda_on_cpu.machine import LAUNCH_FAILED, CpuMachine
from tests.support.clock import FakeClock
from tests.support.network import LIMIT_MS
from tests.support.runs import StageRunner, expect, stage_runner

POLICY = AllocatePolicy(live=False, whole_frames=False)
NO_VIEWERS = TapPolicy()
SCHEDULE = SchedulePolicy(
    answer=AnswerConfig(every_s=1e-8), query="what?", lockstep=True, source_is_drawn=False, silence_limit_s=60
)
NEWEST = replace(SCHEDULE, lockstep=False)
RESEND = ClientOptions(resend_after_loss=True)

M = TypeVar("M", bound=Message)
E = TypeVar("E", bound=Event)


@pytest.fixture
def runner() -> Iterator[StageRunner]:
    with stage_runner() as stages:
        yield stages


class Fixture:
    """Plays the texture stage, the answer stage and the sinks."""

    def __init__(
        self,
        runner: StageRunner,
        policy: AllocatePolicy = POLICY,
        schedule: SchedulePolicy = SCHEDULE,
        client: ClientOptions = RESEND,
        *,
        tap: TapPolicy = NO_VIEWERS,
        overlays: SlotTable[AllocationOverlay] | None = None,
        target: BudgetSetter | None = None,
        pixels: LocalPixels | None = None,
        on_device: bool = False,
        memory: GroupOptions | None = None,
        zones: ZoneOptions | None = None,
    ) -> None:
        self.updater, self.memory, self.zones = TextureUpdater(), memory, zones
        self.motions: SlotTable[TileMotion] = SlotTable(2)
        self.fragments: SlotTable[FragmentBytes] = SlotTable(100, len)
        self.on_device, self.pixels = on_device, pixels
        client = replace(client, pixels=pixels)
        self.hello: ServerHello | None = None
        self.queries: list[str] = []
        self.turn = 0
        self.texture = runner.link(TEXTURE_ALLOCATE, bind=True)
        self.answers = runner.transport.server_link(ALLOCATE_ANSWER)
        runner.closing(self.answers)
        self.events = runner.transport.event_receiver(EVENTS)
        runner.closing(self.events)
        self.clock = FakeClock()
        context = AllocateContext(
            transport=runner.transport,
            make_scheduler=lambda observer: AnswerScheduler(
                schedule, AnswerEndpoint(ALLOCATE_ANSWER), client, observer, runner.control, self.clock
            ),
            frame=FrameParts(
                tap=FrameTap(tap, overlays, (), runner.control.check),
                lease=self.updater.lease,
                make_allocator=self._make_allocator,
                budget=RunBudget([] if target is None else [target]),
            ),
            motions=self.motions,
            fragments=self.fragments,
        )
        self.stage = AllocateStage(policy, context, runner.control, self.clock)
        runner.start(self.stage)

    def _make_allocator(self, hello: ServerHello) -> StreamAllocator:
        self.hello = hello
        options = AllocatorOptions(budget=4, on_device=self.on_device, memory=self.memory, zones=self.zones)
        allocator = StreamAllocator(options)
        set_query = allocator.set_query

        def noting(embedding: QueryEmbedding) -> None:
            self.queries.append(embedding.text)
            set_query(embedding)

        allocator.set_query = noting  # type: ignore[method-assign]
        return allocator

    def receive_whole(self, kind: type[M], timeout_ms: int = LIMIT_MS) -> tuple[M, Envelope]:
        """The next message at the answer stage, which must be of this kind."""
        arrived = self.answers.receive(timeout_ms)
        assert arrived is not None, f"no {kind.__name__} came"
        self.client, received = arrived
        assert isinstance(received.message, kind), f"{received.message} came"
        return received.message, received

    def receive(self, kind: type[M]) -> M:
        return self.receive_whole(kind)[0]

    def say(self, message: Message, *arrays: np.ndarray) -> None:
        """Sends it as the answer stage, to the last client."""
        assert self.answers.send(self.client, message, arrays)

    def greet(self, model_id: str = "m") -> None:
        self.receive(Connect)
        takes = self.pixels is not None
        tokens = 0 if self.memory is None else self.memory.tokens
        hello = ServerHello(model_id=model_id, knows_levels=False, known_world=None, takes_device_pixels=takes)
        self.say(structs.replace(hello, memory_tokens=tokens, reads_ahead=tokens > 0))
        self.embed("what?")

    def embed(self, text: str) -> None:
        assert self.receive(Embed).text == text
        embedding = np.zeros((2, 8), np.float32)
        self.say(Embedded(text=text, is_check=False, model_id="m", arrays=specs_of(embedding)), embedding)

    def begin(self) -> Fixture:
        self.greet()
        self.credit()
        return self

    def credit(self) -> None:
        """The stage waits for another frame."""
        expect(self.texture, Credit)

    def grant(self, place: GroupPlace | None = None) -> None:
        """A turn, which was wanted."""
        self.receive(TurnRequest)
        self.turn += 1
        self.say(TurnGrant(turn=self.turn, kept=place))

    def packet(self, kind: type[M], place: GroupPlace | None = None) -> tuple[M, Envelope]:
        """The packet that is sent for the next turn."""
        self.grant(place)
        return self.receive_whole(kind)

    def tokens(self, take: TakePixels | None = None) -> tuple[TokenPacket, Envelope]:
        """The tokens that are sent for the next turn."""
        message, received = self.packet(TokenPacketMessage)
        assert message.turn == self.turn
        return token_packet(message, received.parts, take), received

    def frame_asked(self, index: int | None = None) -> int:
        """The frame whose packet is sent for the next turn; shows it before, if it is given."""
        if index is not None:
            self.show(index)
        return self.packet(TokenPacketMessage)[0].stamp.frame_index

    def pass_time(self, runner: StageRunner) -> None:
        """Half a second after the other, until the stage has had enough."""
        for _ in range(1000):
            if runner.control.failure is not None:
                return
            self.clock.advance(NS_PER_S // 2)
            time.sleep(0.01)

    def reply(self, number: int) -> None:
        self.say(AnswerReply(answer=number, text="t", work=Work(4, 1, 1.0, 1.0, 1.0)))

    def show(
        self,
        index: int,
        motion: TileMotion | None = None,
        *,
        captured_ns: int | None = None,
        seed: int | None = None,
        **fields: object,
    ) -> None:
        """Writes a frame into the texture and reports it, with its motion."""
        seed = index if seed is None else seed
        image = np.random.default_rng(seed).integers(0, 256, (96, 128, 3), dtype=np.uint8)
        captured_ns = 1000 + index if captured_ns is None else captured_ns
        update = self.updater.process(FramePlanes("rgb", (image,)), FrameStamp(index, index, captured_ns))
        stamp = update.change.stamp
        message = TextureUpdated(
            stamp=stamp,
            texture_ms=0.5,
            dirty_share=1.0,
            motion_slot=None if motion is None else self.motions.put(motion),
            **fields,  # type: ignore[arg-type]
        )
        self.texture.send(message)

    def next_event(self) -> Event:
        data = self.events.receive(LIMIT_MS)
        assert data is not None
        return unpack_event(data)

    def next_of(self, kind: type[E]) -> E:
        """The next event of this kind; those before it are passed over."""
        while not isinstance(event := self.next_event(), kind):
            pass
        return event

    def failure(self, runner: StageRunner) -> str:
        failure = runner.join()
        assert isinstance(failure, StageDied)
        return str(failure)


def of_kind(events: Iterable[Event], kind: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def seed_of(picture: AskedPicture) -> int:
    """The frame that a picture shows: the one whose pixels are nearest."""
    pixels = cv2.cvtColor(cv2.imdecode(np.frombuffer(picture.jpeg, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    frames = [np.random.default_rng(index).integers(0, 256, (96, 128, 3), dtype=np.uint8) for index in range(8)]
    return int(np.argmin([np.abs(pixels.astype(int) - frame).mean() for frame in frames]))


def test_a_picture_is_of_the_frame_that_is_asked_about_though_the_texture_has_a_newer_one(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = Fixture(runner, POLICY, NEWEST, tap=TapPolicy(answer_pictures=True)).begin()
    client = fixture.stage._scheduler.client
    send = client.send_request

    def send_late(*arguments: Any, **options: Any) -> None:
        send(*arguments, **options)
        newer = np.random.default_rng(7).integers(0, 256, (96, 128, 3), dtype=np.uint8)
        fixture.updater.process(FramePlanes("rgb", (newer,)), FrameStamp(7, 7, 1007))

    monkeypatch.setattr(client, "send_request", send_late)
    assert fixture.frame_asked(2) == 2
    events = [fixture.next_event(), fixture.next_event()]
    (picture,) = of_kind(events, AskedPicture)
    assert (picture.frame_index, picture.asked, seed_of(picture)) == (2, True, 2)
    assert picture.map is not None


def test_a_picture_of_every_other_frame_is_sent_whether_or_not_it_is_asked_about(runner: StageRunner) -> None:
    fixture = Fixture(runner, POLICY, NEWEST, tap=TapPolicy(answer_pictures=True, interval_frames=2)).begin()
    for index in (0, 2, 3, 5):
        fixture.show(index)
        fixture.credit()
    events: list[Event] = []
    while len(of_kind(events, FrameReady)) < 4:
        events.append(fixture.next_event())
    pictures = of_kind(events, AskedPicture)
    assert [(picture.frame_index, picture.asked, seed_of(picture)) for picture in pictures] == [
        (0, False, 0),
        (3, False, 3),
    ]
    assert all(picture.map is not None and len(picture.map.regions) == 4 * 6 for picture in pictures)


def test_no_frame_is_wanted_before_the_model_is_known(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    assert fixture.texture.receive(30) is None
    fixture.greet()
    fixture.credit()
    assert fixture.hello is not None
    assert fixture.hello.model_id == "m"
    assert fixture.queries == ["what?"]


def test_in_lockstep_the_next_frame_waits_for_the_answer(runner: StageRunner) -> None:
    fixture = Fixture(runner).begin()
    fixture.show(0)
    packet, _ = fixture.tokens()
    assert len(packet.regions) == 4
    with fixture.updater.lease() as view:
        assert packet.stamp == view.stamp
        np.testing.assert_array_equal(packet.pixels, view.gather(packet.regions))
    assert fixture.texture.receive(30) is None
    fixture.reply(0)
    fixture.credit()


def test_on_a_device_the_pixels_stay_there(runner: StageRunner, cuda_on_cpu: CpuMachine) -> None:
    pixels = LocalPixels()
    fixture = Fixture(runner, pixels=pixels, on_device=True).begin()
    fixture.show(0)
    with cuda_on_cpu.calls() as calls:
        packet, received = fixture.tokens(pixels.take)
    assert len(received.parts) == 2, "regions and relevance, and no pixels"
    assert isinstance(packet.pixels, torch.Tensor)
    assert not {"cuMemcpyDtoHAsync", "cuLaunchKernel fetch_fine", "cuLaunchKernel fetch_coarse"} & set(calls)
    with fixture.updater.lease() as view:
        assert isinstance(view, CudaView)
        np.testing.assert_array_equal(packet.host_pixels, view.gather(packet.regions))
    frame = fixture.next_of(FrameReady)
    assert (frame.tokens, frame.jitter_share) == (4, None)


def groups_of(fixture: Fixture, frames: int) -> list[tuple[GroupPlace | None, int]]:
    """Place and number of regions of the packets of `frames` frames, in order, of a server that keeps them."""
    packets: list[tuple[GroupPlace | None, int]] = []
    place = None
    for index in range(frames):
        fixture.show(10 * index, seed=0)
        message, received = fixture.packet(TokenPacketMessage, place)
        assert message.earlier == ()
        count = len(token_packet(message, received.parts).regions)
        packets.append((message.place, count))
        assert message.place is not None
        place = GroupPlace(message.place.group, message.place.frame + bool(count))
        fixture.reply(index)
        expect(fixture.texture, Credit)
    return packets


@pytest.mark.parametrize("on_device", [False, True])
def test_a_model_with_memory_gets_what_is_new(runner: StageRunner, cuda_on_cpu: CpuMachine, on_device: bool) -> None:
    policy = replace(POLICY, with_reasons=True)
    fixture = Fixture(runner, policy, client=ClientOptions(), memory=GroupOptions(patch=True), on_device=on_device)
    fixture.begin()
    assert groups_of(fixture, 4) == [(GroupPlace(1, 0), 4), *[(GroupPlace(1, 1), 0)] * 3]
    events = list(iter_events(fixture))
    answers = of_kind(events, Answer)
    assert [(answer.group, answer.began, answer.superseded_tokens) for answer in answers] == [
        (1, "first", 0),
        *[(1, "", 0)] * 3,
    ]
    reasons = of_kind(events, Explanation)
    assert [len(explanation.tokens) for explanation in reasons] == [4] * 4
    states = [[token.state for token in explanation.memory or ()] for explanation in reasons]
    assert states == [["new"] * 4, *[["shown"] * 4] * 3]
    assert [frame.tokens for frame in of_kind(events, FrameReady)] == [4] * 4, "what frames cost is counted as ever"


def test_between_two_answers_the_model_reads_the_rest_of_the_frame_ahead(runner: StageRunner) -> None:
    """Until it has all of it: 12 tiles, and an overview of one region."""
    answer = AnswerConfig(every_s=10)
    schedule = replace(SCHEDULE, answer=answer, idle_share=0.25, memory=True)
    fixture = Fixture(runner, schedule=schedule, client=ClientOptions(), memory=GroupOptions())
    fixture.begin()
    groups_of(fixture, 1)
    place, packets = GroupPlace(1, 1), []
    for number in range(1, 3):
        fixture.show(number * NS_PER_S, seed=0)
        assert fixture.receive(IdleRequest).in_lockstep
        fixture.say(IdleGrant(number=number, tokens=1000, kept=place))
        message, received = fixture.receive_whole(IdlePacketMessage)
        packet = token_packet(message, received.parts)
        packets.append((message.place, len(packet.regions), len(packet.superseded)))
        assert message.stamp.frame_index == number * NS_PER_S
        place = replace(message.place, frame=message.place.frame + 1)
        rebuilt = not message.place.frame
        fixture.say(IdleReply(number=number, tokens=packets[-1][1], took_ms=1.0, rebuilt=rebuilt, kept=place))
        fixture.credit()
    assert packets == [(GroupPlace(1, 1), 1 + 8, 0), (GroupPlace(2, 0), 12, 0)]
    for number in range(3, 6):
        fixture.show(number * NS_PER_S, seed=0)
        fixture.credit()


def test_a_group_that_the_server_lost_begins_anew(runner: StageRunner) -> None:
    fixture = Fixture(runner, client=ClientOptions(), memory=GroupOptions(patch=True))
    fixture.begin()
    groups_of(fixture, 2)
    fixture.show(20, seed=0)
    message, _ = fixture.packet(TokenPacketMessage, None)
    assert message.place == GroupPlace(2, 0)
    fixture.reply(2)
    expect(fixture.texture, Credit)
    assert [answer.began for answer in of_kind(list(iter_events(fixture)), Answer)] == ["first", "", "lost"]


def test_an_allocation_that_fails_begins_a_group(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise ArithmeticError("the spoon is bent")

    fixture = Fixture(runner, client=ClientOptions(), memory=GroupOptions(patch=True))
    fixture.begin()
    groups_of(fixture, 1)
    monkeypatch.setattr(StreamAllocator, "observe", fail)
    fixture.show(10, seed=0)
    message, received = fixture.packet(TokenPacketMessage, GroupPlace(1, 1))
    assert (message.place, len(token_packet(message, received.parts).regions)) == (GroupPlace(2, 0), 12)


def test_without_a_memory_packets_have_no_place(runner: StageRunner) -> None:
    fixture = Fixture(runner)
    fixture.begin()
    fixture.show(0)
    assert fixture.packet(TokenPacketMessage)[0].place is None


def test_overlays_show_the_group_as_it_would_be_with_the_frame(runner: StageRunner) -> None:
    overlays: SlotTable[AllocationOverlay] = SlotTable(8)
    fixture = Fixture(runner, client=ClientOptions(), memory=GroupOptions(patch=True), overlays=overlays)
    fixture.begin()
    groups_of(fixture, 2)
    slots = [event.slot for event in of_kind(list(iter_events(fixture)), FrameReady)]
    assert None not in slots
    first, second = (overlays.take(slot) for slot in slots if slot is not None)
    assert (first.states, second.states) == (("new",) * 4, ("shown",) * 4)
    assert len(second.regions) == 4


def test_without_shared_memory_the_pixels_come_in_the_message(runner: StageRunner, cuda_on_cpu: CpuMachine) -> None:
    fixture = Fixture(runner, on_device=True).begin()
    fixture.show(0)
    packet, _ = fixture.tokens()
    with fixture.updater.lease() as view:
        np.testing.assert_array_equal(packet.host_pixels, view.gather(packet.regions))


@pytest.mark.parametrize("kernel", ["tile_channels", "gather_bytes"])
def test_a_device_that_is_lost_in_mid_frame_costs_no_answer(
    runner: StageRunner, cuda_on_cpu: CpuMachine, kernel: str
) -> None:
    """While the frame is scored, and while its pixels are gathered: the CPU store takes over with the same frame."""
    pixels = LocalPixels()
    fixture = Fixture(runner, pixels=pixels, on_device=True).begin()
    cuda_on_cpu.fail(f"cuLaunchKernel {kernel}", LAUNCH_FAILED)
    fixture.show(0)
    packet, _ = fixture.tokens(pixels.take)
    assert isinstance(packet.pixels, np.ndarray)
    with fixture.updater.lease() as view:
        assert not isinstance(view, CudaView)
        np.testing.assert_array_equal(packet.pixels, view.gather(packet.regions))
    fixture.reply(0)
    fixture.credit()
    assert fixture.frame_asked(10) == 10
    assert any(isinstance(event, Notice) and event.code == STORE_LOST for event in iter_events(fixture))


def iter_events(fixture: Fixture) -> Iterator[Event]:
    """The events that have come."""
    while (data := fixture.events.receive(100)) is not None:
        yield unpack_event(data)


def test_otherwise_frames_go_on_and_the_newest_one_is_sent_for_the_next_turn(runner: StageRunner) -> None:
    fixture = Fixture(runner, schedule=NEWEST).begin()
    assert fixture.frame_asked(0) == 0
    for index in (10, 20, 30):
        fixture.credit()
        fixture.show(index)
    fixture.credit()
    assert fixture.answers.receive(30) is None
    fixture.reply(0)
    assert fixture.frame_asked() == 30
    fixture.texture.send(End(reason="finished"))
    fixture.reply(1)
    fixture.receive(Disconnect)
    assert runner.join() is None
    assert fixture.stage.drops == {"answer.busy": 2, "answer.lost": 0, "answer.cancelled": 0, "allocate.failed": 0}


def test_a_frame_that_the_texture_no_longer_holds_is_not_sent(runner: StageRunner) -> None:
    fixture = Fixture(runner, schedule=NEWEST).begin()
    fixture.show(0)
    fixture.credit()
    image = np.zeros((96, 128, 3), np.uint8)
    update = fixture.updater.process(FramePlanes("rgb", (image,)), FrameStamp(1, 1, 1))
    fixture.grant()
    assert fixture.answers.receive(30) is None
    fixture.texture.send(TextureUpdated(stamp=update.change.stamp, texture_ms=0.0, dirty_share=1.0))
    assert fixture.receive(TokenPacketMessage).stamp.frame_index == 1


def test_live_triggers_count_capture_time(runner: StageRunner) -> None:
    fixture = Fixture(runner, replace(POLICY, live=True), replace(SCHEDULE, answer=AnswerConfig(every_s=5e-9))).begin()
    frames = []
    for index in (0, 4, 5):
        fixture.show(index)
        if index != 4:
            frames.append(fixture.frame_asked())
            fixture.reply(len(frames) - 1)
        fixture.credit()
        assert fixture.answers.receive(0) is None
    assert frames == [0, 5]


def test_the_server_is_heard_at_intervals_while_frames_come_without_pause(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture, frames, heard_at = Fixture(runner, schedule=NEWEST), 20, set()
    updates: list[TextureUpdated] = []
    scheduler, process_frame = fixture.stage._scheduler, fixture.stage._process_frame
    now_ns, process_replies = fixture.clock.now_ns, scheduler.process_replies

    def tick() -> int:
        fixture.clock.advance(NS_PER_MS)
        return now_ns()

    def noting(timeout_ms: int) -> None:
        heard_at.add(len(updates))
        process_replies(timeout_ms)

    def counting(update: TextureUpdated, motion: TileMotion | None) -> None:
        updates.append(update)
        process_frame(update, motion)

    for index in range(frames):
        fixture.show(index)
    monkeypatch.setattr(fixture.clock, "now_ns", tick)
    monkeypatch.setattr(scheduler, "process_replies", noting)
    monkeypatch.setattr(fixture.stage, "_process_frame", counting)
    fixture.begin()
    indices: list[int] = []
    while len(indices) < frames:
        event = fixture.next_event()
        indices += [event.frame_index] if isinstance(event, FrameReady) else []
    assert 2 < len(heard_at) < frames


def test_a_frame_is_held_as_long_as_the_slowest_one_took(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = Fixture(runner, replace(POLICY, even_intervals=True))
    fake_time = SimpleNamespace(sleep=lambda wait_s: fixture.clock.advance(round(wait_s * NS_PER_S)))
    monkeypatch.setattr(newest_frame, "time", fake_time)
    fixture.begin()
    frames = []
    for index, (captured_ms, received_ms) in enumerate([(0, 8), (100, 103), (200, 208)]):
        fixture.clock.advance(received_ms * NS_PER_MS - fixture.clock.now_ns())
        fixture.show(index, captured_ns=captured_ms * NS_PER_MS)
        frames.append(fixture.next_of(FrameReady))
        if index == 0:
            fixture.frame_asked()
            fixture.reply(0)
        fixture.credit()
    assert [frame.ready_ns // NS_PER_MS for frame in frames] == [8, 108, 208]
    assert [frame.held_ms for frame in frames] == [0, 5, 0]


def test_events_of_a_frame_come_before_the_frame_and_its_answer(runner: StageRunner) -> None:
    fixture = Fixture(runner).begin()
    losses = (SkippedItem("packet 3", "bad", None, 2), SkippedItem("packet 6", "bad", 500_000_000))
    fixture.show(8, skipped=losses, cut_score=0.5)
    assert fixture.frame_asked() == 8
    fixture.reply(0)
    events = [fixture.next_event() for _ in range(5)]
    assert [type(event) for event in events] == [Skipped, Skipped, Cut, FrameReady, Answer]
    assert events[0] == Skipped(frame_index=8, pts_s=8e-9, what="packet 3", reason="bad", count=2)
    assert events[1] == Skipped(frame_index=8, pts_s=0.5, what="packet 6", reason="bad")
    assert events[2] == Cut(frame_index=8, pts_s=8e-9, score=0.5)
    (frame,) = of_kind(events, FrameReady)
    assert (frame.frame_index, frame.capture_ns, frame.tokens, frame.tiles) == (8, 1008, 4, 12)
    assert (frame.texture_ms, frame.dirty_share, frame.slot, frame.map) == (0.5, 1.0, None, None)


def test_a_frame_has_the_distance_that_its_tiles_surely_moved(runner: StageRunner) -> None:
    fixture = Fixture(runner).begin()
    right = np.zeros((3, 4), np.float32)
    right[0], right[1], right[2, 0] = 6, 2, 0.1
    confidence = np.ones((3, 4), np.float32)
    confidence[1] = 0.1
    motion = TileMotion(np.zeros_like(right), right, confidence)
    fixture.show(0)
    fixture.frame_asked()
    fixture.reply(0)
    fixture.show(1, motion)
    frames = [fixture.next_of(FrameReady) for _ in range(2)]
    assert [(frame.motion_px, frame.moving_share) for frame in frames] == [(0, 0), (6, pytest.approx(1 / 3))]


def test_a_change_of_size_is_reported_and_answered_at_once_but_at_the_beginning(runner: StageRunner) -> None:
    fixture = Fixture(runner, schedule=replace(SCHEDULE, answer=AnswerConfig(every_s=None))).begin()
    fixture.show(0, discontinuity="resolution")
    assert fixture.frame_asked() == 0
    fixture.reply(0)
    for index, discontinuity in ((1, "resolution"), (2, "reconnect")):
        fixture.show(index, discontinuity=discontinuity)
        assert fixture.frame_asked() == index
        fixture.reply(index)
    events = [fixture.next_event() for _ in range(7)]
    kinds = [FrameReady, Answer, PictureChanged, FrameReady, Answer, FrameReady, Answer]
    assert [type(event) for event in events] == kinds, "an outage reports itself"
    assert events[2] == PictureChanged(frame_index=1, pts_s=1e-9, reason="resolution", width_px=128, height_px=96)
    assert [event.trigger for event in events if isinstance(event, Answer)] == ["start", *["discontinuity"] * 2]


def test_an_outage_is_reported_at_its_place_and_costs_no_credit(runner: StageRunner) -> None:
    fixture = Fixture(runner, schedule=NEWEST).begin()
    fixture.texture.send(SourceLost(frame_index=4, media_ns=500_000_000, reason="the cable"))
    fixture.texture.send(SourceLost(frame_index=4, media_ns=500_000_000, reason="the cable", lasted_s=1.5, attempts=3))
    begin = Outage(frame_index=4, pts_s=0.5, reason="the cable")
    end = Outage(frame_index=4, pts_s=0.5, reason="the cable", lasted_s=1.5, attempts=3)
    assert [fixture.next_event(), fixture.next_event()] == [begin, end]
    assert fixture.texture.receive(30) is None


def test_a_map_goes_with_each_frame_if_the_run_publishes(runner: StageRunner) -> None:
    fixture = Fixture(runner, tap=TapPolicy(maps=True)).begin()
    fixture.show(0)
    frame = fixture.next_of(FrameReady)
    assert frame.map is not None
    regions = fixture.tokens()[0].regions
    assert (frame.map.rows, frame.map.cols, len(frame.map.relevance)) == (3, 4, 12)
    np.testing.assert_array_equal(np.frombuffer(frame.map.regions, "<i2").reshape(-1, 3), regions)


def test_a_picture_goes_with_each_frame_if_a_sink_draws_it(runner: StageRunner) -> None:
    overlays: SlotTable[AllocationOverlay] = SlotTable(1)
    fixture = Fixture(runner, schedule=NEWEST, overlays=overlays).begin()
    fixture.show(0)
    frame = fixture.next_of(FrameReady)
    assert frame.slot is not None
    fixture.credit()
    fixture.show(1)
    assert fixture.texture.receive(30) is None
    assert overlays.take(frame.slot).image.shape == (96, 128, 3)
    fixture.credit()


def test_whole_frames_are_sent_if_the_model_encodes_them(runner: StageRunner) -> None:
    fixture = Fixture(runner, replace(POLICY, whole_frames=True)).begin()
    fixture.show(0)
    message, received = fixture.packet(FramePacketMessage)
    packet = frame_packet(message, received.parts)
    with fixture.updater.lease() as view:
        np.testing.assert_array_equal(packet.image, view.read(0))


def test_the_last_frame_is_answered_unless_it_was(runner: StageRunner) -> None:
    fixture = Fixture(runner).begin()
    for index in (0, 3):
        fixture.show(index)
        if index == 0:
            assert fixture.frame_asked() == 0
            fixture.reply(0)
        fixture.credit()
    fixture.texture.send(End(reason="finished"))
    assert fixture.frame_asked() == 3
    fixture.reply(1)
    fixture.receive(Disconnect)
    assert runner.join() is None


def test_after_ctrl_c_no_answer_is_asked_for(runner: StageRunner) -> None:
    fixture = Fixture(runner, schedule=NEWEST).begin()
    fixture.show(0)
    fixture.credit()
    assert fixture.frame_asked() == 0
    fixture.show(3)
    fixture.credit()
    fixture.texture.send(End(reason="interrupted"))
    assert fixture.answers.receive(30) is None
    fixture.reply(0)
    fixture.receive(Disconnect)
    assert runner.join() is None


def test_a_source_without_a_frame_ends_without_an_answer(runner: StageRunner) -> None:
    fixture = Fixture(runner).begin()
    losses = (SkippedItem("packet 1", "bad"),)
    fixture.texture.send(End(reason="finished", skipped=losses, made_pts=2, clamped_pts=1))
    fixture.receive(Disconnect)
    assert runner.join() is None
    assert fixture.next_event() == Skipped(frame_index=0, pts_s=0.0, what="packet 1", reason="bad")
    notice = fixture.next_of(Notice)
    assert notice.message == "repaired 3 frame times from the frame rate (2 missing, 1 going back)"


def test_another_question_is_known_to_the_allocator_and_answered_at_once(runner: StageRunner) -> None:
    fixture = Fixture(runner, schedule=NEWEST).begin()
    assert fixture.frame_asked(0) == 0
    fixture.reply(0)
    fixture.credit()
    runner.control.send(Ask("who?"))
    fixture.embed("who?")
    assert fixture.frame_asked() == 0
    assert fixture.queries == ["what?", "who?"]
    assert [type(fixture.next_event()) for _ in range(3)] == [FrameReady, Answer, QueryChanged]


def test_another_model_gets_its_own_allocator(runner: StageRunner) -> None:
    fixture = Fixture(runner, schedule=NEWEST, client=ClientOptions(reconnect=True)).begin()
    fixture.show(0)
    fixture.credit()
    assert fixture.frame_asked() == 0
    first = fixture.hello
    for model_id, same in (("m", True), ("another", False)):
        fixture.say(ErrorReply(error="ValueError", message="bent", details=""))
        fixture.greet(model_id)
        assert fixture.frame_asked() == 0
        assert (fixture.hello is first) == same
    assert fixture.queries == ["what?"] * 3
    assert fixture.stage.drops["answer.lost"] == 2


def test_an_allocation_that_fails_shows_all_tokens_and_is_reported_once(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(StreamAllocator, "observe", Mock(side_effect=ArithmeticError("the spoon is bent")))
    fixture = Fixture(runner, schedule=NEWEST).begin()
    for index in (0, 1):
        fixture.show(index)
        fixture.credit()
    events = [fixture.next_event() for _ in range(3)]
    assert [type(event) for event in events] == [Notice, FrameReady, FrameReady]
    message = "allocation failed (ArithmeticError: the spoon is bent); such frames are shown with all their tokens"
    assert [notice.message for notice in of_kind(events, Notice)] == [message]
    assert caplog.messages == [f"frame 0: {message}"]
    assert [(frame.tokens, frame.tiles) for frame in of_kind(events, FrameReady)] == [(12, 12)] * 2
    assert fixture.stage.drops["allocate.failed"] == 2


@pytest.mark.parametrize(("with_maps", "selections"), [(False, 2), (True, 4)])
def test_regions_are_chosen_if_an_output_shows_them(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch, with_maps: bool, selections: int
) -> None:
    count, select = 0, SelectionInputs.select

    def noting(self: SelectionInputs) -> Selection:
        nonlocal count
        count += 1
        return select(self)

    monkeypatch.setattr(SelectionInputs, "select", noting)
    fixture = Fixture(runner, POLICY, NEWEST, tap=TapPolicy(maps=with_maps)).begin()
    assert fixture.frame_asked(0) == 0
    for index in (10, 20, 30):
        fixture.credit()
        fixture.show(index)
    fixture.credit()
    fixture.reply(0)
    assert fixture.frame_asked() == 30
    assert count == selections
    frames = of_kind(iter_events(fixture), FrameReady)
    assert [frame.tokens for frame in frames] == [4] * 4
    assert [frame.jitter_share is not None for frame in frames] == [with_maps] * 4


def test_a_choice_that_fails_shows_all_tokens(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "picture_structure", Mock(side_effect=ArithmeticError("the spoon is bent")))
    fixture = Fixture(runner).begin()
    fixture.show(0)
    assert len(fixture.tokens()[0].regions) == 12
    fixture.reply(0)
    fixture.credit()
    assert fixture.stage.drops["allocate.failed"] == 1


LEFT = ZoneOptions(focus=(((0.0, 0.0), (0.25, 0.0), (0.25, 1.0), (0.0, 1.0)),))


def test_an_allocation_that_fails_shows_the_zone_of_the_question_alone(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamAllocator, "observe", Mock(side_effect=ArithmeticError("the spoon is bent")))
    fixture = Fixture(runner, zones=LEFT).begin()
    fixture.show(0)
    assert fixture.tokens()[0].regions.tolist() == [[0, 0, 0], [0, 1, 0], [0, 2, 0]]
    fixture.reply(0)


def test_a_check_with_all_tokens_shows_the_zone_of_the_question_alone(runner: StageRunner) -> None:
    checked = replace(RESEND, filters=(ShadowChecks(ShadowSection(every=1)),))
    fixture = Fixture(runner, client=checked, zones=LEFT).begin()
    fixture.show(0)
    assert {col for _, _, col in fixture.tokens()[0].regions.tolist()} == {0}
    fixture.reply(0)
    message, received = fixture.packet(FramePacketMessage)
    image = frame_packet(message, received.parts).image
    assert image[:, :32].any()
    assert not image[:, 32:].any()
    fixture.reply(0)


def test_a_texture_that_fails_ends_the_run(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamAllocator, "observe", Mock(side_effect=StoreError("no texture")))
    fixture = Fixture(runner).begin()
    fixture.show(0)
    assert fixture.failure(runner) == "the allocate stage died: no texture"
    fixture.receive(Cancel)


def test_silence_is_counted_while_something_is_awaited(runner: StageRunner) -> None:
    fixture = Fixture(runner, schedule=replace(SCHEDULE, silence_limit_s=0.1)).begin()
    assert fixture.frame_asked(0) == 0
    fixture.pass_time(runner)
    silent = "the answer stage died: silent for 0.1 s; raise pipeline.timeout_s for slow models"
    assert fixture.failure(runner) == silent
    fixture.receive(Cancel)


def test_an_answer_that_never_comes_is_noticed_while_frames_go_on(runner: StageRunner) -> None:
    fixture = Fixture(runner, schedule=NEWEST).begin()
    fixture.clock.advance(500 * 1_000_000_000)
    assert fixture.frame_asked(0) == 0
    fixture.credit()
    fixture.show(1)
    fixture.credit()
    fixture.pass_time(runner)
    assert "silent for 60 s" in fixture.failure(runner)


def test_cancelling_notifies_the_answer_stage(runner: StageRunner) -> None:
    fixture = Fixture(runner).begin()
    runner.control.cancel()
    assert runner.join() is None
    fixture.receive(Cancel)
    fixture.receive(Disconnect)
