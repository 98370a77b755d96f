"""Client of the answer server: what it makes of messages and of losses, and what it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
import pytest
import torch

from arr_coc.errors import ContextLengthError, DeviceLost, ModelNotFound
from arr_coc.types import NS_PER_S, Feedback, FramePacket, FrameStamp, TileGrid, TokenPacket
from stream.answer.client import (
    ANSWER_SERVER,
    FAILURE_PAUSE_MAX_NS,
    FAILURE_PAUSE_NS,
    FAILURES_MAX,
    MODEL_NOTICE,
    PIXELS_COPIED,
    REFUSED_PAUSE_NS,
    UNREADABLE_MAX,
    AnswerClient,
    SilenceTimer,
)
from stream.answer.request import REPEATS_MAX, ClientOptions
from stream.errors import ConnectionRefused, StageDied
from stream.events import ANSWERS_LOST, PEER_MISBEHAVES, Answer, AnswerDeltaEvent, Notice, QueryChanged, YesNoResult
from stream.protocol.buffers import SharedFrameReader, SharedFrameWriter
from stream.protocol.codec import frame_packet, specs_of, token_packet
from stream.protocol.device_pixels import LocalPixels
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    Connect,
    Disconnect,
    ErrorReply,
    FrameCaptured,
    FramePacketMessage,
    GlancePacketMessage,
    KeepAlive,
    Message,
    PixelPlace,
    QueryAccepted,
    RequestLost,
    ServerHello,
    SetQuery,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
)
from stream.recording.journal import JournalEntry, JournalGlance
from stream.transport import Link, Transport
from stream.transport.pool import ServerPool
from stream.untrusted import ANSWER_CHARS_MAX, HEARD_AT_ONCE
from tests.support.clock import FakeClock
from tests.support.events import answer as made_answer
from tests.support.events import make_answer_reply, make_frame_packet, make_token_packet, make_yes_no_reply
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


class ScriptedPool:
    """A pool of servers that says what a test wants, and remembers what it is told."""

    hopeful, problems = True, ""

    def __init__(self) -> None:
        self.noted: list[tuple[str, ...]] = []
        self.fitter = False
        self.reason: str | None = None
        self.refusals: list[str] = []
        self.refusal: Exception | None = None
        self.asked: list[tuple[KeepAlive, bool]] = []
        self.closed = self.lifeless = False

    def is_lifeless(self, endpoint: str) -> bool:
        return self.lifeless

    def has_fitter(self, endpoint: str) -> bool:
        fitter, self.fitter = self.fitter, False
        return fitter

    def reason_to_move(self, endpoint: str, load: KeepAlive, *, keeps_window: bool = False) -> str | None:
        self.asked.append((load, keeps_window))
        reason, self.reason = self.reason, None
        return reason

    def take_refusals(self) -> list[str]:
        refusals, self.refusals = self.refusals, []
        return refusals

    def refusal_of_all(self) -> Exception | None:
        return self.refusal

    def label(self, endpoint: str) -> str:
        return endpoint.removeprefix("inproc://")

    def note_lost(self, endpoint: str) -> None:
        self.noted.append(("lost", self.label(endpoint)))

    def note_failed(self, endpoint: str, problem: Exception | None = None) -> None:
        self.noted.append(("failed", self.label(endpoint), str(problem)))
        if problem is not None:
            self.refusals.append(f"{self.label(endpoint)}: {problem}")

    def note_answered(self, endpoint: str) -> None:
        self.noted.append(("answered", self.label(endpoint)))

    def close(self) -> None:
        self.closed = True


class ServerFixture:
    """A client, and the test in its server's place; each connection is a pair of its own."""

    def __init__(
        self, transport: Transport, clock: FakeClock, options: ClientOptions, pool: ScriptedPool | None = None
    ) -> None:
        self._transport = transport
        self._links: list[Link] = []
        self.connections = 0
        self.client = AnswerClient("what?", options, clock)
        self.client.open(self._connect, cast(ServerPool | None, pool))

    def _connect(self) -> Link:
        self.connections += 1
        endpoint = f"inproc://client-{self.connections}"
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

    def greet(self, query: str = "what?") -> list[object]:
        """Lets it in; the events, which there are only with a pool."""
        self.hear()
        assert self.expect(Connect).query == query
        self.hear(ServerHello(model_id="m", knows_levels=False, known_world=None))
        events = self.asking(query)
        assert self.client._pool is not None or events == []
        return events

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


Opener = Callable[..., ServerFixture]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(150 * MS)


@pytest.fixture
def opened(clock: FakeClock) -> Iterator[Opener]:
    """Opens one client with the given options, which the server has admitted."""
    made: list[ServerFixture] = []

    def opening(*, greeted: bool = True, pool: ScriptedPool | None = None, **options: Any) -> ServerFixture:
        server = ServerFixture(Transport(), clock, ClientOptions(**options), pool)
        made.append(server)
        if greeted:
            server.greet()
        return server

    yield opening
    for server in made:
        server.close()


class FakeJournal:
    """Holds the answers of an earlier run by number, and what is kept."""

    def __init__(self, *recalled: JournalEntry) -> None:
        self._recalled = {one.answer.answer: one for one in recalled}
        self.appended: list[tuple[Answer, Feedback | None]] = []
        self.glances: list[JournalGlance | None] = []

    def lookup(self, number: int, frame_index: int) -> JournalEntry | None:
        found = self._recalled.get(number)
        assert found is None or found.answer.frame_index == frame_index
        return found

    def append(self, answer: Answer, feedback: Feedback | None, glance: JournalGlance | None) -> None:
        self.appended.append((answer, feedback))
        self.glances.append(glance)


def tokens() -> TokenPacket:
    return make_token_packet(STAMP, GRID, tokens=2)


def whole_frame() -> FramePacket:
    return make_frame_packet(STAMP, GRID, 7)


def answered(number: int, query: str = "what?", **fields: Any) -> AnswerReply:
    return make_answer_reply(number, query, "all of it", **fields)


def answer(number: int, frame_index: int = 5) -> Answer:
    return msgspec.structs.replace(made_answer(2.5, "of old", frame_index=frame_index), answer=number)


def test_a_look_alone_ends_its_turn_and_has_no_number(opened: Opener, clock: FakeClock) -> None:
    server = opened(standing_query="is it there?")
    server.grant()
    server.client.send_request(tokens(), "", wants_answer=False, yes_no_trigger="change")
    message = server.expect(TokenPacketMessage)
    assert (message.answer, message.wants_answer) == (0, False)
    clock.advance(50 * MS)
    (event,) = server.hear(make_yes_no_reply(0))
    assert isinstance(event, YesNoResult)
    assert event.timing is not None
    assert (event.frame_index, event.pts_s, event.trigger, event.question) == (5, 2.5, "change", "is it there?")
    assert (event.yes, event.certain, event.holds) == (0.75, 0.5, None)
    assert (event.tokens_used, event.tokens_total, event.timing.total_ms) == (2, 4, 100.0)
    assert not server.client.busy
    assert server.ask(turn=2) == 0


def test_a_look_beside_an_answer_leaves_it_open(opened: Opener) -> None:
    server = opened(standing_query="is it there?")
    assert server.ask() == 0
    assert len(server.hear(make_yes_no_reply(0))) == 1
    assert server.client.busy
    assert len(server.hear(answered(0))) == 1
    assert not server.client.busy


def test_a_look_that_is_repeated_with_its_question_is_reported_once(opened: Opener) -> None:
    server = opened(standing_query="is it there?", reconnect=True, resend_after_loss=True)
    server.ask()
    assert len(server.hear(make_yes_no_reply(0))) == 1
    server.lose()
    server.greet()
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=1))
    assert server.expect(TokenPacketMessage).wants_answer
    assert server.hear(make_yes_no_reply(0)) == []
    assert len(server.hear(answered(0))) == 1


def test_a_look_teaches_where_it_has_something_to_teach(opened: Opener) -> None:
    server = opened(standing_query="is it there?")
    server.ask()
    arrays = [FEEDBACK.regions, FEEDBACK.attention, FEEDBACK.similarity]
    server.hear(make_yes_no_reply(0, feedback_stamp=STAMP, arrays=specs_of(*arrays)), arrays=arrays)
    feedback = server.client.requests.take_feedback()
    assert feedback is not None
    assert feedback.stamp == STAMP


@pytest.mark.parametrize(("standing_query", "number"), [(None, 0), ("is it there?", 1)])
def test_a_look_that_nobody_asked_for_is_dropped(opened: Opener, standing_query: str | None, number: int) -> None:
    server = opened(standing_query=standing_query)
    server.ask()
    assert misdeeds(server.hear(make_yes_no_reply(number))) == 1
    assert server.client.busy


def test_it_joins_with_its_standing_question(opened: Opener) -> None:
    server = opened(greeted=False, standing_query="is it there?")
    server.hear()
    assert server.expect(Connect).standing_query == "is it there?"


def test_it_joins_once_with_its_question_and_is_ready_when_that_is_known(opened: Opener) -> None:
    server = opened(greeted=False, encode="prune")
    server.hear()
    assert server.expect(Connect) == Connect(query="what?", encode="prune")
    server.hear(ServerHello(model_id="m", knows_levels=True, known_world=None))
    assert not server.client.ready
    server.asking(value=0.5)
    assert server.client.ready
    assert server.client.hello == ServerHello(model_id="m", knows_levels=True, known_world=None)
    embedding = server.client.take_embedding()
    assert embedding is not None
    assert (embedding.text, embedding.model_id, embedding.tokens[0, 0]) == ("what?", "m", 0.5)
    assert server.client.take_embedding() is None
    assert server.peer.receive() is None


def test_a_turn_is_wanted_once_and_only_when_the_answer_stage_is_ready(opened: Opener) -> None:
    server = opened(greeted=False)
    server.client.request_turn()
    server.greet()
    server.client.request_turn()
    server.client.request_turn()
    server.expect(TurnRequest)
    assert server.peer.receive() is None
    assert not server.client.may_send
    server.hear(TurnGrant(turn=4))
    assert server.client.may_send
    server.client.request_turn()
    assert server.peer.receive() is None


def test_a_turn_allows_one_packet(opened: Opener) -> None:
    server = opened()
    server.grant(4)
    server.client.send_request(tokens(), "start")
    assert not server.client.may_send
    assert server.client.busy
    message, received = expect_whole(server.peer, TokenPacketMessage)
    assert (message.answer, message.turn) == (0, 4)
    assert token_packet(message, received.parts).stamp == STAMP


def test_answers_are_numbered(opened: Opener) -> None:
    server = opened()
    for number in range(3):
        assert server.ask(turn=number) == number
        server.hear(answered(number))


def test_an_answer_becomes_events_with_latencies_from_its_frames_capture(opened: Opener, clock: FakeClock) -> None:
    server = opened()
    server.ask(trigger="cut")
    clock.advance(50 * MS)
    assert server.hear(AnswerDelta(answer=0, text="all")) == [AnswerDeltaEvent(answer=0, text="all", pts_s=2.5)]
    clock.advance(300 * MS)
    server.hear(AnswerDelta(answer=0, text=" of it"))
    clock.advance(25 * MS)
    (event,) = server.hear(answered(0))
    assert isinstance(event, Answer)
    assert event.timing is not None
    assert (event.timing.ttft_ms, event.timing.total_ms) == (100.0, 425.0)
    assert (event.frame_index, event.pts_s, event.start_s, event.end_s) == (5, 2.5, 2.5, 2.5)
    assert (event.trigger, event.query, event.tokens_used, event.tokens_total) == ("cut", "what?", 2, 4)
    assert (event.frames, event.kept_bytes) == (1, 0)
    assert not server.client.busy


@pytest.mark.parametrize(("since_ns", "start_s"), [(500 * MS, 0.5), (9000 * MS, 2.5), (None, 2.5)])
def test_an_answer_about_a_window_begins_with_its_oldest_frame(
    opened: Opener, since_ns: int | None, start_s: float
) -> None:
    """A source that went back in time has no frame that is older than the last one."""
    server = opened()
    server.ask()
    (event,) = server.hear(answered(0, frames=3, oldest_frame_ns=since_ns, kept_bytes=77))
    assert isinstance(event, Answer)
    assert (event.start_s, event.end_s, event.frames, event.kept_bytes) == (start_s, 2.5, 3, 77)


def test_an_answer_without_text_has_its_first_token_at_its_end(opened: Opener) -> None:
    server = opened()
    server.ask()
    (event,) = server.hear(answered(0))
    assert isinstance(event, Answer)
    assert event.timing is not None
    assert event.timing.ttft_ms == event.timing.total_ms == 50.0


def test_feedback_is_taken_once_and_the_newest_wins(opened: Opener) -> None:
    server = opened()
    for number in range(2):
        arrays = [np.zeros((1, 3), np.int32), np.full(1, number, np.float32), np.zeros(1, np.float32)]
        server.ask(number)
        server.hear(answered(number, feedback_stamp=STAMP, arrays=specs_of(*arrays)), arrays=arrays)
    feedback = server.client.requests.take_feedback()
    assert feedback is not None
    assert feedback.attention[0] == 1
    assert server.client.requests.take_feedback() is None


def test_without_a_snapshot_a_frame_travels_as_a_copy(opened: Opener) -> None:
    server = opened()
    server.grant()
    packet = whole_frame()
    server.client.send_request(packet, "start")
    packet.image[:] = 255
    message, received = expect_whole(server.peer, FramePacketMessage)
    assert (frame_packet(message, received.parts).image == 7).all()


def test_a_frame_lies_in_the_snapshot_where_there_is_one(opened: Opener) -> None:
    writer = SharedFrameWriter()
    try:
        server = opened(snapshot=writer)
        server.grant()
        server.client.send_request(whole_frame(), "start")
        message, received = expect_whole(server.peer, FramePacketMessage)
        image = SharedFrameReader(writer.descriptor).read(64, 64)
        assert (frame_packet(message, received.parts, image).image == 7).all()
        assert len(received.parts) == 2
    finally:
        writer.close()


def test_leaving_and_cancelling_are_reported(opened: Opener) -> None:
    server = opened()
    server.client.disconnect()
    server.expect(Disconnect)
    server.client.cancel()
    server.expect(Cancel)
    server.expect(Disconnect)


def test_what_is_still_said_of_a_cancelled_answer_is_ignored(opened: Opener) -> None:
    server = opened()
    assert server.client.cancel_answer(STAMP) is None, "nothing is asked yet"
    server.ask()
    server.hear(AnswerDelta(answer=0, text="half"))
    cut = replace(STAMP, frame_index=9, media_ns=4_000 * MS)
    event = server.client.cancel_answer(cut)
    assert event is not None
    assert (event.answer, event.text, event.by, event.by_frame_index, event.by_pts_s) == (0, "half", "cut", 9, 4.0)
    server.expect(Cancel)
    assert not server.client.busy
    assert server.hear(AnswerDelta(answer=0, text=" more"), answered(0)) == []
    assert server.ask(2) == 1
    assert server.hear(AnswerDelta(answer=1, text="new")) == [AnswerDeltaEvent(answer=1, text="new", pts_s=2.5)]
    assert (server.client.requests.cancelled_answers, server.client.requests.lost_answers) == (1, 0)


@pytest.mark.parametrize("message", [AnswerDelta(answer=1, text="x"), answered(1)])
def test_an_answer_that_was_not_asked_for_is_dropped_and_reported_once(opened: Opener, message: Message) -> None:
    server = opened()
    (reported,) = server.hear(message)
    assert isinstance(reported, Notice)
    assert reported.code == PEER_MISBEHAVES
    assert "inproc://client-1 sent invalid messages, which are dropped" in reported.message
    assert "answer 1, which was not asked for" in reported.message
    assert server.ask() == 0
    assert server.hear(message) == []
    assert server.client.refused_messages == 2
    assert [event.text for event in server.hear(answered(0)) if isinstance(event, Answer)] == ["all of it"]


def test_a_message_of_the_wrong_kind_is_dropped(opened: Opener) -> None:
    (reported,) = opened().hear(FrameCaptured(slot=0, frame_index=0, media_ns=0, capture_ns=0))
    assert isinstance(reported, Notice)
    assert "wrong kind, Frame" in reported.message


@pytest.mark.parametrize("repeat", [True, False])
def test_what_cannot_be_read_spoils_the_open_answer_and_at_last_is_a_failure(opened: Opener, repeat: bool) -> None:
    server = opened(resend_after_loss=repeat)
    for turn in range(1, UNREADABLE_MAX):
        server.ask(turn) if turn == 1 or not repeat else server.expect(TokenPacketMessage)
        server.hear(AnswerDelta(answer=0, text="x" * (ANSWER_CHARS_MAX + 1)))
        assert server.client.busy is repeat
        if repeat:
            server.expect(TurnRequest)
            server.hear(TurnGrant(turn=turn + 1))
    server.ask(UNREADABLE_MAX) if not repeat else server.expect(TokenPacketMessage)
    with pytest.raises(StageDied, match="cannot be read: Expected `str` of length <= 65536"):
        server.hear(AnswerDelta(answer=0, text="x" * (ANSWER_CHARS_MAX + 1)))


def test_an_answer_has_an_end(opened: Opener) -> None:
    server = opened()
    number, half = server.ask(), "x" * (ANSWER_CHARS_MAX // 2)
    assert len(server.hear(*[AnswerDelta(answer=number, text=half)] * 2)) == 2
    assert misdeeds(server.hear(*[AnswerDelta(answer=number, text="y")] * 10)) == 1
    assert server.client.refused_messages == 10
    assert isinstance(server.hear(answered(number))[0], Answer)


def test_what_teaches_nonsense_is_an_answer_that_teaches_nothing(opened: Opener) -> None:
    server = opened()
    lies = [
        ([[14, 0, 0]], [1.0], STAMP),
        ([[0, -1, 0]], [1.0], STAMP),
        ([[0, 2, 0]], [1.0], STAMP),
        ([[0, 0, 0]], [np.nan], STAMP),
        ([[0, 0, 0]], [1.0], dataclasses.replace(STAMP, frame_index=99)),
    ]
    for turn, (regions, attention, stamp) in enumerate(lies, 1):
        number = server.ask(turn)
        arrays = [np.array(regions, np.int32), np.array(attention, np.float32), np.zeros(1, np.float32)]
        reported = server.hear(answered(number, feedback_stamp=stamp, arrays=specs_of(*arrays)), arrays=arrays)
        assert [event.text for event in reported if isinstance(event, Answer)] == ["all of it"]
        assert server.client.requests.take_feedback() is None
    assert server.client.refused_messages == len(lies)


def test_nobody_is_listened_to_for_ever(opened: Opener) -> None:
    server = opened()
    number = server.ask()
    for _ in range(HEARD_AT_ONCE - 1):
        server.peer.send(AnswerDelta(answer=number, text="x"))
    server.peer.send(AnswerDelta(answer=number, text="y"))
    assert len(list(server.client.receive_events(LIMIT_MS))) <= HEARD_AT_ONCE


def test_somebody_who_sends_nothing_else_has_failed(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.answer.client.MISDEEDS_MAX", 3)
    server = opened()
    server.hear(AnswerDelta(answer=7, text="x"), AnswerDelta(answer=8, text="x"))
    with pytest.raises(StageDied, match=r"3 messages in a row were invalid; the last: .* answer 9"):
        server.hear(AnswerDelta(answer=9, text="x"))


@pytest.mark.parametrize("query", ["who are you?", ""])
def test_a_question_that_nobody_put_is_not_taken(opened: Opener, query: str) -> None:
    server = opened()
    assert misdeeds(server.asking(query)) == 1
    assert misdeeds(server.hear(ServerHello(model_id="other", knows_levels=False, known_world=None))) == 0
    assert server.client.refused_messages == 2
    assert server.client.hello is not None
    assert server.client.hello.model_id == "m"


def test_an_answer_to_another_question_spoils_it(opened: Opener) -> None:
    server = opened(resend_after_loss=True)
    number = server.ask()
    assert misdeeds(server.hear(answered(number, query="somebody else's"))) == 1
    assert server.client.busy
    server.expect(TurnRequest)


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
    server = opened(reconnect=True)
    with pytest.raises(ContextLengthError):
        server.hear(ErrorReply(error="ContextLengthError", message="too long", details=""))


def test_a_failure_is_survived_where_another_answer_stage_may_come(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.ask()
    server.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
    assert (server.connections, server.client.requests.lost_answers) == (2, 1)
    server.greet()
    assert server.ask() == 1


def test_an_answer_stage_that_fails_as_soon_as_it_has_greeted_teaches_no_question(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.client.take_embedding()
    server.client.reconnect("gone")
    server.hear()
    server.expect(Connect)
    server.peer.send(ServerHello(model_id="m", knows_levels=False, known_world=None))
    embedding = np.zeros((1, 8), np.float32)
    server.peer.send(QueryAccepted(query="what?", model_id="m", arrays=specs_of(embedding)), [embedding])
    server.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
    assert server.client.hello is None
    assert server.client.take_embedding() is None, "whoever reads it looks for the greeting that it came with"


def test_an_answer_that_is_asked_for_again_is_counted_from_its_beginning(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stream.answer.request.ANSWER_CHARS_MAX", 4)
    server = opened(reconnect=True, resend_after_loss=True)
    number = server.ask()
    assert [event.text for event in server.hear(AnswerDelta(answer=number, text="abc"))] == ["abc"]  # type: ignore[attr-defined]
    server.client.reconnect("gone")
    server.greet()
    server.grant()
    assert [event.text for event in server.hear(AnswerDelta(answer=number, text="abc"))] == ["abc"]  # type: ignore[attr-defined]


def test_failures_one_after_the_other_are_not_survived_for_ever(opened: Opener) -> None:
    server = opened(reconnect=True, resend_after_loss=True)
    server.ask()
    bent = ErrorReply(error="ArithmeticError", message="bent", details="")
    for _ in range(FAILURES_MAX):
        server.hear(bent)
    with pytest.raises(StageDied, match="bent"):
        server.hear(bent)
    assert server.connections == FAILURES_MAX + 1


def test_an_answer_forgives_the_failures_before_it(opened: Opener) -> None:
    server = opened(reconnect=True)
    for turn in range(FAILURES_MAX + 2):
        server.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
        server.greet()
        server.hear(answered(server.ask(turn)))


def test_after_a_loss_the_same_is_asked_again_where_answers_are_waited_for(opened: Opener, clock: FakeClock) -> None:
    server = opened(reconnect=True, resend_after_loss=True)
    server.hear(answered(server.ask()))
    server.ask(2)
    server.hear(AnswerDelta(answer=1, text="half"))
    clock.advance(1_000 * MS)
    server.lose()
    assert server.client.busy
    assert not server.client.ready
    server.greet()
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=9))
    message, received = expect_whole(server.peer, TokenPacketMessage)
    assert (message.answer, message.turn) == (1, 9)
    assert token_packet(message, received.parts).stamp == STAMP
    clock.advance(100 * MS)
    (event,) = server.hear(answered(1))
    assert isinstance(event, Answer)
    assert event.timing is not None
    assert event.timing.ttft_ms == event.timing.total_ms == 1_150.0
    assert server.client.requests.lost_answers == 0


def test_after_a_loss_the_open_answer_is_given_up_where_it_would_be_late(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.ask()
    server.lose()
    assert not server.client.busy
    assert server.client.requests.lost_answers == 1
    server.greet()
    assert server.peer.receive() is None
    assert server.ask() == 1


def test_a_loss_while_nothing_is_open_costs_nothing(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.grant()
    server.lose()
    assert server.client.requests.lost_answers == 0
    assert not server.client.may_send
    server.greet()
    assert server.ask() == 0


def test_a_question_that_was_changed_is_the_one_that_is_joined_with_again(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.client.set_query("who?")
    server.expect(SetQuery)
    server.asking("who?")
    server.lose()
    server.greet("who?")


def test_a_question_that_was_on_its_way_when_the_answer_stage_was_lost_is_put_again(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.client.set_query("who?")
    server.lose()
    server.greet("what?")
    assert server.expect(SetQuery).query == "who?"
    assert server.asking("who?") == [QueryChanged(query="who?")]


def test_where_it_is_watched_a_loss_is_left_to_whoever_watches(opened: Opener) -> None:
    server = opened()
    server.lose()
    assert server.connections == 1


def test_where_nobody_watches_a_loss_ends_the_run(opened: Opener) -> None:
    server = opened(supervised=False)
    with pytest.raises(StageDied, match="the connection to it was lost; is `serve-answers` still running there"):
        server.lose()


def test_where_nobody_watches_a_loss_is_reported_once_until_there_is_an_answer_again(opened: Opener) -> None:
    server = opened(supervised=False, reconnect=True)
    (reported,) = server.lose()
    assert isinstance(reported, Notice)
    assert reported.code == ANSWERS_LOST
    assert reported.message == "no answers: the connection was lost; reconnecting to the answer server"
    server.greet()
    assert server.lose() == []
    server.greet()
    server.hear(answered(server.ask()))
    (reported,) = server.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
    assert isinstance(reported, Notice)
    assert "bent" in reported.message


def test_where_it_is_watched_nothing_more_is_reported_of_a_loss(opened: Opener) -> None:
    assert opened(reconnect=True).lose() == []


def test_last_words_are_received_before_the_loss(opened: Opener) -> None:
    server = opened(supervised=False)
    server.link.gone = True
    with pytest.raises(ModelNotFound):
        server.hear(ErrorReply(error="ModelNotFound", message="nowhere", details=""))


def test_a_connection_that_is_lost_in_every_answer_is_not_looked_for_for_ever(opened: Opener) -> None:
    server = opened(reconnect=True, resend_after_loss=True, supervised=False)
    server.ask()
    for _ in range(FAILURES_MAX):
        server.lose()
        server.greet()
        server.expect(TurnRequest)
        server.hear(TurnGrant(turn=1))
        server.expect(TokenPacketMessage)
    with pytest.raises(StageDied, match="the connection was lost"):
        server.lose()


def test_being_turned_away_ends_the_run_also_where_another_answer_stage_may_come(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.link.refused = True
    with pytest.raises(ConnectionRefused):
        server.hear()


@pytest.mark.parametrize("repeat", [True, False])
def test_a_packet_that_came_too_late_is_sent_again_or_given_up(opened: Opener, repeat: bool) -> None:
    server = opened(resend_after_loss=repeat)
    server.ask(1)
    server.hear(TurnExpired(turn=1))
    assert server.client.requests.lost_answers == (not repeat)
    assert server.client.busy == repeat
    if repeat:
        server.expect(TurnRequest)
        server.hear(TurnGrant(turn=2))
        message = server.expect(TokenPacketMessage)
        assert (message.answer, message.turn) == (0, 2)
        (event,) = server.hear(answered(0))
        assert isinstance(event, Answer)
    else:
        assert server.peer.receive() is None
        assert server.ask(2) == 1


def test_silence_counts_while_something_is_awaited(opened: Opener, clock: FakeClock) -> None:
    server = opened()

    def pass_by(seconds: float) -> float:
        for _ in range(round(4 * seconds)):
            clock.advance(250 * MS)
            server.hear()
        return server.client.silence.elapsed_s

    assert pass_by(9) == 0
    server.ask()
    assert pass_by(2) == 2
    server.hear(KeepAlive())
    assert server.client.silence.elapsed_s == 0
    assert pass_by(1.5) == 1.5
    server.hear(answered(0))
    assert pass_by(1.5) == 0
    server.client.request_turn()
    assert pass_by(2) == 2


def test_who_is_still_being_looked_for_is_not_silent(opened: Opener, clock: FakeClock) -> None:
    server = opened(reconnect=True, resend_after_loss=True)
    server.ask()
    server.lose()
    for _ in range(100):
        clock.advance(600 * MS)
        server.hear()
    assert server.client.silence.elapsed_s == 0


def test_another_question_is_put_and_reported_once_it_holds(opened: Opener) -> None:
    server = opened()
    server.client.take_embedding()
    server.client.set_query("who?")
    assert server.expect(SetQuery).query == "who?"
    assert server.asking("who?", value=0.25) == [QueryChanged(query="who?")]
    embedding = server.client.take_embedding()
    assert embedding is not None
    assert (embedding.text, embedding.tokens[0, 0]) == ("who?", 0.25)
    server.ask()
    (event,) = server.hear(answered(0, query="who?"))
    assert isinstance(event, Answer)
    assert event.query == "who?"


def test_a_question_before_it_is_ready_is_put_when_it_is(opened: Opener) -> None:
    server = opened(greeted=False)
    server.client.set_query("first?")
    server.client.set_query("who?")
    server.greet()
    assert server.expect(SetQuery).query == "who?"
    assert server.peer.receive() is None
    assert server.asking("who?") == [QueryChanged(query="who?")]


def test_the_question_that_is_asked_already_may_be_put_again(opened: Opener) -> None:
    server = opened()
    server.client.set_query("what?")
    server.expect(SetQuery)
    assert server.asking() == [QueryChanged(query="what?")]


def test_a_question_that_is_refused_is_reported_and_changes_nothing(opened: Opener) -> None:
    server = opened(reconnect=True)
    server.client.take_embedding()
    server.client.set_query("who?")
    refused = QueryAccepted(query="who?", model_id="m", error="too long")
    assert server.hear(refused) == [QueryChanged(query="who?", error="too long")]
    assert server.client.take_embedding() is None
    server.lose()
    server.greet("what?")


def test_an_answer_is_reported_with_the_question_that_it_answers(opened: Opener) -> None:
    """A packet that was sent behind a question is answered before that question is known to hold."""
    server = opened()
    server.grant()
    server.client.set_query("who?")
    server.client.send_request(tokens(), "start")
    (event,) = server.hear(answered(0, query="who?"))
    assert isinstance(event, Answer)
    assert event.query == "who?"


def test_answers_are_kept_with_what_they_taught(opened: Opener) -> None:
    journal = FakeJournal()
    server = opened(journal=journal)
    arrays = [FEEDBACK.regions, FEEDBACK.attention, FEEDBACK.similarity]
    server.ask(1)
    events = server.hear(answered(0, feedback_stamp=STAMP, arrays=specs_of(*arrays)), arrays=arrays)
    server.ask(2)
    events += server.hear(answered(1))
    assert [kept for kept, _ in journal.appended] == events
    first, second = (feedback for _, feedback in journal.appended)
    assert first is not None
    np.testing.assert_array_equal(first.attention, FEEDBACK.attention)
    assert second is None


def test_an_answer_of_an_earlier_run_is_reported_and_learnt_from_without_asking(opened: Opener) -> None:
    old = answer(0)
    journal = FakeJournal(JournalEntry(old, FEEDBACK))
    server = opened(journal=journal)
    now = FrameStamp(5, 2_500 * MS, 100 * MS, epoch=99)
    assert server.client.recall(now)
    assert server.client.busy
    assert server.hear() == [AnswerDeltaEvent(answer=0, text="of old", pts_s=2.5), old]
    assert not server.client.busy
    feedback = server.client.requests.take_feedback()
    assert feedback is not None
    assert feedback.stamp == now
    assert server.peer.receive() is None
    assert not server.client.recall(now)
    assert server.ask() == 1
    server.hear(answered(1))
    assert [kept.answer for kept, _ in journal.appended] == [1]


def test_an_answer_may_have_taught_nothing(opened: Opener) -> None:
    server = opened(journal=FakeJournal(JournalEntry(answer(0), None)))
    assert server.client.recall(STAMP)
    server.hear()
    assert server.client.requests.take_feedback() is None


def test_without_a_journal_nothing_is_recalled(opened: Opener) -> None:
    assert not opened().client.recall(STAMP)


def test_a_reply_to_the_question_before_a_greeting_is_a_failure(opened: Opener) -> None:
    server = opened(greeted=False)
    with pytest.raises(StageDied, match="accepted a question before it named its model"):
        server.asking()


def test_a_refused_reply_to_the_first_question_is_not_awaited(opened: Opener) -> None:
    server = opened(greeted=False)
    server.hear(ServerHello(model_id="m", knows_levels=False, known_world=None))
    with pytest.raises(StageDied, match=r"its reply to the question cannot be used: .*number") as caught:
        server.asking(value=np.nan)
    assert "\n" not in str(caught.value)


def test_first_messages_that_cannot_be_read_are_a_failure(opened: Opener) -> None:
    server = opened(greeted=False)
    with pytest.raises(StageDied, match="its first messages cannot be used: "):
        server.hear(ServerHello(model_id="m" * 2000, knows_levels=False, known_world=None))


def test_a_refused_reply_to_another_question_leaves_the_one_in_force(opened: Opener) -> None:
    server = opened()
    server.client.set_query("who?")
    events = server.asking("who?", np.nan)
    assert misdeeds(events) == 1
    (change,) = [event for event in events if isinstance(event, QueryChanged)]
    assert change.query == "who?"
    assert change.error is not None
    assert "cannot be used" in change.error
    assert server.client.ready
    server.client.set_query("when?")
    assert [event.error for event in server.asking("when?") if isinstance(event, QueryChanged)] == [None]


def test_it_waits_no_longer_than_it_is_asked_to(opened: Opener) -> None:
    server = opened()
    assert list(server.client.receive_events(1)) == []
    server.peer.send(TurnGrant(turn=3))
    assert list(server.client.receive_events(LIMIT_MS)) == []
    assert server.client.may_send


def test_an_answer_is_known_after_many_questions_that_were_put_meanwhile(opened: Opener) -> None:
    server = opened()
    number = server.ask()
    later = [f"and {index}?" for index in range(20)]
    for query in later:
        server.client.set_query(query)
    assert misdeeds(server.asking(later[0])) == 0
    events = server.hear(answered(number))
    assert [type(event) for event in events] == [Answer]
    assert server.client.refused_messages == 0


def test_silence_adds_up_while_something_is_awaited_and_nothing_comes() -> None:
    clock = FakeClock()
    timer = SilenceTimer(clock)
    for _ in range(4):
        clock.advance(NS_PER_S // 2)
        timer.update(waiting=True, received=False)
    assert timer.elapsed_s == 2
    timer.update(waiting=True, received=True)
    assert timer.elapsed_s == 0
    clock.advance(NS_PER_S // 2)
    timer.update(waiting=True, received=False)
    assert timer.elapsed_s == 0.5
    timer.update(waiting=False, received=False)
    assert timer.elapsed_s == 0


def test_a_run_that_was_suspended_for_an_hour_has_not_been_kept_waiting() -> None:
    clock = FakeClock()
    timer = SilenceTimer(clock)
    clock.advance(3600 * NS_PER_S)
    timer.update(waiting=True, received=False)
    assert timer.elapsed_s <= 1


def on_device() -> TokenPacket:
    """A packet whose pixels are a tensor."""
    packet = tokens()
    return replace(packet, pixels=torch.from_numpy(packet.host_pixels.copy()))


@pytest.mark.parametrize("takes", [True, False])
def test_pixels_on_a_device_go_beside_the_message_where_the_server_takes_them(opened: Opener, takes: bool) -> None:
    shared, packet = LocalPixels(), on_device()
    server = opened(greeted=False, pixels=shared)
    server.hear()
    assert server.expect(Connect).pixels_at == PixelPlace()
    server.hear(ServerHello(model_id="m", knows_levels=False, known_world=None, takes_device_pixels=takes))
    server.asking()
    server.grant()
    server.client.send_glance(packet)
    message, received = expect_whole(server.peer, GlancePacketMessage)
    assert (message.pixels_at is not None, len(received.parts)) == (takes, 2 if takes else 3)
    arrived = token_packet(message, received.parts, shared.take)
    assert isinstance(arrived.pixels, torch.Tensor) is takes
    np.testing.assert_array_equal(arrived.host_pixels, packet.host_pixels)


def test_why_pixels_are_copied_is_said_once(opened: Opener) -> None:
    hello = ServerHello(model_id="m", knows_levels=False, known_world=None, pixels_refused="another GPU")
    server = opened(greeted=False, pixels=LocalPixels(), reconnect=True)
    notices = []
    for _ in range(2):
        server.hear()
        server.expect(Connect)
        notices += server.hear(hello)
        server.asking()
        server.lose()
    assert [event.code for event in notices if isinstance(event, Notice)] == [PIXELS_COPIED]
    assert "by way of host memory: another GPU; --single-process" in str(notices[0])


def test_pixels_in_host_memory_go_in_the_message(opened: Opener) -> None:
    server = opened(greeted=False, pixels=LocalPixels())
    server.hear()
    server.expect(Connect)
    server.hear(ServerHello(model_id="m", knows_levels=False, known_world=None, takes_device_pixels=True))
    server.asking()
    server.grant()
    server.client.send_request(tokens(), "start")
    assert server.expect(TokenPacketMessage).pixels_at is None


class UnsharedPixels(LocalPixels):
    """Of a driver that shares no memory."""

    def offer(self) -> PixelPlace:
        raise DeviceLost("the GPU failed in cuIpcGetMemHandle")


def test_a_device_that_shares_no_memory_is_said_once(opened: Opener) -> None:
    server = opened(greeted=False, pixels=UnsharedPixels(), reconnect=True)
    notices = []
    for _ in range(2):
        notices += server.hear()
        assert server.expect(Connect).pixels_at is None
        notices += server.hear(ServerHello(model_id="m", knows_levels=False, known_world=None))
        notices += server.lose()
    assert [event.code for event in notices if isinstance(event, Notice)].count(PIXELS_COPIED) == 1


def test_an_answer_that_the_server_lost_is_told_and_the_next_one_asked_for(opened: Opener) -> None:
    server = opened()
    number = server.ask()
    (told,) = server.hear(RequestLost(answer=number, reason="no reply within 10 s"))
    assert isinstance(told, Notice)
    assert told.code == ANSWERS_LOST
    assert told.message == "an answer was lost: no reply within 10 s; going on with the newest frame"
    assert not server.client.busy
    assert server.client.requests.lost_answers == 1
    server.hear(answered(server.ask(turn=2)))
    assert server.client.requests.lost_answers == 1


def test_where_no_answer_is_left_out_a_lost_one_is_asked_for_again_a_few_times(opened: Opener) -> None:
    server = opened(resend_after_loss=True)
    number = server.ask()
    for turn in range(2, REPEATS_MAX + 2):
        (told,) = server.hear(RequestLost(answer=number, reason="gone"))
        assert isinstance(told, Notice)
        assert told.message.endswith("asking again")
        server.expect(TurnRequest)
        server.hear(TurnGrant(turn=turn))
        assert server.expect(TokenPacketMessage).answer == number
    (told,) = server.hear(RequestLost(answer=number, reason="gone"))
    assert isinstance(told, Notice)
    assert told.message.endswith("going on with the newest frame")
    assert not server.client.busy
    assert server.client.requests.lost_answers == 1


def test_a_cancelled_answer_that_is_lost_is_not_told(opened: Opener) -> None:
    server = opened()
    number = server.ask()
    server.client.cancel_answer(replace(STAMP, frame_index=9))
    assert server.hear(RequestLost(answer=number, reason="gone")) == []
    assert server.client.requests.lost_answers == 0


def test_a_loss_of_what_was_not_asked_for_is_refused(opened: Opener) -> None:
    server = opened()
    assert misdeeds(server.hear(RequestLost(answer=3, reason="gone"))) == 1


def test_what_a_model_says_of_itself_is_passed_on(opened: Opener) -> None:
    server = opened()
    reply = msgspec.structs.replace(answered(server.ask()), notice="it counts 300 tokens")
    assert server.hear(reply)[1:] == [Notice(code=MODEL_NOTICE, message="it counts 300 tokens")]


def servers_told(events: list[object]) -> list[str]:
    return [event.message for event in events if isinstance(event, Notice) and event.code == ANSWER_SERVER]


@pytest.fixture
def pool() -> ScriptedPool:
    return ScriptedPool()


def test_of_several_servers_it_is_told_which_one_answers(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(greeted=False, pool=pool, reconnect=True, supervised=False)
    assert servers_told(server.greet()) == ["answers come from client-1"]
    server.hear(answered(server.ask()))
    assert pool.noted == [("answered", "client-1")]
    (lost,) = server.lose()
    assert isinstance(lost, Notice)
    assert lost.message == "no answers: the connection was lost; looking for another server"
    assert pool.noted[1:] == [("lost", "client-1")]
    assert servers_told(server.greet()) == ["answers come from client-2"]


def test_while_connecting_a_server_that_is_there_is_preferred(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(greeted=False, pool=pool, reconnect=True)
    pool.fitter = True
    server.hear()
    assert server.connections == 2
    assert servers_told(server.greet()) == ["answers come from client-2"]
    pool.fitter = True
    server.hear()
    assert server.connections == 2, "it has a server"


def test_between_two_answers_it_may_change_to_another_server(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(pool=pool, reconnect=True)
    load = KeepAlive(clients=7, place=6)
    server.hear(load)
    number = server.ask()
    pool.asked.clear()
    pool.reason = "it is draining"
    server.hear()
    assert pool.asked == [], "an answer is under way"
    before = server.peer
    assert isinstance(server.hear(answered(number))[0], Answer)
    assert pool.asked == [(load, False)]
    assert expect_whole(before, Disconnect)
    assert server.connections == 2
    assert servers_told(server.greet()) == ["answers come from client-2 now (client-1: it is draining)"]
    assert server.client.moved
    assert server.client.requests.lost_answers == 0
    server.hear(answered(server.ask(2)))


def test_a_turn_that_was_asked_for_keeps_nobody(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(pool=pool, reconnect=True)
    server.client.request_turn()
    server.expect(TurnRequest)
    pool.reason = "others have fewer clients"
    server.hear()
    assert server.connections == 2


def test_a_request_that_waits_for_its_turn_again_is_sent_to_the_other_server(
    opened: Opener, pool: ScriptedPool
) -> None:
    server = opened(pool=pool, reconnect=True, resend_after_loss=True)
    number = server.ask(1)
    server.hear(TurnExpired(turn=1))
    server.expect(TurnRequest)
    pool.reason = "it is draining"
    server.hear()
    server.greet()
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=4))
    assert server.expect(TokenPacketMessage).answer == number


def test_frames_that_the_server_keeps_are_known_until_the_next_cut(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(pool=pool, reconnect=True)
    server.hear(answered(server.ask(1), frames=3))
    assert pool.asked[-1][1]
    server.client.on_cut()
    server.hear()
    assert not pool.asked[-1][1]


def test_a_loss_is_no_move(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(pool=pool, reconnect=True)
    pool.reason = "it is draining"
    server.hear()
    server.greet()
    server.lose()
    server.greet()
    assert not server.client.moved


def test_a_server_that_refuses_is_left_for_another_one(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(greeted=False, pool=pool, reconnect=True)
    server.hear()
    server.expect(Connect)
    events = server.hear(ErrorReply(error="OptionError", message="it encodes full, not sparse", details=""))
    assert servers_told(events) == ["client-1: it encodes full, not sparse"]
    assert servers_told(server.greet()) == ["answers come from client-2"]


def test_a_server_that_turns_this_end_away_is_left_for_another_one(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(greeted=False, pool=pool, reconnect=True)
    server.link.refused = True
    assert server.hear() == []
    assert servers_told(server.hear()) == ["client-1: turned away"]
    assert server.connections == 2


def test_where_all_servers_refuse_the_first_error_is_raised_unless_one_was_ready(
    opened: Opener, pool: ScriptedPool
) -> None:
    server = opened(greeted=False, pool=pool, reconnect=True)
    server.hear()
    pool.refusal = ConnectionRefused("turned away")
    with pytest.raises(ConnectionRefused):
        server.hear()
    pool.refusal = None
    server.greet()
    pool.refusal = ConnectionRefused("turned away")
    server.hear()


def test_a_server_that_fails_an_answer_is_avoided(opened: Opener, pool: ScriptedPool) -> None:
    server = opened(pool=pool, reconnect=True)
    server.ask()
    server.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
    assert pool.noted == [("failed", "client-1", "None"), ("lost", "client-1")]


def test_a_server_without_a_sign_of_life_is_left_unless_it_is_heard(
    opened: Opener, pool: ScriptedPool, clock: FakeClock
) -> None:
    server = opened(pool=pool, reconnect=True, supervised=False)
    server.ask()
    pool.lifeless = True
    server.hear()
    clock.advance(NS_PER_S - MS)
    server.hear(KeepAlive())
    clock.advance(NS_PER_S - MS)
    server.hear()
    pool.lifeless = False
    server.hear()
    pool.lifeless = True
    clock.advance(NS_PER_S - MS)
    server.hear()
    assert server.connections == 1
    clock.advance(MS)
    (lost,) = server.hear()
    assert isinstance(lost, Notice)
    assert lost.message == "no answers: client-1 gives no sign of life; looking for another server"
    assert server.connections == 2
    assert pool.noted == [("failed", "client-1", "None"), ("lost", "client-1")]
    assert server.client.requests.lost_answers == 1


def test_the_pool_is_closed_with_the_client(opened: Opener, pool: ScriptedPool) -> None:
    opened(pool=pool).client.close()
    assert pool.closed


def test_a_run_at_its_own_pace_survives_any_number_of_failures_and_waits_between_them(
    opened: Opener, clock: FakeClock
) -> None:
    server = opened(reconnect=True, persistent=True)
    pauses_ns = []
    for _ in range(2 * FAILURES_MAX):
        server.ask()
        server.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
        server.hear()
        start_ns = clock.now_ns()
        while (connect := server.peer.receive()) is None:
            clock.advance(FAILURE_PAUSE_NS // 4)
            server.hear()
        assert isinstance(connect.message, Connect)
        pauses_ns.append(clock.now_ns() - start_ns)
        server.hear(ServerHello(model_id="m", knows_levels=False, known_world=None))
        server.asking()
    assert pauses_ns[:4] == [0, FAILURE_PAUSE_NS, 2 * FAILURE_PAUSE_NS, 4 * FAILURE_PAUSE_NS]
    assert set(pauses_ns[4:]) == {FAILURE_PAUSE_MAX_NS}
    server.hear(answered(server.ask()))
    server.ask()
    server.hear(ErrorReply(error="ArithmeticError", message="bent", details=""))
    server.greet()


def test_what_refuses_connections_where_a_server_was_is_asked_again_later(opened: Opener, clock: FakeClock) -> None:
    """A proxy of a container takes connections, and ends them while the server behind it is started again."""
    server = opened(reconnect=True)
    server.lose()
    server.link.refused = True
    server.hear()
    assert server.connections == 3
    assert server.hear() == []
    assert server.peer.receive() is None
    clock.advance(REFUSED_PAUSE_NS)
    server.greet()
