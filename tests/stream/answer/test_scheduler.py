"""Scheduler of answers: answer points, queries, waiting, and an answer server that is silent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from arr_coc.types import Feedback, FramePacket, FrameStamp, GroupPlace, QueryEmbedding, TileGrid, TokenPacket
from stream.answer.filters import RecalledAnswer
from stream.answer.idle import IDLE_EVERY_NS, LOCKSTEP_TOKENS_MIN, LOCKSTEP_TOKENS_PER_S, IdleFrames
from stream.answer.request import ClientOptions, GlanceOutcome
from stream.answer.scheduler import AnswerScheduler, SchedulePolicy
from stream.answer.triggers import WatchStates
from stream.config import AnswerConfig, WatchConfig
from stream.control import Ask, CancelledError, RunControl
from stream.errors import ConfigError, ConnectionRefused, StageDied
from stream.events import Answer, AnswerCancelled, Event, Match, Notice, QueryChanged, YesNoResult
from stream.protocol.codec import specs_of
from stream.protocol.messages import (
    Cancel,
    Connect,
    Disconnect,
    Embed,
    Embedded,
    GlancePacketMessage,
    IdleGrant,
    IdlePacketMessage,
    IdlePass,
    IdleReply,
    IdleRequest,
    Message,
    ServerHello,
    TokenPacketMessage,
    TurnGrant,
    TurnRequest,
)
from stream.transport import Transport
from tests.support.answer_client import FakeEndpoint, FakeJournal, client_options, received
from tests.support.clock import FakeClock
from tests.support.events import (
    answer,
    make_answer_reply,
    make_glance_reply,
    make_overview,
    make_token_packet,
    make_yes_no_reply,
)

S = 1_000_000_000
GRID = TileGrid.of(64, 64)
STEPS_MAX = 1000


class Stepping(RunControl):
    """Control that lets the peer act at every check: both run in one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.step: Callable[[], None] = lambda: None
        self._steps = 0

    def check(self) -> None:
        self._steps += 1
        assert self._steps < STEPS_MAX, "it waits for ever"
        self.step()
        super().check()


@dataclass
class Peer:
    """Answer stage that answers at once, as far as its flags allow."""

    endpoint: FakeEndpoint
    answers: bool = True
    glances: bool = True
    grants: bool = True
    grants_idle: bool = True
    greets: bool = True
    model_id: str = "m"
    known_world: str | None = None
    attention_readable: bool = True
    allocator: bytes = b""
    unknown_words: tuple[str, ...] = ()
    notice: str = ""
    memory_tokens: int = 0
    reads_ahead: bool = False
    next_place: GroupPlace | None = None
    received: list[Message] = field(default_factory=list)
    turn: int = 0
    idle_number: int = 0
    yes: float = 0.01
    refusals: dict[str, str] = field(default_factory=dict)

    def step(self) -> None:
        for link in self.endpoint.links:
            while link.outbox:
                message = received(*link.outbox.popleft()).message
                self.received.append(message)
                self.react(message)

    def send(self, message: Message, arrays: Sequence[np.ndarray] = ()) -> None:
        self.endpoint.links[-1].inbox.append(received(message, arrays))

    def react(self, message: Message) -> None:
        if isinstance(message, Connect) and self.greets:
            self.send(
                ServerHello(
                    model_id=self.model_id,
                    knows_levels=True,
                    known_world=self.known_world,
                    allocator=self.allocator,
                    attention_readable=self.attention_readable,
                    notice=self.notice,
                    memory_tokens=self.memory_tokens,
                    reads_ahead=self.reads_ahead,
                )
            )
        elif isinstance(message, Embed) and self.greets:
            self.embed(message)
        elif isinstance(message, TurnRequest) and self.grants:
            self.turn += 1
            self.send(TurnGrant(turn=self.turn, kept=self.next_place))
        elif isinstance(message, IdleRequest) and self.grants_idle:
            self.idle_number += 1
            self.send(IdleGrant(number=self.idle_number, tokens=32, kept=self.next_place))
        elif isinstance(message, IdlePacketMessage):
            self.next_place = dataclasses.replace(message.place, frame=message.place.frame + 1)
            rebuilt = not message.place.frame
            self.send(IdleReply(number=message.number, tokens=2, took_ms=1.0, rebuilt=rebuilt, kept=self.next_place))
        elif isinstance(message, GlancePacketMessage) and self.glances:
            self.send(make_glance_reply(message.glance))
        elif isinstance(message, TokenPacketMessage) and self.answers:
            checks = message.question.checks
            if checks:
                self.send(make_yes_no_reply(message.answer, *((self.yes, 1.0) for _ in checks)))
            if message.question.wants_answer:
                self.answer(message.answer)

    def embed(self, message: Embed) -> None:
        fields: dict[str, Any] = {"text": message.text, "is_check": message.is_check, "model_id": self.model_id}
        if message.text in self.refusals:
            self.send(Embedded(**fields, error="ContextLengthError", reason=self.refusals[message.text]))
            return
        embedding = np.zeros((1, 8), np.float32)
        words = self.unknown_words if message.is_check else ()
        self.send(Embedded(**fields, unseen_words=words, arrays=specs_of(embedding)), [embedding])

    def answer(self, number: int) -> None:
        self.send(make_answer_reply(number, "t"))

    def embeds(self) -> list[str]:
        """Texts that it was asked to embed."""
        return [message.text for message in self.received if isinstance(message, Embed)]

    def packets(self) -> list[int]:
        return [message.stamp.frame_index for message in self.received if isinstance(message, TokenPacketMessage)]

    def idle_packets(self) -> list[tuple[int, GroupPlace]]:
        """Frames and places of the packets that it has read ahead."""
        return [
            (message.stamp.frame_index, message.place)
            for message in self.received
            if isinstance(message, IdlePacketMessage)
        ]

    def overviews(self) -> list[int]:
        return [message.stamp.frame_index for message in self.received if isinstance(message, GlancePacketMessage)]


class FakeIdleFrames(IdleFrames):
    """The newest frame of a run, with `work` packets to read ahead."""

    def __init__(self, run: ScheduledRun) -> None:
        self._run = run
        self.work = 0
        self.is_new_group = False
        self.calls: list[tuple[GroupPlace | None, int]] = []
        self.ends: list[tuple[GroupPlace | None, bool]] = []

    def has_work(self) -> bool:
        return self.work > 0

    def make_packet(self, next_place: GroupPlace | None, tokens: int) -> TokenPacket | None:
        self.calls.append((next_place, tokens))
        if not self.work or next_place is None:
            return None
        self.work -= 1
        place = GroupPlace(next_place.group + 1, 0) if self.is_new_group else next_place
        return dataclasses.replace(make_token_packet(self._run.stamp, GRID), place=place)

    def on_end(self, next_place: GroupPlace | None, *, rebuilt: bool) -> None:
        self.ends.append((next_place, rebuilt))


CANCELLING = AnswerConfig(on_cut="cancel")


class ScheduledRun:
    """Scheduler, with the test as its observer."""

    def __init__(self, *, reconnect: bool = False, journal: Any = None, **policy: object) -> None:
        self.clock = FakeClock()
        self.control = Stepping()
        self.models: list[tuple[ServerHello, QueryEmbedding]] = []
        self.others: list[list[str]] = []
        self.learnt: list[Feedback] = []
        self.events: list[Event] = []
        self.answer_requests = self.check_requests = 0
        self.hung = 0
        self.has_frame = True
        self.glance_due = False
        self.glances: list[GlanceOutcome] = []
        self.places: list[GroupPlace | None] = []
        self.idle = FakeIdleFrames(self)
        self._newest, self._epoch = 0, 0
        endpoint = FakeEndpoint("tcp://server", on_timeout=self._hang)
        self.peer = Peer(endpoint)
        self.control.step = self._step
        values = {
            "answer": AnswerConfig(every_s=2.0),
            "query": "what?",
            "lockstep": True,
            "source_is_drawn": False,
            "silence_limit_s": 60.0,
            **policy,
        }
        self.scheduler = AnswerScheduler(
            SchedulePolicy(**values),  # type: ignore[arg-type]
            endpoint,
            client_options(
                reconnect=reconnect,
                resend_after_loss=bool(values["lockstep"]),
                watches=tuple(watch.question for watch in cast(tuple[WatchConfig, ...], values.get("watches", ()))),
                journal=journal,
            ),
            self,
            self.control,
            self.clock,
        )

    def begin(self) -> ScheduledRun:
        self.scheduler.connect(cast(Transport, None))
        return self

    def greet(self) -> ScheduledRun:
        self.begin().scheduler.wait_until_ready()
        return self

    def show(self, index: int, *, cut: bool = False, change: float = 0.0, since_look: float = 0.0) -> None:
        """Observe the next frame; frames are a second apart."""
        self._newest, self._epoch = index, self._epoch + cut
        self.scheduler.observe(self.stamp, index * S, change=change, cut=cut, change_since_look=since_look)

    @property
    def stamp(self) -> FrameStamp:
        """Stamp of the newest frame."""
        return FrameStamp(self._newest, self._newest * S, 0, self._epoch)

    def go_on(self, times: int = 2) -> None:
        """Process replies as between two frames."""
        for _ in range(times):
            self.scheduler.process_replies(0)
            self.scheduler.check_timeout()
            self.scheduler.ask_if_due()
            self.peer.step()

    def triggers(self) -> list[str]:
        return [event.trigger for event in self.events if isinstance(event, Answer)]

    def on_model(self, hello: ServerHello, embedding: QueryEmbedding, *others: QueryEmbedding) -> None:
        self.models.append((hello, embedding))
        self.others.append([other.text for other in others])

    def on_feedback(self, feedback: Feedback) -> None:
        self.learnt.append(feedback)

    def on_glance(self, glance: GlanceOutcome) -> None:
        self.glances.append(glance)
        self.glance_due = False

    def is_glance_due(self) -> bool:
        return self.glance_due

    def make_glance_packet(self, next_place: GroupPlace | None = None) -> TokenPacket | None:
        return make_overview(self.stamp, GRID) if self.has_frame else None

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def make_packet(self, next_place: GroupPlace | None = None) -> TokenPacket | None:
        self.places.append(next_place)
        packet = make_token_packet(self.stamp, GRID) if self.has_frame else None
        if packet is None or not self.peer.memory_tokens:
            return packet
        return dataclasses.replace(packet, place=next_place or GroupPlace(1, 0))

    def make_full_packet(self) -> FramePacket | None:
        return None

    def on_asked(self) -> None:
        self.answer_requests += 1

    def on_yes_no(self) -> None:
        self.check_requests += 1

    def _step(self) -> None:
        self.clock.advance(S // 20)
        self.peer.step()

    def _hang(self) -> None:
        self.hung += 1


Opener = Callable[..., ScheduledRun]


@pytest.fixture
def opened() -> Opener:
    return ScheduledRun


def test_the_model_and_its_embedding_are_reported_first(opened: Opener) -> None:
    run = opened().greet()
    ((hello, embedding),) = run.models
    assert (hello.model_id, embedding.text) == ("m", "what?")
    assert run.events == []
    assert run.scheduler.drops == {"answer.busy": 0, "answer.lost": 0, "answer.cancelled": 0}


def test_before_it_has_begun_nothing_was_dropped(opened: Opener) -> None:
    assert opened().scheduler.drops == {"answer.busy": 0, "answer.lost": 0, "answer.cancelled": 0}


def test_in_lockstep_every_answer_point_has_its_answer_before_the_next_frame(opened: Opener) -> None:
    run = opened().greet()
    for index in range(5):
        run.show(index)
        assert len(run.triggers()) == 1 + index // 2
    run.show(5)
    run.scheduler.finish(last_answer=True)
    assert run.triggers() == ["start", "every", "every", "end"]
    assert run.peer.packets() == [0, 2, 4, 5]
    assert run.answer_requests == 4
    run.peer.step()
    assert isinstance(run.peer.received[-1], Disconnect)


def test_without_lockstep_the_newest_frame_is_sent_with_the_turn(opened: Opener) -> None:
    run = opened(lockstep=False).greet()
    run.peer.grants = False
    for index in range(6):
        run.show(index)
        run.go_on()
    assert run.peer.packets() == []
    run.peer.send(TurnGrant(turn=1))
    run.go_on()
    assert run.peer.packets() == [5]
    run.go_on()
    assert run.triggers() == ["start"]
    assert run.scheduler.drops == {"answer.busy": 2, "answer.lost": 0, "answer.cancelled": 0}


def test_a_frame_that_is_no_longer_available_costs_neither_turn_nor_answer(opened: Opener) -> None:
    run = opened(lockstep=False).greet()
    run.has_frame = False
    run.show(0)
    run.go_on(3)
    assert run.peer.packets() == []
    run.has_frame = True
    run.show(1)
    run.go_on()
    assert run.peer.packets() == [1]
    assert run.triggers() == ["start"]
    assert sum(isinstance(message, TurnRequest) for message in run.peer.received) == 1


def cancels(run: ScheduledRun) -> list[AnswerCancelled]:
    return [event for event in run.events if isinstance(event, AnswerCancelled)]


@pytest.mark.parametrize("cancel", [True, False])
def test_a_cut_cancels_the_answer_in_flight_only_if_configured(opened: Opener, cancel: bool) -> None:
    run = opened(lockstep=False, answer=CANCELLING if cancel else AnswerConfig()).greet()
    run.peer.answers = False
    run.show(0)
    run.go_on()
    run.show(1, cut=True)
    run.go_on(3)
    kinds = [type(message) for message in run.peer.received]
    assert (Cancel in kinds) == cancel
    assert [(event.answer, event.frame_index, event.by_frame_index) for event in cancels(run)] == [(0, 0, 1)] * cancel
    assert run.peer.packets() == ([0, 1] if cancel else [0])
    assert run.scheduler.drops == {"answer.busy": 0, "answer.lost": 0, "answer.cancelled": int(cancel)}
    run.peer.answer(0)
    run.go_on()
    assert run.triggers() == ([] if cancel else ["start"]), "what comes too late is ignored"
    run.peer.answer(1)
    run.go_on(1)
    assert run.triggers() == (["cut"] if cancel else ["start", "cut"])
    answers = [event for event in run.events if isinstance(event, Answer)]
    assert [event.before_cut for event in answers] == ([False] if cancel else [True, False])


def test_a_cut_without_an_answer_in_flight_cancels_nothing(opened: Opener) -> None:
    run = opened(lockstep=False, answer=CANCELLING).greet()
    run.show(0)
    run.go_on(3)
    run.show(1, cut=True)
    run.go_on(3)
    assert run.triggers() == ["start", "cut"]
    assert cancels(run) == []
    assert Cancel not in [type(message) for message in run.peer.received]


def test_a_picture_of_another_size_cancels_as_a_cut_does(opened: Opener) -> None:
    run = opened(lockstep=False, answer=CANCELLING).greet()
    run.peer.answers = False
    run.show(0)
    run.go_on()
    run.scheduler.observe(FrameStamp(1, S, 0), S, change=0.0, cut=False, discontinuity=True)
    assert [(event.by, event.by_frame_index) for event in cancels(run)] == [("discontinuity", 1)]


def test_a_second_cut_cancels_the_answer_of_the_first(opened: Opener) -> None:
    run = opened(lockstep=False, answer=CANCELLING).greet()
    run.peer.answers = False
    for index in range(4):
        run.show(index, cut=index > 0)
        run.go_on(3)
    assert [(event.answer, event.trigger) for event in cancels(run)] == [(0, "start"), (1, "cut"), (2, "cut")]
    assert run.peer.packets() == [0, 1, 2, 3]
    assert run.scheduler.drops["answer.cancelled"] == 3


def test_a_check_of_a_cancelled_answer_is_repeated(opened: Opener) -> None:
    run = opened(watches=(watched(),), lockstep=False, answer=CANCELLING).greet()
    run.peer.answers = False
    run.show(0)
    run.go_on()
    assert spoken(run) == [(0, True)]
    run.show(1, cut=True)
    run.peer.answers = True
    run.go_on(3)
    run.show(2)
    run.go_on(3)
    assert [event.frame_index for event in run.events if isinstance(event, YesNoResult)][:1] == [1]


def test_at_the_end_open_requests_are_awaited_and_none_follows_after_ctrl_c(opened: Opener) -> None:
    run = opened(lockstep=False).greet()
    run.show(0)
    run.go_on()
    run.show(1)
    run.scheduler.finish(last_answer=False)
    assert run.triggers() == ["start"]


def test_after_ctrl_c_a_lost_answer_stage_is_not_awaited(opened: Opener) -> None:
    run = opened(reconnect=True).greet()
    run.show(0)
    run.peer.greets = False
    run.scheduler.connection.give_up("gone")
    run.show(1)

    def end() -> None:
        run.peer.step()
        run.control.end()

    run.control.step = end
    run.scheduler.finish(last_answer=True)
    assert run.triggers() == ["start"]


def test_after_ctrl_c_a_model_that_loads_is_not_awaited(opened: Opener) -> None:
    run = opened()
    run.peer.greets = False
    run.control.end()
    run.greet().scheduler.finish(last_answer=False)
    assert run.models == []


@pytest.mark.parametrize(("is_lost", "triggers"), [(True, ["start", "asked"]), (False, ["start"])])
def test_another_server_is_asked_at_once_only_after_a_loss(opened: Opener, is_lost: bool, triggers: list[str]) -> None:
    run = opened(lockstep=False, reconnect=True).greet()
    run.show(0)
    run.go_on(6)
    connection = run.scheduler.connection
    connection.give_up("gone") if is_lost else connection._reopen_link("move")
    run.show(1)
    while not run.scheduler.client.ready:
        run.go_on()
    run.go_on(6)
    assert run.triggers() == triggers
    run.show(2)
    run.go_on(6)
    assert len(run.triggers()) == 2


def test_another_question_is_answered_at_once(opened: Opener) -> None:
    run = opened().greet()
    run.show(0)
    run.control.send(Ask("who?"))
    run.go_on()
    run.show(1)
    assert run.triggers() == ["start", "asked"]
    assert QueryChanged(query="who?") in run.events
    assert [embedding.text for _, embedding in run.models] == ["what?", "who?"]
    assert run.peer.packets() == [0, 1]


@pytest.mark.parametrize("lockstep", [True, False])
def test_another_question_before_the_first_frame_is_answered_with_that(opened: Opener, lockstep: bool) -> None:
    run = opened(lockstep=lockstep).begin()
    run.control.send(Ask("who?"))
    run.scheduler.wait_until_ready()
    run.has_frame = False
    run.go_on(6)
    assert QueryChanged(query="who?") in run.events
    assert not any(isinstance(message, TurnRequest) for message in run.peer.received)
    run.has_frame = True
    run.show(0)
    run.go_on(6)
    assert run.triggers() == ["start"]


def test_of_several_questions_the_newest_is_asked(opened: Opener) -> None:
    run = opened().greet()
    run.control.send(Ask("where?"))
    run.control.send(Ask("who?"))
    run.go_on()
    assert run.peer.embeds() == ["what?", "who?"]


@pytest.mark.parametrize(
    ("source_is_drawn", "world", "warned"), [(False, "cats", 1), (True, "cats", 0), (False, None, 0)]
)
def test_a_model_of_a_small_world_is_named_once(
    opened: Opener, source_is_drawn: bool, world: str | None, warned: int
) -> None:
    run = opened(source_is_drawn=source_is_drawn)
    run.peer.known_world = world
    run.greet()
    run.control.send(Ask("who?"))
    run.go_on()
    notices = [event for event in run.events if isinstance(event, Notice)]
    assert len(notices) == warned
    if warned:
        assert notices[0].code == "model-world"
        assert notices[0].message.startswith("this model only knows cats; for real video give --model Qwen/")


def test_a_notice_of_the_model_is_passed_on_once(opened: Opener) -> None:
    run = opened()
    run.peer.notice = "it thinks aloud"
    run.greet()
    run.control.send(Ask("who?"))
    run.go_on()
    notices = [event for event in run.events if isinstance(event, Notice)]
    assert [(notice.code, notice.message) for notice in notices] == [("model-files", "m: it thinks aloud")]


@pytest.mark.parametrize(
    ("glances", "readable", "allocator", "reports"),
    [(True, False, b"", 1), (False, False, b"", 0), (True, True, b"", 0), (True, False, b"weights", 0)],
)
def test_a_model_that_cannot_glance_is_reported_once(
    opened: Opener, glances: bool, readable: bool, allocator: bytes, reports: int
) -> None:
    run = opened(glances=glances)
    run.peer.attention_readable, run.peer.allocator = readable, allocator
    run.greet()
    run.control.send(Ask("who?"))
    run.go_on()
    notices = [event for event in run.events if isinstance(event, Notice)]
    assert [notice.code for notice in notices] == ["glances-off"] * reports
    if reports:
        assert notices[0].message.startswith("no glances: the attention of m cannot be read")
        assert notices[0].message.endswith("name another model with -m, or give --no-glance")


def watched(question: str = "is it there?", name: str = "there", **options: Any) -> WatchConfig:
    """A watch that is checked after change and cuts, at once."""
    return WatchConfig(
        **{"question": question, "name": name, "every_s": None, "on_change": 0.5, "least_s": 0.0, **options}
    )


ONLY: dict[str, Any] = {"watches": (watched(),), "watches_only": True}


@pytest.mark.parametrize(("source_is_drawn", "unknown_words"), [(False, ()), (True, ("dog",))])
def test_a_model_that_cannot_evaluate_a_watch_is_refused(
    opened: Opener, source_is_drawn: bool, unknown_words: tuple[str, ...]
) -> None:
    run = opened(source_is_drawn=source_is_drawn, **ONLY)
    run.peer.known_world, run.peer.unknown_words = "cats", unknown_words
    with pytest.raises(ConfigError, match=r"m only knows cats.*or give --force to run anyway"):
        run.greet()


def test_a_forced_watch_has_a_warning_in_every_check(opened: Opener) -> None:
    run = opened(source_is_drawn=False, watches=(watched(force=True),), watches_only=True)
    run.peer.known_world = "cats"
    run.greet()
    run.show(0)
    looks = [event for event in run.events if isinstance(event, YesNoResult)]
    assert [look.warning for look in looks] == ["means nothing: the model only knows cats"]


def spoken(run: ScheduledRun) -> list[tuple[int, bool]]:
    """Indices of the frames that were sent, and whether an answer was requested."""
    return [
        (message.stamp.frame_index, message.question.wants_answer)
        for message in run.peer.received
        if isinstance(message, TokenPacketMessage)
    ]


def test_beside_answers_checks_have_their_own_triggers(opened: Opener) -> None:
    run = opened(watches=(watched(),)).greet()
    for index, since_look in enumerate([1.0, 0.4, 0.0, 0.6, 0.0]):
        run.show(index, since_look=since_look)
    assert spoken(run) == [(0, True), (2, True), (3, False), (4, True)]
    assert (run.answer_requests, run.check_requests) == (3, 4)
    assert run.triggers() == ["start", "every", "every"]
    assert [event.trigger for event in run.events if isinstance(event, YesNoResult)] == [
        "start",
        "every",
        "change",
        "every",
    ]


def test_alone_a_watch_is_the_only_question_and_its_checks_count_as_answers(opened: Opener) -> None:
    run = opened(**ONLY).greet()
    for index, since_look in enumerate([1.0, 0.4, 0.0, 0.6]):
        run.show(index, cut=index == 2, change=1.0, since_look=since_look)
    run.scheduler.finish(last_answer=True)
    assert spoken(run) == [(0, False), (2, False), (3, False)]
    assert (run.answer_requests, run.check_requests) == (3, 3)


def test_several_watches_are_checked_with_one_packet_and_share_the_allocation(opened: Opener) -> None:
    watches = (watched(), watched("is it gone?", "gone"))
    run = opened(watches=watches, watches_only=True, query="is it there?").greet()
    assert run.others == [["is it gone?"]], "the query itself is that of the first watch"
    run.show(0)
    (packet,) = [message for message in run.peer.received if isinstance(message, TokenPacketMessage)]
    assert packet.question.checks == ("is it there?", "is it gone?")
    assert [event.watch for event in run.events if isinstance(event, YesNoResult)] == ["there", "gone"]


def test_watches_with_one_question_are_one_check(opened: Opener) -> None:
    run = opened(watches=(watched(), watched(name="again")), watches_only=True).greet()
    run.show(0)
    (packet,) = [message for message in run.peer.received if isinstance(message, TokenPacketMessage)]
    assert packet.question.checks == ("is it there?",)
    assert [event.watch for event in run.events if isinstance(event, YesNoResult)] == ["there", "again"]


@pytest.mark.parametrize("ends_run", [True, False])
def test_a_match_may_end_the_run(opened: Opener, ends_run: bool) -> None:
    run = opened(
        watches=(watched(ends_run=ends_run, hold_s=1),), watches_only=True, states=WatchStates(matches=2)
    ).greet()
    run.peer.yes = 0.99
    run.show(0)
    assert not run.control.ending
    run.show(1)
    assert [(event.match, event.frame_index) for event in run.events if isinstance(event, Match)] == [(3, 1)]
    assert run.control.has_match == ends_run


def test_a_watch_outside_its_schedule_is_in_no_packet(opened: Opener) -> None:
    never = watched("is it gone?", "gone", schedule="22:00-23:00 UTC")
    run = opened(watches=(watched(), never), watches_only=True, wall_s=lambda: 0.0).greet()
    run.show(0)
    (packet,) = [message for message in run.peer.received if isinstance(message, TokenPacketMessage)]
    assert packet.question.checks == ("is it there?",)
    only_run = opened(watches=(never,), watches_only=True, wall_s=lambda: 0.0).greet()
    only_run.show(0, since_look=1.0)
    assert spoken(only_run) == []


def test_a_lost_check_is_repeated(opened: Opener) -> None:
    run = opened(**ONLY, reconnect=True, lockstep=False).greet()
    run.peer.answers = False
    run.show(0)
    run.go_on()
    assert spoken(run) == [(0, False)]
    run.scheduler.connection.give_up("gone")
    run.peer.answers = True
    run.go_on(3)
    run.show(1)
    run.go_on(3)
    assert spoken(run) == [(0, False), (1, False)]
    assert [event.trigger for event in run.events if isinstance(event, YesNoResult)] == ["again"]


def test_a_silent_answer_stage_ends_the_run(opened: Opener) -> None:
    run = opened(silence_limit_s=0.1).greet()
    run.peer.answers = False
    with pytest.raises(StageDied, match=r"silent for 0.1 s; raise pipeline.timeout_s for slow models"):
        run.show(0)
    assert run.hung == 0


def test_a_silent_answer_stage_is_given_up_for_its_successor(opened: Opener) -> None:
    run = opened(silence_limit_s=0.1, reconnect=True).greet()
    run.peer.answers = False
    react = run.peer.react

    def recover(message: Message) -> None:
        if isinstance(message, Connect):
            run.peer.answers, run.peer.model_id = True, "another"
        react(message)

    run.peer.react = recover  # type: ignore[method-assign]
    run.show(0)
    assert run.hung == 1
    assert run.triggers() == ["start"]
    assert [hello.model_id for hello, _ in run.models] == ["m", "another"]
    assert run.peer.packets() == [0, 0]
    assert run.scheduler.drops["answer.lost"] == 0


def test_silence_is_noticed_while_frames_go_on(opened: Opener) -> None:
    run = opened(lockstep=False, reconnect=True, silence_limit_s=5.0).greet()
    run.peer.answers = False
    run.show(0)
    run.go_on()
    for _ in range(8):
        run.clock.advance(S // 2)
        run.go_on(1)
    assert run.hung == 0
    run.peer.answers = True
    run.clock.advance(S)
    run.go_on(6)
    assert run.hung == 1
    assert run.scheduler.drops["answer.lost"] == 1
    assert run.triggers() == ["asked"]


def test_a_cancelled_run_does_not_wait(opened: Opener) -> None:
    run = opened().greet()
    run.peer.answers = False
    react = run.peer.react

    def cancel(message: Message) -> None:
        react(message)
        if isinstance(message, TokenPacketMessage):
            run.control.cancel()

    run.peer.react = cancel  # type: ignore[method-assign]
    with pytest.raises(CancelledError):
        run.show(0)
    run.scheduler.cancel()
    run.peer.step()
    assert [type(message) for message in run.peer.received[-2:]] == [Cancel, Disconnect]


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_server_elsewhere_that_cannot_be_reached_ends_the_run_and_one_that_loads_does_not(is_connected: bool) -> None:
    endpoint = FakeEndpoint("tcp://server", supervised=False)
    policy = SchedulePolicy(AnswerConfig(every_s=None), "what?", True, False, 60.0, connect_limit_s=0.1)
    control = Stepping()
    scheduler = AnswerScheduler(policy, endpoint, ClientOptions(), ScheduledRun(), control, FakeClock())
    scheduler.connect(cast(Transport, None))
    endpoint.links[0].is_connected = is_connected
    message = (
        "waits for ever"
        if is_connected
        else r"tcp://server within 0.1 s; start one there with `serve-answers`, and check"
    )
    with pytest.raises(AssertionError if is_connected else ConnectionRefused, match=message):
        scheduler.wait_until_ready()
    assert [type(message) for message, _ in endpoint.links[0].outbox] == [Connect, Embed]


@pytest.mark.parametrize("lockstep", [True, False])
def test_a_packet_builds_on_what_the_model_keeps(opened: Opener, lockstep: bool) -> None:
    run = opened(lockstep=lockstep, memory=True)
    run.peer.memory_tokens = 100
    run.greet()
    for index, place in enumerate((None, GroupPlace(1, 1), None)):
        run.peer.next_place = place
        run.show(2 * index)
        run.go_on(4)
    # In lockstep nothing may depend on what the server lost: it is sent again.
    assert run.places == [None, GroupPlace(1, 1), GroupPlace(1, 2) if lockstep else None]
    if lockstep:
        packets = [message for message in run.peer.received if isinstance(message, TokenPacketMessage)]
        assert [len(packet.earlier) for packet in packets] == [0, 0, 2]


def test_recalled_answers_leave_the_group_as_the_run_had_it(opened: Opener) -> None:
    answers = [structs.replace(answer(2.0 * index, "t", frame_index=2 * index), answer=index) for index in range(2)]
    run = opened(memory=True, journal=FakeJournal(*(RecalledAnswer(point, None) for point in answers)))
    run.peer.memory_tokens = 100
    run.greet()
    for index in range(3):
        run.show(2 * index)
    assert run.places == [None, GroupPlace(1, 1), GroupPlace(1, 2)]
    (packet,) = (message for message in run.peer.received if isinstance(message, TokenPacketMessage))
    assert packet.place == GroupPlace(1, 2)
    assert [frame.stamp.frame_index for frame in packet.earlier] == [0, 2]


def test_without_memory_a_recalled_answer_needs_no_packet(opened: Opener) -> None:
    run = opened(journal=FakeJournal(RecalledAnswer(answer(0.0, "t"), None))).greet()
    run.show(0)
    assert run.places == []


@pytest.mark.parametrize(("memory", "tokens", "reported"), [(True, 0, True), (True, 9, False), (False, 0, False)])
def test_a_server_that_keeps_no_memory_is_reported_once(
    opened: Opener, memory: bool, tokens: int, reported: bool
) -> None:
    run = opened(memory_required=memory)
    run.peer.memory_tokens = tokens
    run.greet()
    notices = [event.message for event in run.events if isinstance(event, Notice) and event.code == "memory-off"]
    assert len(notices) == reported
    if reported:
        assert notices[0].endswith("start `serve-answers` with --memory, or give --no-memory here")


@pytest.fixture
def idle(opened: Opener) -> Callable[..., ScheduledRun]:
    """Opens a run whose model reads ahead, after its first answer."""

    def make(*, work: int = 9, share: float = 0.5, **options: Any) -> ScheduledRun:
        run = opened(memory=True, idle_share=share, **options)
        run.peer.memory_tokens, run.peer.reads_ahead, run.peer.next_place = 100, True, GroupPlace(1, 1)
        run.greet()
        run.control.step = run.peer.step  # the clock stands still from now on
        run.show(0)
        run.go_on(3)
        run.idle.work = work
        return run

    return make


def idle_messages(run: ScheduledRun) -> list[type[Message]]:
    kinds = (IdleRequest, IdlePacketMessage, IdlePass)
    return [type(message) for message in run.peer.received if isinstance(message, kinds)]


def test_between_answers_a_live_run_lets_the_model_read_ahead(idle: Callable[..., ScheduledRun]) -> None:
    run = idle(lockstep=False, work=2)
    run.clock.advance(IDLE_EVERY_NS)
    run.go_on(4)
    assert run.peer.idle_packets() == [(0, GroupPlace(1, 1))]
    assert run.idle.calls == [(GroupPlace(1, 1), 32)], "as many as were granted"
    assert run.idle.ends == [(GroupPlace(1, 2), False)]
    run.go_on(4)
    assert len(run.peer.idle_packets()) == 1, "the next one is not due yet"
    for _ in range(3):
        run.clock.advance(IDLE_EVERY_NS)
        run.go_on(4)
    assert run.peer.idle_packets() == [(0, GroupPlace(1, 1)), (0, GroupPlace(1, 2))]
    assert idle_messages(run) == [IdleRequest, IdlePacketMessage] * 2, "without work nothing is asked for"


def test_an_answer_that_is_due_comes_before_what_is_read_ahead(idle: Callable[..., ScheduledRun]) -> None:
    run = idle(lockstep=False)
    run.clock.advance(IDLE_EVERY_NS)
    run.peer.grants = False
    run.show(2)
    run.go_on(4)
    assert idle_messages(run) == []
    run.peer.send(TurnGrant(turn=9, kept=GroupPlace(1, 1)))
    run.go_on(4)
    assert run.peer.packets() == [0, 2]
    kinds = [type(message) for message in run.peer.received]
    assert kinds.index(IdleRequest) > len(kinds) - 1 - kinds[::-1].index(TokenPacketMessage)
    assert run.peer.idle_packets()[0] == (2, GroupPlace(1, 1))


def test_an_answer_that_becomes_due_takes_the_place_of_a_granted_packet(idle: Callable[..., ScheduledRun]) -> None:
    run = idle(lockstep=False)
    run.clock.advance(IDLE_EVERY_NS)
    run.peer.grants_idle = False
    run.go_on(1)
    assert idle_messages(run) == [IdleRequest]
    run.show(2)
    run.peer.send(IdleGrant(number=1, tokens=32, kept=GroupPlace(1, 1)))
    run.peer.idle_number, run.peer.grants_idle = 1, True
    run.go_on(2)
    assert (run.peer.packets(), run.peer.idle_packets()) == ([0, 2], [])
    run.go_on(4)
    assert run.peer.idle_packets() == [(2, GroupPlace(1, 1))]


def test_work_that_is_gone_when_it_is_granted_is_passed_on(idle: Callable[..., ScheduledRun]) -> None:
    run = idle(lockstep=False, work=1)
    run.clock.advance(IDLE_EVERY_NS)
    run.scheduler.ask_if_due()
    run.idle.work = 0
    run.go_on(3)
    assert idle_messages(run) == [IdleRequest, IdlePass]


def test_beside_a_new_group_more_is_read_ahead(idle: Callable[..., ScheduledRun]) -> None:
    run = idle(lockstep=False)
    run.idle.is_new_group = True
    run.clock.advance(IDLE_EVERY_NS)
    run.scheduler.ask_if_due()
    run.peer.step()
    run.scheduler.process_replies(0)
    run.scheduler.ask_if_due()
    assert not run.scheduler.client.requests.idle.is_open
    run.go_on(3)
    assert run.idle.ends == [(GroupPlace(2, 1), True)]


@pytest.mark.parametrize("case", ["no share", "no reading", "no work"])
def test_nothing_is_read_ahead_without(case: str, idle: Callable[..., ScheduledRun]) -> None:
    for lockstep in (False, True):
        run = idle(lockstep=lockstep, share=0.0 if case == "no share" else 0.5, work=0 if case == "no work" else 9)
        if case == "no reading":
            hello = run.scheduler.client.hello
            assert hello is not None
            run.scheduler.client.hello = structs.replace(hello, reads_ahead=False)
        for index in range(1, 4):
            run.clock.advance(IDLE_EVERY_NS)
            run.show(index)
            run.go_on(3)
        assert idle_messages(run) == []


def test_in_lockstep_media_time_pays_for_what_is_read_ahead(idle: Callable[..., ScheduledRun]) -> None:
    """Whatever the clock says, and only while no answer is due."""
    packets, calls = [], []
    for pause_ns in (0, S):
        run = idle(answer=AnswerConfig(every_s=3))
        for index in range(1, 6):
            run.clock.advance(pause_ns)
            run.show(index)
        packets.append(run.peer.idle_packets())
        calls.append(run.idle.calls)
        assert [message.in_lockstep for message in run.peer.received if isinstance(message, IdleRequest)] == [True] * 4
    assert packets[0] == packets[1]
    assert [frame for frame, _ in packets[0]] == [1, 2, 4, 5]
    a_second = int(0.5 * LOCKSTEP_TOKENS_PER_S)
    assert [tokens for _, tokens in calls[0]] == [a_second, a_second, 2 * a_second, a_second]
    assert calls[0] == calls[1]


def test_in_lockstep_nothing_is_read_ahead_by_the_clock(idle: Callable[..., ScheduledRun]) -> None:
    run = idle(answer=AnswerConfig(every_s=100))
    run.clock.advance(10 * IDLE_EVERY_NS)
    run.go_on(4)
    assert idle_messages(run) == []


def test_in_lockstep_little_media_time_is_saved_up_until_it_pays(idle: Callable[..., ScheduledRun]) -> None:
    run = idle(share=0.1, answer=AnswerConfig(every_s=100))
    for index in range(1, 10):
        run.show(index)
    assert [tokens for _, tokens in run.idle.calls] == [19, 19, 19]
    assert LOCKSTEP_TOKENS_MIN <= 19


def test_in_lockstep_each_frame_waits_for_its_reading(idle: Callable[..., ScheduledRun]) -> None:
    run = idle(answer=AnswerConfig(every_s=100))
    run.show(1)
    assert run.idle.ends == [(GroupPlace(1, 2), False)]
    assert run.scheduler.client.requests.group.next_place == GroupPlace(1, 2)


def test_while_the_journal_holds_the_next_answer_nothing_is_sent(idle: Callable[..., ScheduledRun]) -> None:
    """The group goes on as it did when these answers were given."""
    answers = [structs.replace(answer(3.0 * index, "t", frame_index=3 * index), answer=index) for index in range(2)]
    journal = FakeJournal(*(RecalledAnswer(point, None) for point in answers))
    run = idle(journal=journal, answer=AnswerConfig(every_s=3))
    for index in range(1, 3):
        run.show(index)
    assert (run.peer.packets(), idle_messages(run)) == ([], [])
    assert run.idle.calls == [(GroupPlace(1, 1), 32), (GroupPlace(1, 2), 32)]
    assert run.idle.ends == [(GroupPlace(1, 2), False), (GroupPlace(1, 3), False)]
    run.show(3)
    assert (run.places[-1], run.peer.packets()) == (GroupPlace(1, 3), [])
    run.show(4)
    assert idle_messages(run) == [IdleRequest, IdlePacketMessage], "the journal has ended"
    (packet,) = (message for message in run.peer.received if isinstance(message, IdlePacketMessage))
    assert packet.place == GroupPlace(1, 4)
