"""The allocate stage's side of the conversation: what it makes of messages, of losses, and what it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from arr_coc.errors import ContextLengthError, ModelNotFound
from arr_coc.types import Feedback, FramePacket, FrameStamp, TileGrid, TokenPacket
from stream.answer.client import FAILURES_MAX, UNREADABLE_MAX, AnswerClient
from stream.answer.request import ClientOptions
from stream.errors import ConnectionRefused, StageDied
from stream.events import ANSWERS_LOST, PEER_MISBEHAVES, Answer, AnswerDeltaEvent, Notice, QueryChanged, YesNoResult
from stream.protocol.buffers import SharedFrameReader, SharedFrameWriter
from stream.protocol.codec import frame_packet, specs_of, token_packet
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    Connect,
    Disconnect,
    ErrorReply,
    FrameCaptured,
    FramePacketMessage,
    KeepAlive,
    Message,
    QueryAccepted,
    ServerHello,
    SetQuery,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from stream.recording.journal import JournalEntry
from stream.transport import Link, Transport
from stream.untrusted import ANSWER_CHARS_MAX, HEARD_AT_ONCE
from tests.support.clock import FakeClock
from tests.support.network import LIMIT_MS
from tests.support.runs import expect_whole

MS = 1_000_000
GRID = TileGrid.of(64, 64)
STAMP = FrameStamp(frame_index=5, media_ns=2_500 * MS, capture_ns=100 * MS, epoch=3)
FEEDBACK = Feedback(STAMP, np.zeros((1, 3), np.int32), np.ones(1, np.float32), np.zeros(1, np.float32))

M = TypeVar("M", bound=Message)


class LosableLink(Link):
    """A link whose peer can be said to be gone, or to turn it away."""

    gone = refused = False

    @property
    def lost(self) -> bool:
        if self.refused:
            raise ConnectionRefused("turned away")
        return self.gone


class Talk:
    """A dialogue, and the test in the answer stage's place; each connection is a pair of its own."""

    def __init__(self, transport: Transport, clock: FakeClock, options: ClientOptions) -> None:
        self._transport = transport
        self._links: list[Link] = []
        self.connections = 0
        self.client = AnswerClient("what?", options, clock)
        self.client.open(self._connect)

    def _connect(self) -> Link:
        self.connections += 1
        endpoint = f"inproc://dialogue-{self.connections}"
        self.peer = self._transport.link(endpoint, bind=True)
        self.link = LosableLink(self._transport.context, endpoint, bind=False)
        self._links += [self.peer, self.link]
        return self.link

    def hear(self, *messages: Message, arrays: list[np.ndarray] | None = None) -> list[object]:
        """The events of these messages; `arrays` come with the last one."""
        for message in messages[:-1]:
            self.peer.send(message)
        if messages:
            self.peer.send(messages[-1], arrays or [])
        return list(self.client.receive_events(0))

    def asking(self, query: str = "what?", value: float = 0.0) -> list[object]:
        embedding = np.full((1, 8), value, np.float32)
        return self.hear(QueryAccepted(query=query, model_id="m", arrays=specs_of(embedding)), arrays=[embedding])

    def greet(self, query: str = "what?") -> None:
        """Lets it in."""
        self.hear()
        assert self.expect(Connect).query == query
        self.hear(ServerHello(model_id="m", knows_levels=False, known_world=None))
        assert self.asking(query) == []

    def grant(self, turn: int = 1) -> None:
        self.client.request_turn()
        self.expect(TurnRequest)
        self.hear(TurnGrant(turn=turn))

    def ask(self, turn: int = 1, trigger: str = "start") -> int:
        """Sends a packet; the number of its answer."""
        self.grant(turn)
        self.client.send_request(tokens(), trigger)
        message = self.expect(TokenPacketMessage)
        assert message.turn == turn
        return message.answer

    def expect(self, kind: type[M]) -> M:
        return expect_whole(self.peer, kind)[0]

    def lose(self) -> list[object]:
        self.link.gone = True
        return self.hear()

    def close(self) -> None:
        for link in self._links:
            link.close()
        self._transport.close()


def misdeeds(events: list[object]) -> int:
    """How often it is told that the peer may not send what it sends."""
    return sum(isinstance(event, Notice) and event.code == PEER_MISBEHAVES for event in events)


Opener = Callable[..., Talk]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(150 * MS)


@pytest.fixture
def opened(clock: FakeClock) -> Iterator[Opener]:
    """Opens one dialogue with the given manners, which the answer stage has let in."""
    made: list[Talk] = []

    def opening(*, greeted: bool = True, **options: Any) -> Talk:
        talk = Talk(Transport(), clock, ClientOptions(**options))
        made.append(talk)
        if greeted:
            talk.greet()
        return talk

    yield opening
    for talk in made:
        talk.close()


class FakeJournal:
    """Holds the answers of an earlier run by number, and what is kept."""

    def __init__(self, *recalled: JournalEntry) -> None:
        self._recalled = {one.answer.answer: one for one in recalled}
        self.appended: list[tuple[Answer, Feedback | None]] = []

    def lookup(self, number: int, frame_index: int) -> JournalEntry | None:
        found = self._recalled.get(number)
        assert found is None or found.answer.frame_index == frame_index
        return found

    def append(self, answer: Answer, feedback: Feedback | None) -> None:
        self.appended.append((answer, feedback))


def tokens() -> TokenPacket:
    return TokenPacket(
        STAMP, GRID, np.zeros((2, 3), np.int32), np.ones(2, np.float32), np.zeros((2, 3, 32, 32), np.uint8)
    )


def whole_frame() -> FramePacket:
    image = np.full((64, 64, 3), 7, np.uint8)
    return FramePacket(STAMP, GRID, np.zeros((1, 3), np.int32), np.ones((2, 2), np.float32), image)


def answered(number: int, query: str = "what?", **fields: Any) -> AnswerReply:
    values = {"tokens_used": 2, "text_tokens": 3, "encode_ms": 1.0, "prefill_ms": 2.0, "decode_ms": 3.0, **fields}
    return AnswerReply(answer=number, query=query, text="all of it", **values)


def answer(number: int, frame_index: int = 5) -> Answer:
    return Answer(
        answer=number,
        frame_index=frame_index,
        pts_s=2.5,
        start_s=2.5,
        end_s=2.5,
        trigger="start",
        query="what?",
        text="of old",
        tokens_used=2,
        tokens_total=4,
        text_tokens=3,
    )


def looked(number: int, **fields: Any) -> YesNoReply:
    values = {"yes": 0.75, "certain": 0.5, "tokens_used": 2, "encode_ms": 1.0, "prefill_ms": 2.0, **fields}
    return YesNoReply(answer=number, **values)


def test_a_look_alone_ends_its_turn_and_has_no_number(opened: Opener, clock: FakeClock) -> None:
    talk = opened(standing_query="is it there?")
    talk.grant()
    talk.client.send_request(tokens(), "", wants_answer=False, yes_no_trigger="change")
    message = talk.expect(TokenPacketMessage)
    assert (message.answer, message.wants_answer) == (0, False)
    clock.advance(50 * MS)
    (event,) = talk.hear(looked(0))
    assert isinstance(event, YesNoResult)
    assert event.timing is not None
    assert (event.frame_index, event.pts_s, event.trigger, event.question) == (5, 2.5, "change", "is it there?")
    assert (event.yes, event.certain, event.holds) == (0.75, 0.5, None)
    assert (event.tokens_used, event.tokens_total, event.timing.total_ms) == (2, 4, 100.0)
    assert not talk.client.busy
    assert talk.ask(turn=2) == 0


def test_a_look_beside_an_answer_leaves_it_open(opened: Opener) -> None:
    talk = opened(standing_query="is it there?")
    assert talk.ask() == 0
    assert len(talk.hear(looked(0))) == 1
    assert talk.client.busy
    assert len(talk.hear(answered(0))) == 1
    assert not talk.client.busy


def test_a_look_that_is_repeated_with_its_question_is_told_once(opened: Opener) -> None:
    talk = opened(standing_query="is it there?", reconnect=True, resend_after_loss=True)
    talk.ask()
    assert len(talk.hear(looked(0))) == 1
    talk.lose()
    talk.greet()
    talk.expect(TurnRequest)
    talk.hear(TurnGrant(turn=1))
    assert talk.expect(TokenPacketMessage).wants_answer
    assert talk.hear(looked(0)) == []
    assert len(talk.hear(answered(0))) == 1


def test_a_look_teaches_where_it_has_something_to_teach(opened: Opener) -> None:
    talk = opened(standing_query="is it there?")
    talk.ask()
    arrays = [FEEDBACK.regions, FEEDBACK.attention, FEEDBACK.similarity]
    talk.hear(looked(0, feedback_stamp=STAMP, arrays=specs_of(*arrays)), arrays=arrays)
    feedback = talk.client.requests.take_feedback()
    assert feedback is not None
    assert feedback.stamp == STAMP


@pytest.mark.parametrize(("standing_query", "number"), [(None, 0), ("is it there?", 1)])
def test_a_look_that_nobody_asked_for_is_dropped(opened: Opener, standing_query: str | None, number: int) -> None:
    talk = opened(standing_query=standing_query)
    talk.ask()
    assert misdeeds(talk.hear(looked(number))) == 1
    assert talk.client.busy


def test_it_joins_with_its_standing_question(opened: Opener) -> None:
    talk = opened(greeted=False, standing_query="is it there?")
    talk.hear()
    assert talk.expect(Connect).standing_query == "is it there?"


def test_it_joins_once_with_its_question_and_is_ready_when_that_is_known(opened: Opener) -> None:
    talk = opened(greeted=False, encode="prune")
    talk.hear()
    assert talk.expect(Connect) == Connect(query="what?", encode="prune")
    talk.hear(ServerHello(model_id="m", knows_levels=True, known_world=None))
    assert not talk.client.ready
    talk.asking(value=0.5)
    assert talk.client.ready
    assert talk.client.hello == ServerHello(model_id="m", knows_levels=True, known_world=None)
    embedding = talk.client.take_embedding()
    assert embedding is not None
    assert (embedding.text, embedding.model_id, embedding.tokens[0, 0]) == ("what?", "m", 0.5)
    assert talk.client.take_embedding() is None
    assert talk.peer.receive() is None


def test_a_turn_is_wanted_once_and_only_when_the_answer_stage_is_ready(opened: Opener) -> None:
    talk = opened(greeted=False)
    talk.client.request_turn()
    talk.greet()
    talk.client.request_turn()
    talk.client.request_turn()
    talk.expect(TurnRequest)
    assert talk.peer.receive() is None
    assert not talk.client.may_send
    talk.hear(TurnGrant(turn=4))
    assert talk.client.may_send
    talk.client.request_turn()
    assert talk.peer.receive() is None


def test_a_turn_allows_one_packet(opened: Opener) -> None:
    talk = opened()
    talk.grant(4)
    talk.client.send_request(tokens(), "start")
    assert not talk.client.may_send
    assert talk.client.busy
    message, received = expect_whole(talk.peer, TokenPacketMessage)
    assert (message.answer, message.turn) == (0, 4)
    assert token_packet(message, received.parts).stamp == STAMP


def test_answers_are_numbered(opened: Opener) -> None:
    talk = opened()
    for number in range(3):
        assert talk.ask(turn=number) == number
        talk.hear(answered(number))


def test_an_answer_becomes_events_with_latencies_from_its_frames_capture(opened: Opener, clock: FakeClock) -> None:
    talk = opened()
    talk.ask(trigger="cut")
    clock.advance(50 * MS)
    assert talk.hear(AnswerDelta(answer=0, text="all")) == [AnswerDeltaEvent(answer=0, text="all", pts_s=2.5)]
    clock.advance(300 * MS)
    talk.hear(AnswerDelta(answer=0, text=" of it"))
    clock.advance(25 * MS)
    (event,) = talk.hear(answered(0))
    assert isinstance(event, Answer)
    assert event.timing is not None
    assert (event.timing.ttft_ms, event.timing.total_ms) == (100.0, 425.0)
    assert (event.frame_index, event.pts_s, event.start_s, event.end_s) == (5, 2.5, 2.5, 2.5)
    assert (event.trigger, event.query, event.tokens_used, event.tokens_total) == ("cut", "what?", 2, 4)
    assert (event.frames, event.kept_bytes) == (1, 0)
    assert not talk.client.busy


@pytest.mark.parametrize(("since_ns", "start_s"), [(500 * MS, 0.5), (9000 * MS, 2.5), (None, 2.5)])
def test_an_answer_about_a_window_begins_with_its_oldest_frame(
    opened: Opener, since_ns: int | None, start_s: float
) -> None:
    """A source that went back in time has no frame that is older than the last one."""
    talk = opened()
    talk.ask()
    (event,) = talk.hear(answered(0, frames=3, oldest_frame_ns=since_ns, kept_bytes=77))
    assert isinstance(event, Answer)
    assert (event.start_s, event.end_s, event.frames, event.kept_bytes) == (start_s, 2.5, 3, 77)


def test_an_answer_without_text_has_its_first_token_at_its_end(opened: Opener) -> None:
    talk = opened()
    talk.ask()
    (event,) = talk.hear(answered(0))
    assert isinstance(event, Answer)
    assert event.timing is not None
    assert event.timing.ttft_ms == event.timing.total_ms == 50.0


def test_feedback_is_taken_once_and_the_newest_wins(opened: Opener) -> None:
    talk = opened()
    for number in range(2):
        arrays = [np.zeros((1, 3), np.int32), np.full(1, number, np.float32), np.zeros(1, np.float32)]
        talk.ask(number)
        talk.hear(answered(number, feedback_stamp=STAMP, arrays=specs_of(*arrays)), arrays=arrays)
    feedback = talk.client.requests.take_feedback()
    assert feedback is not None
    assert feedback.attention[0] == 1
    assert talk.client.requests.take_feedback() is None


def test_without_a_snapshot_a_frame_travels_as_a_copy(opened: Opener) -> None:
    talk = opened()
    talk.grant()
    packet = whole_frame()
    talk.client.send_request(packet, "start")
    packet.image[:] = 255
    message, received = expect_whole(talk.peer, FramePacketMessage)
    assert (frame_packet(message, received.parts).image == 7).all()


def test_a_frame_lies_in_the_snapshot_where_there_is_one(opened: Opener) -> None:
    writer = SharedFrameWriter()
    try:
        talk = opened(snapshot=writer)
        talk.grant()
        talk.client.send_request(whole_frame(), "start")
        message, received = expect_whole(talk.peer, FramePacketMessage)
        image = SharedFrameReader(writer.descriptor).read(64, 64)
        assert (frame_packet(message, received.parts, image).image == 7).all()
        assert len(received.parts) == 2
    finally:
        writer.close()


def test_leaving_and_cancelling_are_told(opened: Opener) -> None:
    talk = opened()
    talk.client.disconnect()
    talk.expect(Disconnect)
    talk.client.cancel()
    talk.expect(Cancel)
    talk.expect(Disconnect)


def test_what_is_still_said_of_a_cancelled_answer_is_ignored(opened: Opener) -> None:
    talk = opened()
    assert talk.client.cancel_answer(STAMP) is None, "nothing is asked yet"
    talk.ask()
    talk.hear(AnswerDelta(answer=0, text="half"))
    cut = replace(STAMP, frame_index=9, media_ns=4_000 * MS)
    event = talk.client.cancel_answer(cut)
    assert event is not None
    assert (event.answer, event.text, event.by, event.by_frame_index, event.by_pts_s) == (0, "half", "cut", 9, 4.0)
    talk.expect(Cancel)
    assert not talk.client.busy
    assert talk.hear(AnswerDelta(answer=0, text=" more"), answered(0)) == []
    assert talk.ask(2) == 1
    assert talk.hear(AnswerDelta(answer=1, text="new")) == [AnswerDeltaEvent(answer=1, text="new", pts_s=2.5)]
    assert (talk.client.requests.cancelled_answers, talk.client.requests.lost_answers) == (1, 0)


@pytest.mark.parametrize("message", [AnswerDelta(answer=1, text="x"), answered(1)])
def test_an_answer_that_was_not_asked_for_is_dropped_and_told_once(opened: Opener, message: Message) -> None:
    talk = opened()
    (told,) = talk.hear(message)
    assert isinstance(told, Notice)
    assert told.code == PEER_MISBEHAVES
    assert "inproc://dialogue-1 sent invalid messages, which are dropped" in told.message
    assert "answer 1, which was not asked for" in told.message
    assert talk.ask() == 0
    assert talk.hear(message) == []
    assert talk.client.refused_messages == 2
    assert [event.text for event in talk.hear(answered(0)) if isinstance(event, Answer)] == ["all of it"]


def test_a_message_of_the_wrong_kind_is_dropped(opened: Opener) -> None:
    (told,) = opened().hear(FrameCaptured(slot=0, frame_index=0, media_ns=0, capture_ns=0))
    assert isinstance(told, Notice)
    assert "wrong kind, Frame" in told.message


@pytest.mark.parametrize("repeat", [True, False])
def test_what_cannot_be_read_spoils_the_open_answer_and_at_last_is_a_failure(opened: Opener, repeat: bool) -> None:
    talk = opened(resend_after_loss=repeat)
    for turn in range(1, UNREADABLE_MAX):
        talk.ask(turn) if turn == 1 or not repeat else talk.expect(TokenPacketMessage)
        talk.hear(AnswerDelta(answer=0, text="x" * (ANSWER_CHARS_MAX + 1)))
        assert talk.client.busy is repeat
        if repeat:
            talk.expect(TurnRequest)
            talk.hear(TurnGrant(turn=turn + 1))
    talk.ask(UNREADABLE_MAX) if not repeat else talk.expect(TokenPacketMessage)
    with pytest.raises(StageDied, match="cannot be read: Expected `str` of length <= 65536"):
        talk.hear(AnswerDelta(answer=0, text="x" * (ANSWER_CHARS_MAX + 1)))


def test_an_answer_has_an_end(opened: Opener) -> None:
    talk = opened()
    number, half = talk.ask(), "x" * (ANSWER_CHARS_MAX // 2)
    assert len(talk.hear(*[AnswerDelta(answer=number, text=half)] * 2)) == 2
    assert misdeeds(talk.hear(*[AnswerDelta(answer=number, text="y")] * 10)) == 1
    assert talk.client.refused_messages == 10
    assert isinstance(talk.hear(answered(number))[0], Answer)


def test_what_teaches_nonsense_is_an_answer_that_teaches_nothing(opened: Opener) -> None:
    talk = opened()
    lies = [
        ([[6, 0, 0]], [1.0], STAMP),
        ([[0, -1, 0]], [1.0], STAMP),
        ([[0, 2, 0]], [1.0], STAMP),
        ([[0, 0, 0]], [np.nan], STAMP),
        ([[0, 0, 0]], [1.0], dataclasses.replace(STAMP, frame_index=99)),
    ]
    for turn, (regions, attention, stamp) in enumerate(lies, 1):
        number = talk.ask(turn)
        arrays = [np.array(regions, np.int32), np.array(attention, np.float32), np.zeros(1, np.float32)]
        told = talk.hear(answered(number, feedback_stamp=stamp, arrays=specs_of(*arrays)), arrays=arrays)
        assert [event.text for event in told if isinstance(event, Answer)] == ["all of it"]
        assert talk.client.requests.take_feedback() is None
    assert talk.client.refused_messages == len(lies)


def test_nobody_is_listened_to_for_ever(opened: Opener) -> None:
    talk = opened()
    number = talk.ask()
    for _ in range(HEARD_AT_ONCE - 1):
        talk.peer.send(AnswerDelta(answer=number, text="x"))
    talk.peer.send(AnswerDelta(answer=number, text="y"))
    assert len(list(talk.client.receive_events(LIMIT_MS))) <= HEARD_AT_ONCE


def test_somebody_who_sends_nothing_else_has_failed(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.answer.client.MISDEEDS_MAX", 3)
    talk = opened()
    talk.hear(AnswerDelta(answer=7, text="x"), AnswerDelta(answer=8, text="x"))
    with pytest.raises(StageDied, match=r"3 messages in a row were invalid; the last: .* answer 9"):
        talk.hear(AnswerDelta(answer=9, text="x"))


@pytest.mark.parametrize("query", ["who are you?", ""])
def test_a_question_that_nobody_put_is_not_taken(opened: Opener, query: str) -> None:
    talk = opened()
    assert misdeeds(talk.asking(query)) == 1
    assert misdeeds(talk.hear(ServerHello(model_id="other", knows_levels=False, known_world=None))) == 0
    assert talk.client.refused_messages == 2
    assert talk.client.hello is not None
    assert talk.client.hello.model_id == "m"


def test_an_answer_to_another_question_spoils_it(opened: Opener) -> None:
    talk = opened(resend_after_loss=True)
    number = talk.ask()
    assert misdeeds(talk.hear(answered(number, query="somebody else's"))) == 1
    assert talk.client.busy
    talk.expect(TurnRequest)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("ModelNotFound", ModelNotFound),
        ("ContextLengthError", ContextLengthError),
        ("NonFiniteError", StageDied),
        ("TransportError", StageDied),
        ("ValueError", StageDied),
        ("ArrCocError", StageDied),
        ("annotations", StageDied),
    ],
)
def test_a_failure_is_raised_as_what_it_was_where_the_user_can_put_it_right(
    opened: Opener, error: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="what happened") as caught:
        opened().hear(ErrorReply(error=error, message="what happened", details=""))
    assert type(caught.value) is kind


def test_what_the_user_can_put_right_is_raised_also_where_another_answer_stage_may_come(opened: Opener) -> None:
    talk = opened(reconnect=True)
    with pytest.raises(ContextLengthError):
        talk.hear(ErrorReply(error="ContextLengthError", message="too long", details=""))


def test_a_failure_is_survived_where_another_answer_stage_may_come(opened: Opener) -> None:
    talk = opened(reconnect=True)
    talk.ask()
    talk.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
    assert (talk.connections, talk.client.requests.lost_answers) == (2, 1)
    talk.greet()
    assert talk.ask() == 1


def test_an_answer_stage_that_fails_as_soon_as_it_has_greeted_teaches_no_question(opened: Opener) -> None:
    talk = opened(reconnect=True)
    talk.client.take_embedding()
    talk.client.reconnect("gone")
    talk.hear()
    talk.expect(Connect)
    talk.peer.send(ServerHello(model_id="m", knows_levels=False, known_world=None))
    embedding = np.zeros((1, 8), np.float32)
    talk.peer.send(QueryAccepted(query="what?", model_id="m", arrays=specs_of(embedding)), [embedding])
    talk.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
    assert talk.client.hello is None
    assert talk.client.take_embedding() is None, "whoever reads it looks for the greeting that it came with"


def test_an_answer_that_is_asked_for_again_is_counted_from_its_beginning(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.answer.request.ANSWER_CHARS_MAX", 4)
    talk = opened(reconnect=True, resend_after_loss=True)
    number = talk.ask()
    assert [event.text for event in talk.hear(AnswerDelta(answer=number, text="abc"))] == ["abc"]  # type: ignore[attr-defined]
    talk.client.reconnect("gone")
    talk.greet()
    talk.grant()
    assert [event.text for event in talk.hear(AnswerDelta(answer=number, text="abc"))] == ["abc"]  # type: ignore[attr-defined]


def test_failures_one_after_the_other_are_not_survived_for_ever(opened: Opener) -> None:
    talk = opened(reconnect=True, resend_after_loss=True)
    talk.ask()
    bent = ErrorReply(error="ArithmeticError", message="bent", details="")
    for _ in range(FAILURES_MAX):
        talk.hear(bent)
    with pytest.raises(StageDied, match="bent"):
        talk.hear(bent)
    assert talk.connections == FAILURES_MAX + 1


def test_an_answer_forgives_the_failures_before_it(opened: Opener) -> None:
    talk = opened(reconnect=True)
    for turn in range(FAILURES_MAX + 2):
        talk.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
        talk.greet()
        talk.hear(answered(talk.ask(turn)))


def test_after_a_loss_the_same_is_asked_again_where_answers_are_waited_for(opened: Opener, clock: FakeClock) -> None:
    talk = opened(reconnect=True, resend_after_loss=True)
    talk.hear(answered(talk.ask()))
    talk.ask(2)
    talk.hear(AnswerDelta(answer=1, text="half"))
    clock.advance(1_000 * MS)
    talk.lose()
    assert talk.client.busy
    assert not talk.client.ready
    talk.greet()
    talk.expect(TurnRequest)
    talk.hear(TurnGrant(turn=9))
    message, received = expect_whole(talk.peer, TokenPacketMessage)
    assert (message.answer, message.turn) == (1, 9)
    assert token_packet(message, received.parts).stamp == STAMP
    clock.advance(100 * MS)
    (event,) = talk.hear(answered(1))
    assert isinstance(event, Answer)
    assert event.timing is not None
    assert event.timing.ttft_ms == event.timing.total_ms == 1_150.0
    assert talk.client.requests.lost_answers == 0


def test_after_a_loss_the_open_answer_is_given_up_where_it_would_be_late(opened: Opener) -> None:
    talk = opened(reconnect=True)
    talk.ask()
    talk.lose()
    assert not talk.client.busy
    assert talk.client.requests.lost_answers == 1
    talk.greet()
    assert talk.peer.receive() is None
    assert talk.ask() == 1


def test_a_loss_while_nothing_is_open_costs_nothing(opened: Opener) -> None:
    talk = opened(reconnect=True)
    talk.grant()
    talk.lose()
    assert talk.client.requests.lost_answers == 0
    assert not talk.client.may_send
    talk.greet()
    assert talk.ask() == 0


def test_a_question_that_was_changed_is_the_one_that_is_joined_with_again(opened: Opener) -> None:
    talk = opened(reconnect=True)
    talk.client.set_query("who?")
    talk.expect(SetQuery)
    talk.asking("who?")
    talk.lose()
    talk.greet("who?")


def test_a_question_that_was_on_its_way_when_the_answer_stage_was_lost_is_put_again(opened: Opener) -> None:
    talk = opened(reconnect=True)
    talk.client.set_query("who?")
    talk.lose()
    talk.greet("what?")
    assert talk.expect(SetQuery).query == "who?"
    assert talk.asking("who?") == [QueryChanged(query="who?")]


def test_where_it_is_watched_a_loss_is_left_to_whoever_watches(opened: Opener) -> None:
    talk = opened()
    talk.lose()
    assert talk.connections == 1


def test_where_nobody_watches_a_loss_ends_the_run(opened: Opener) -> None:
    talk = opened(supervised=False)
    with pytest.raises(StageDied, match="the connection to it was lost; is `serve-answers` still running there"):
        talk.lose()


def test_where_nobody_watches_a_loss_is_told_once_until_there_is_an_answer_again(opened: Opener) -> None:
    talk = opened(supervised=False, reconnect=True)
    (told,) = talk.lose()
    assert isinstance(told, Notice)
    assert told.code == ANSWERS_LOST
    assert told.message == "no answers: the connection was lost; reconnecting to the answer server"
    talk.greet()
    assert talk.lose() == []
    talk.greet()
    talk.hear(answered(talk.ask()))
    (told,) = talk.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
    assert isinstance(told, Notice)
    assert "bent" in told.message


def test_where_it_is_watched_nothing_more_is_told_of_a_loss(opened: Opener) -> None:
    assert opened(reconnect=True).lose() == []


def test_last_words_are_heard_before_the_loss(opened: Opener) -> None:
    talk = opened(supervised=False)
    talk.link.gone = True
    with pytest.raises(ModelNotFound):
        talk.hear(ErrorReply(error="ModelNotFound", message="nowhere", details=""))


def test_a_connection_that_is_lost_in_every_answer_is_not_looked_for_for_ever(opened: Opener) -> None:
    talk = opened(reconnect=True, resend_after_loss=True, supervised=False)
    talk.ask()
    for _ in range(FAILURES_MAX):
        talk.lose()
        talk.greet()
        talk.expect(TurnRequest)
        talk.hear(TurnGrant(turn=1))
        talk.expect(TokenPacketMessage)
    with pytest.raises(StageDied, match="the connection was lost"):
        talk.lose()


def test_being_turned_away_ends_the_run_also_where_another_answer_stage_may_come(opened: Opener) -> None:
    talk = opened(reconnect=True)
    talk.link.refused = True
    with pytest.raises(ConnectionRefused):
        talk.hear()


@pytest.mark.parametrize("repeat", [True, False])
def test_a_packet_that_came_too_late_is_sent_again_or_given_up(opened: Opener, repeat: bool) -> None:
    talk = opened(resend_after_loss=repeat)
    talk.ask(1)
    talk.hear(TurnExpired(turn=1))
    assert talk.client.requests.lost_answers == (not repeat)
    assert talk.client.busy == repeat
    if repeat:
        talk.expect(TurnRequest)
        talk.hear(TurnGrant(turn=2))
        message = talk.expect(TokenPacketMessage)
        assert (message.answer, message.turn) == (0, 2)
        (event,) = talk.hear(answered(0))
        assert isinstance(event, Answer)
    else:
        assert talk.peer.receive() is None
        assert talk.ask(2) == 1


def test_silence_counts_while_something_is_awaited(opened: Opener, clock: FakeClock) -> None:
    talk = opened()

    def pass_by(seconds: float) -> float:
        for _ in range(round(4 * seconds)):
            clock.advance(250 * MS)
            talk.hear()
        return talk.client.silence.elapsed_s

    assert pass_by(9) == 0
    talk.ask()
    assert pass_by(2) == 2
    talk.hear(KeepAlive())
    assert talk.client.silence.elapsed_s == 0
    assert pass_by(1.5) == 1.5
    talk.hear(answered(0))
    assert pass_by(1.5) == 0
    talk.client.request_turn()
    assert pass_by(2) == 2


def test_who_is_still_being_looked_for_is_not_silent(opened: Opener, clock: FakeClock) -> None:
    talk = opened(reconnect=True, resend_after_loss=True)
    talk.ask()
    talk.lose()
    for _ in range(100):
        clock.advance(600 * MS)
        talk.hear()
    assert talk.client.silence.elapsed_s == 0


def test_another_question_is_put_and_told_once_it_holds(opened: Opener) -> None:
    talk = opened()
    talk.client.take_embedding()
    talk.client.set_query("who?")
    assert talk.expect(SetQuery).query == "who?"
    assert talk.asking("who?", value=0.25) == [QueryChanged(query="who?")]
    embedding = talk.client.take_embedding()
    assert embedding is not None
    assert (embedding.text, embedding.tokens[0, 0]) == ("who?", 0.25)
    talk.ask()
    (event,) = talk.hear(answered(0, query="who?"))
    assert isinstance(event, Answer)
    assert event.query == "who?"


def test_a_question_before_it_is_ready_is_put_when_it_is(opened: Opener) -> None:
    talk = opened(greeted=False)
    talk.client.set_query("first?")
    talk.client.set_query("who?")
    talk.greet()
    assert talk.expect(SetQuery).query == "who?"
    assert talk.peer.receive() is None
    assert talk.asking("who?") == [QueryChanged(query="who?")]


def test_the_question_that_is_asked_already_may_be_put_again(opened: Opener) -> None:
    talk = opened()
    talk.client.set_query("what?")
    talk.expect(SetQuery)
    assert talk.asking() == [QueryChanged(query="what?")]


def test_a_question_that_is_refused_is_told_and_changes_nothing(opened: Opener) -> None:
    talk = opened(reconnect=True)
    talk.client.take_embedding()
    talk.client.set_query("who?")
    refused = QueryAccepted(query="who?", model_id="m", error="too long")
    assert talk.hear(refused) == [QueryChanged(query="who?", error="too long")]
    assert talk.client.take_embedding() is None
    talk.lose()
    talk.greet("what?")


def test_an_answer_is_told_with_the_question_that_it_answers(opened: Opener) -> None:
    """A packet that was sent behind a question is answered before that question is known to hold."""
    talk = opened()
    talk.grant()
    talk.client.set_query("who?")
    talk.client.send_request(tokens(), "start")
    (event,) = talk.hear(answered(0, query="who?"))
    assert isinstance(event, Answer)
    assert event.query == "who?"


def test_answers_are_kept_with_what_they_taught(opened: Opener) -> None:
    journal = FakeJournal()
    talk = opened(journal=journal)
    arrays = [FEEDBACK.regions, FEEDBACK.attention, FEEDBACK.similarity]
    talk.ask(1)
    events = talk.hear(answered(0, feedback_stamp=STAMP, arrays=specs_of(*arrays)), arrays=arrays)
    talk.ask(2)
    events += talk.hear(answered(1))
    assert [kept for kept, _ in journal.appended] == events
    first, second = (feedback for _, feedback in journal.appended)
    assert first is not None
    np.testing.assert_array_equal(first.attention, FEEDBACK.attention)
    assert second is None


def test_an_answer_of_an_earlier_run_is_told_and_learnt_from_without_asking(opened: Opener) -> None:
    old = answer(0)
    journal = FakeJournal(JournalEntry(old, FEEDBACK))
    talk = opened(journal=journal)
    now = FrameStamp(5, 2_500 * MS, 100 * MS, epoch=99)
    assert talk.client.recall(now)
    assert talk.client.busy
    assert talk.hear() == [AnswerDeltaEvent(answer=0, text="of old", pts_s=2.5), old]
    assert not talk.client.busy
    feedback = talk.client.requests.take_feedback()
    assert feedback is not None
    assert feedback.stamp == now
    assert talk.peer.receive() is None
    assert not talk.client.recall(now)
    assert talk.ask() == 1
    talk.hear(answered(1))
    assert [kept.answer for kept, _ in journal.appended] == [1]


def test_an_answer_may_have_taught_nothing(opened: Opener) -> None:
    talk = opened(journal=FakeJournal(JournalEntry(answer(0), None)))
    assert talk.client.recall(STAMP)
    talk.hear()
    assert talk.client.requests.take_feedback() is None


def test_without_a_journal_nothing_is_recalled(opened: Opener) -> None:
    assert not opened().client.recall(STAMP)


def test_a_question_before_a_greeting_is_refused(opened: Opener) -> None:
    talk = opened(greeted=False)
    assert misdeeds(talk.asking()) == 1
    assert not talk.client.ready


def test_it_waits_no_longer_than_it_is_told(opened: Opener) -> None:
    talk = opened()
    assert list(talk.client.receive_events(1)) == []
    talk.peer.send(TurnGrant(turn=3))
    assert list(talk.client.receive_events(LIMIT_MS)) == []
    assert talk.client.may_send


def test_an_answer_is_known_after_many_questions_that_were_put_meanwhile(opened: Opener) -> None:
    talk = opened()
    number = talk.ask()
    later = [f"and {index}?" for index in range(20)]
    for query in later:
        talk.client.set_query(query)
    assert misdeeds(talk.asking(later[0])) == 0
    events = talk.hear(answered(number))
    assert [type(event) for event in events] == [Answer]
    assert talk.client.refused_messages == 0
