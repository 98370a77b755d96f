"""Answer server: many clients, fair turns, and isolation of clients from each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
import pytest
import torch

from arr_coc.errors import ContextLengthError, ModelNotFound
from arr_coc.types import (
    FramePacket,
    FrameStamp,
    PastAnswer,
    PreviousAnswer,
    QueryEmbedding,
    Question,
    TileGrid,
    TokenPacket,
)
from stream.answer import server as server_module
from stream.answer import turns as turns_module
from stream.answer.admission import ServerOptions
from stream.answer.model import AnswerModel, Packet, load_answer_model
from stream.answer.server import AnswerServer
from stream.answer.server_statistics import SERVING, ServerStatistics
from stream.config import Config
from stream.errors import AnswerLost, ConfigError, StageDied
from stream.protocol.buffers import SharedFrameReader, SharedFrameWriter
from stream.protocol.codec import embedding_of, feedback_of, frame_message, glance_message, token_message
from stream.protocol.device_pixels import LocalPixels
from stream.protocol.messages import (
    PROTOCOL,
    AnswerDelta,
    AnswerReply,
    Cancel,
    CheckScore,
    Connect,
    Credit,
    Disconnect,
    Embed,
    Embedded,
    ErrorReply,
    GlanceReply,
    KeepAlive,
    Message,
    PixelPlace,
    Probe,
    RequestLost,
    ServerHello,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from stream.stages.base import ALLOCATE_ANSWER
from stream.transport import Envelope, Link
from tests.support import answer_models
from tests.support.answer_models import (
    BrokenAnswerModel,
    DeviceAnswerModel,
    FakeAnswerModel,
    GlancingAnswerModel,
    NewsAnswerModel,
    PatientAnswerModel,
    SilentAnswerModel,
)
from tests.support.events import QUESTION, make_frame_packet
from tests.support.network import LIMIT_MS, until
from tests.support.runs import StageRunner, expect, stage_runner

STAMP = FrameStamp(7, 8, 9, 10)
GRID = TileGrid.of(60, 90)
SUM = 2 * 2 * 3 * 32 * 32
NS = 1
"""Turn limit that expires before anything can be sent."""

M = TypeVar("M", bound=Message)


@pytest.fixture
def runner() -> Iterator[StageRunner]:
    with stage_runner() as stages:
        yield stages


@pytest.fixture(autouse=True)
def _ignore_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_models, "on_packet", lambda frame_index: None)


def serve(
    runner: StageRunner,
    model: Callable[[Config], AnswerModel] = FakeAnswerModel,
    snapshot: SharedFrameReader | None = None,
    pixels: LocalPixels | None = None,
    **place: Any,
) -> None:
    runner.start(
        AnswerServer(
            lambda: model(Config()),
            ServerOptions(ALLOCATE_ANSWER, **place),
            runner.transport,
            runner.control,
            snapshot,
            pixels,
        )
    )


class Client:
    """Client of the answer stage, as a frame process is one."""

    def __init__(
        self,
        runner: StageRunner,
        *,
        join: bool = True,
        query: str = "what is it",
        checks: tuple[str, ...] = (),
        **fields: Any,
    ) -> None:
        self.link: Link = runner.link(ALLOCATE_ANSWER)
        self.question = Question(query, checks=checks)
        if join:
            self.link.send(Connect(**fields))

    def expect_whole(self, kind: type[M]) -> tuple[M, Envelope]:
        """Receive the next message other than KeepAlive, which must be of this kind."""
        until_s = time.monotonic() + LIMIT_MS / 1000
        while time.monotonic() < until_s and (received := self.link.receive(LIMIT_MS)) is not None:
            if not isinstance(received.message, KeepAlive):
                assert isinstance(received.message, kind), f"{received.message} came"
                return received.message, received
        raise AssertionError(f"no {kind.__name__} came")

    def expect(self, kind: type[M]) -> M:
        return self.expect_whole(kind)[0]

    def quiet(self, wait_ms: int = 30) -> bool:
        """Return whether only KeepAlive messages were received."""
        while (received := self.link.receive(wait_ms)) is not None:
            if not isinstance(received.message, KeepAlive):
                return False
        return True

    def greeted(self) -> Client:
        self.expect(ServerHello)
        return self

    def embed(self, text: str, **fields: Any) -> tuple[Embedded, Envelope]:
        self.link.send(Embed(text=text, **fields))
        return self.expect_whole(Embedded)

    def turn(self) -> int:
        self.link.send(TurnRequest())
        return self.expect(TurnGrant).turn

    def ask(
        self,
        number: int = 0,
        turn: int | None = None,
        packet: TokenPacket | None = None,
        question: Question | None = None,
    ) -> None:
        turn_number = self.turn() if turn is None else turn
        self.link.send(*token_message(number, turn_number, packet or tokens(), question or self.question))

    def hear_answer(self) -> AnswerReply:
        for _ in range(2):
            self.expect(AnswerDelta)
        return self.expect(AnswerReply)


def tokens(index: int = 7) -> TokenPacket:
    regions = np.array([[0, 0, 0], [1, 0, 1]], np.int32)
    stamp = FrameStamp(index, 8, 9, 10)
    return TokenPacket(stamp, GRID, regions, np.ones(2, np.float32), np.full((2, 3, 32, 32), 2, np.uint8))


def whole_frame() -> FramePacket:
    return make_frame_packet(STAMP, GRID, 3)


class Unreadable(msgspec.Struct, frozen=True, tag_field="kind", tag="unreadable"):
    """Message of an unknown kind."""


class QueryingAnswerModel(FakeAnswerModel):
    """Ends its answer with the query."""

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        yield from super().answer(packet, query)
        yield f" {query}"


class ShortAnswerModel(FakeAnswerModel):
    """Refuses long questions."""

    def embed_query(self, query: str) -> QueryEmbedding:
        if len(query) > 20:
            raise ContextLengthError("the question is too long")
        return super().embed_query(query)


class FrailAnswerModel(FakeAnswerModel):
    """Fails at frame 13."""

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        if packet.stamp.frame_index == 13:
            raise ArithmeticError("the spoon is bent")
        yield from super().answer(packet, query)


def test_it_greets_with_its_model(runner: StageRunner) -> None:
    serve(runner, answer_models.DrawnWorldAnswerModel, encode="prune")
    hello = Client(runner).expect(ServerHello)
    assert (hello.model_id, hello.knows_levels, hello.known_world, hello.encode) == (
        *("fake", True, "drawn scenes", "prune"),
    )


def test_history_and_the_previous_answer_are_of_the_question(runner: StageRunner) -> None:
    serve(runner, NewsAnswerModel)
    client = Client(runner).greeted()
    previous = PreviousAnswer("quarter 0, other at 0 ms", 0.5)
    client.ask(question=Question("what?", history=(PastAnswer(0, "other"),), previous=previous))
    reply = client.hear_answer()
    assert (reply.text, reply.same) == ("quarter 0, other at 0 ms", 0.875)
    client.ask(question=QUESTION)
    client.expect(AnswerDelta)
    reply = client.expect(AnswerReply)
    assert (reply.text, reply.same) == ("quarter 0", None)


def test_it_reports_that_its_model_is_loaded(runner: StageRunner) -> None:
    loaded = threading.Event()
    serve(runner, on_ready=loaded.set)
    assert loaded.wait(LIMIT_MS / 1000)


def test_an_answer_comes_in_pieces_then_whole_with_its_feedback(runner: StageRunner) -> None:
    serve(runner)
    client = Client(runner).greeted()
    client.ask(3)
    assert client.expect(AnswerDelta) == AnswerDelta(answer=3, text="frame 7")
    assert client.expect(AnswerDelta) == AnswerDelta(answer=3, text=f" sum {SUM}")
    answered, received = client.expect_whole(AnswerReply)
    assert (answered.answer, answered.text) == (3, f"frame 7 sum {SUM}")
    assert (answered.work.tokens_used, answered.work.text_tokens) == (2, 4)
    feedback = feedback_of(answered, received.parts)
    assert feedback is not None
    assert feedback.stamp == STAMP
    np.testing.assert_array_equal(feedback.attention, np.array([1, 0], np.float32))


class UnknowingAnswerModel(FakeAnswerModel):
    """Has never seen the last word of a question."""

    def check_watch(self, query: str) -> tuple[str, ...]:
        return (query.split()[-1],)


class LookingAnswerModel(FakeAnswerModel):
    """Its checks have feedback."""

    def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
        list(self.answer(packet, query))
        return 0.75, 0.5


@pytest.mark.parametrize("checks_only", [True, False])
def test_checks_are_the_whole_answer_if_they_are_alone(runner: StageRunner, checks_only: bool) -> None:
    serve(runner, LookingAnswerModel)
    client = Client(runner).greeted()
    client.ask(3, question=Question("what?", wants_answer=not checks_only, checks=("is it there", "is it gone")))
    reply, received = client.expect_whole(YesNoReply)
    assert (reply.answer, reply.scores, reply.work.tokens_used) == (3, (CheckScore(0.75, 0.5),) * 2, 2)
    assert (feedback_of(reply, received.parts) is not None) == checks_only
    if not checks_only:
        client.hear_answer()
    assert client.quiet()


LONG = "is it " + "x" * 99


@pytest.mark.parametrize(
    ("model", "embed", "error", "words"),
    [
        (FakeAnswerModel, Embed(text="what is it"), None, ()),
        (UnknowingAnswerModel, Embed(text="what is it"), None, ()),
        (UnknowingAnswerModel, Embed(text=LONG, is_check=True), None, ("x" * 40,)),
        (answer_models.WordlessAnswerModel, Embed(text="is it"), None, ()),
        (answer_models.WordlessAnswerModel, Embed(text="is it", is_check=True), "ModelError: no single token for", ()),
        (answer_models.PickyAnswerModel, Embed(text="refused"), "ContextLengthError: too long", ()),
        (answer_models.CountingAnswerModel, Embed(text="what", schema='{"n": "integer"}'), None, ()),
        (
            answer_models.CountingAnswerModel,
            Embed(text="what", schema='{"refused": "integer"}'),
            "OptionError: ref",
            (),
        ),
        (FakeAnswerModel, Embed(text="what", schema='{"a": "file"}'), 'OptionError: a: there is no type "file"', ()),
        (FakeAnswerModel, Embed(text="what", schema="[" * 5_000), "OptionError: the schema is not JSON", ()),
        (
            FakeAnswerModel,
            Embed(text="what", schema='{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'),
            "OptionError: $defs/a leads to itself",
            (),
        ),
    ],
)
def test_a_question_is_embedded_or_refused(
    runner: StageRunner,
    model: type[answer_models.FakeAnswerModel],
    embed: Embed,
    error: str | None,
    words: tuple[str, ...],
) -> None:
    serve(runner, model, shared=True)
    client = Client(runner).greeted()
    client.link.send(embed)
    reply, received = client.expect_whole(Embedded)
    assert (reply.text, reply.is_check, reply.model_id) == (embed.text, embed.is_check, "fake")
    assert reply.unseen_words == words
    if error is None:
        embedding = embedding_of(reply, received.parts)
        assert (embedding.text, embedding.model_id) == (embed.text, "fake")
        assert embedding.tokens.shape == (len(embed.text.split()), 8)
    else:
        assert f"{reply.error}: {reply.reason}".startswith(error.split("$")[0])
    client.ask(3, question=Question("what?", schema='{"n": "integer"}'))
    client.expect(AnswerDelta)


@pytest.mark.parametrize(("most", "kinds"), [(8, [Embedded, AnswerDelta]), (2, [ErrorReply])])
def test_of_many_questions_a_few_are_embedded_between_two_steps_and_too_many_are_refused(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch, most: int, kinds: list[type[Message]]
) -> None:
    monkeypatch.setattr(server_module, "QUESTIONS_AT_ONCE", 1)
    monkeypatch.setattr(server_module, "EMBEDS_MAX", most)
    go_on = threading.Event()
    answer_models.on_packet = lambda frame_index: go_on.wait(LIMIT_MS / 1000) and None
    serve(runner, shared=True)
    client = Client(runner).greeted()
    client.ask(0)
    client.expect(AnswerDelta)
    for number in range(3):
        client.link.send(Embed(text=f"what {number}"))
    go_on.set()
    assert [type(client.expect(Message)) for _ in kinds] == kinds


def test_checks_are_evaluated_before_the_answer(runner: StageRunner) -> None:
    serve(runner)
    client = Client(runner, checks=("is it there",)).greeted()
    client.ask(3)
    assert client.expect(YesNoReply).answer == 3
    assert client.hear_answer().text == f"frame 7 sum {SUM}"


def test_a_cancelled_check_is_not_reported(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(runner)
    client = Client(runner, checks=("is it there",)).greeted()
    monkeypatch.setattr(answer_models, "on_packet", lambda frame_index: client.link.send(Cancel()))
    client.ask(3)
    assert client.quiet()


def test_the_schema_of_a_question_reaches_the_model(runner: StageRunner) -> None:
    serve(runner, answer_models.CountingAnswerModel)
    client = Client(runner).greeted()
    client.ask(3, question=Question("what?", schema='{"quarter": "integer"}'))
    assert client.hear_answer().text == '{"quarter'


class RememberingAnswerModel(FakeAnswerModel):
    """Counts the packets of each client until it is dropped, and reports the count as frames."""

    packet_counts: ClassVar[dict[bytes, int]] = {}

    def drop_client(self, client: bytes) -> None:
        self.packet_counts.pop(client, None)

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        client = self.client
        yield from super().answer(packet, query)
        self.packet_counts[client] = self.packet_counts.get(client, 0) + 1
        assert self._answer_stats is not None
        work = replace(self._answer_stats.work, frames=self.packet_counts[client], oldest_frame_ns=5, kept_bytes=6)
        self._answer_stats = replace(self._answer_stats, work=work)


def test_each_client_has_separate_state_which_is_dropped_when_it_leaves(runner: StageRunner) -> None:
    RememberingAnswerModel.packet_counts.clear()
    serve(runner, RememberingAnswerModel)
    first, second = Client(runner).greeted(), Client(runner).greeted()
    for client, frames in ((first, 1), (first, 2), (second, 1), (first, 3)):
        client.ask()
        answered = client.hear_answer()
        assert (answered.work.frames, answered.work.oldest_frame_ns, answered.work.kept_bytes) == (frames, 5, 6)
    first.embed("another")
    assert sorted(RememberingAnswerModel.packet_counts.values()) == [1, 3]
    first.link.send(Disconnect())
    second.ask()
    second.hear_answer()
    assert list(RememberingAnswerModel.packet_counts.values()) == [2]


def test_each_turn_is_asked_for(runner: StageRunner) -> None:
    serve(runner)
    client = Client(runner).greeted()
    assert client.quiet()
    first = client.turn()
    client.ask(0, first)
    client.hear_answer()
    assert client.quiet()
    assert client.turn() > first


def test_two_clients_are_answered_in_turn_and_each_receives_only_its_own_answers(runner: StageRunner) -> None:
    order: list[int] = []
    answer_models.on_packet = order.append
    serve(runner)
    clients = [Client(runner).greeted(), Client(runner).greeted()]
    first_turn = clients[0].turn()
    clients[1].link.send(TurnRequest())
    for number in range(3):
        for index, client in enumerate(clients):
            turn = first_turn if (number, index) == (0, 0) else client.expect(TurnGrant).turn
            client.link.send(TurnRequest())
            client.ask(number, turn, tokens(10 * index + number))
            for _ in range(2):
                assert client.expect(AnswerDelta).answer == number
            answered = client.expect(AnswerReply)
            assert answered.answer == number
            assert answered.text.startswith(f"frame {10 * index + number} ")
    assert order == [0, 10, 1, 11, 2, 12]
    assert clients[1].quiet()


def test_a_turn_that_is_not_used_in_time_goes_to_the_next_client(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "TURN_LIMIT_NS", NS)
    serve(runner)
    idle, other = Client(runner).greeted(), Client(runner).greeted()
    turn = idle.turn()
    other.link.send(TurnRequest())
    other.expect(TurnGrant)
    idle.ask(0, turn)
    assert idle.expect(TurnExpired).turn == turn


def test_a_client_whose_turn_expired_may_request_another(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "TURN_LIMIT_NS", NS)
    serve(runner)
    client, other = Client(runner).greeted(), Client(runner).greeted()
    late = client.turn()
    other.turn()
    other.link.send(Disconnect())
    monkeypatch.setattr(server_module, "TURN_LIMIT_NS", LIMIT_MS * 1_000_000)
    client.ask(0, late)
    client.expect(TurnExpired)
    client.ask(0)
    client.hear_answer()


def test_a_packet_without_a_turn_is_refused(runner: StageRunner) -> None:
    serve(runner)
    client = Client(runner).greeted()
    client.ask(0, turn=5)
    assert client.expect(TurnExpired).turn == 5


def test_a_turn_is_for_one_packet(runner: StageRunner) -> None:
    """The second one comes before the first one is answered: another client's question holds the stage up."""
    joining, go_on = threading.Event(), threading.Event()

    class Thoughtful(FakeAnswerModel):
        def embed_query(self, query: str) -> QueryEmbedding:
            if query == "hold on":
                joining.set()
                go_on.wait(LIMIT_MS / 1000)
            return super().embed_query(query)

    serve(runner, Thoughtful)
    client = Client(runner).greeted()
    turn = client.turn()
    Client(runner).greeted().link.send(Embed(text="hold on"))
    assert joining.wait(LIMIT_MS / 1000)
    client.ask(0, turn)
    client.ask(1, turn)
    go_on.set()
    assert client.expect(TurnExpired).turn == turn
    assert client.hear_answer().answer == 0


def test_a_client_cannot_send_in_the_turn_of_another(runner: StageRunner) -> None:
    serve(runner)
    honest, thief = Client(runner).greeted(), Client(runner).greeted()
    turn = honest.turn()
    thief.ask(0, turn)
    assert thief.expect(TurnExpired).turn == turn
    honest.ask(0, turn)
    honest.hear_answer()


def test_a_client_lost_during_an_answer_does_not_disturb_the_next_client(runner: StageRunner) -> None:
    serve(runner, PatientAnswerModel)
    vanishing, staying = Client(runner).greeted(), Client(runner).greeted()
    vanishing.ask(0)
    for _ in range(3):
        vanishing.expect(AnswerDelta)
    vanishing.expect(AnswerReply)
    vanishing.ask(1)
    assert vanishing.expect(AnswerDelta).text == "first"
    staying.link.send(TurnRequest())
    vanishing.link.close()
    turn = staying.expect(TurnGrant).turn
    staying.ask(0, turn)
    assert staying.expect(AnswerDelta).text == "first"
    assert runner.control.failure is None


def test_the_turn_of_a_lost_client_goes_to_the_next_client(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "KEEP_ALIVE_NS", NS)
    monkeypatch.setattr(server_module, "TURN_LIMIT_NS", 1000 * LIMIT_MS * 1_000_000)
    serve(runner)
    vanishing, staying = Client(runner).greeted(), Client(runner).greeted()
    vanishing.turn()
    staying.link.send(TurnRequest())
    vanishing.link.close()
    staying.ask(0, staying.expect(TurnGrant).turn)
    staying.hear_answer()


def test_a_client_that_leaves_is_removed_from_the_queue(runner: StageRunner) -> None:
    serve(runner)
    leaving, staying = Client(runner).greeted(), Client(runner).greeted()
    leaving.turn()
    staying.link.send(TurnRequest())
    leaving.link.send(Disconnect())
    staying.ask(0, staying.expect(TurnGrant).turn)
    staying.hear_answer()
    leaving.link.send(TurnRequest())
    assert leaving.quiet()


def test_a_cancelled_answer_is_not_reported_and_another_may_be_requested(runner: StageRunner) -> None:
    serve(runner, PatientAnswerModel)
    client = Client(runner).greeted()
    client.ask(0)
    for _ in range(3):
        client.expect(AnswerDelta)
    client.expect(AnswerReply)
    client.ask(1)
    client.expect(AnswerDelta)
    client.link.send(Cancel())
    client.link.send(TurnRequest())
    while not isinstance(reply := client.expect(Message), TurnGrant):
        assert isinstance(reply, AnswerDelta)
    client.ask(2, reply.turn)
    assert client.expect(AnswerDelta).answer == 2


def test_a_cancel_of_one_does_not_stop_the_answer_of_another(runner: StageRunner) -> None:
    stopped = threading.Event()

    class Waiting(FakeAnswerModel):
        def answer(self, packet: Packet, query: str) -> Iterator[str]:
            yield "waiting"
            while not stopped.wait(0.005):
                yield ""
            yield from super().answer(packet, query)

    serve(runner, Waiting)
    speaking, other = Client(runner).greeted(), Client(runner).greeted()
    speaking.ask(0)
    speaking.expect(AnswerDelta)
    other.link.send(TurnRequest())
    other.link.send(Cancel())
    other.link.send(Connect())
    other.greeted()
    stopped.set()
    speaking.hear_answer()
    assert other.quiet()


def test_garbage_of_one_does_not_disturb_another(runner: StageRunner) -> None:
    serve(runner)
    good, bad = Client(runner).greeted(), Client(runner).greeted()
    for number in range(5):
        bad.link.send(Unreadable())
        bad.link.send(Unreadable(), [np.zeros(1, np.uint8)])
        good.ask(number)
        assert good.hear_answer().answer == number
    bad.ask(0)
    bad.hear_answer()


def test_a_packet_that_cannot_be_read_is_reported_to_its_sender_and_costs_its_turn(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "TURN_LIMIT_NS", 1000 * LIMIT_MS * 1_000_000)
    serve(runner)
    good, bad = Client(runner).greeted(), Client(runner).greeted()
    bad.turn()
    good.link.send(TurnRequest())
    bad.link.send(Unreadable())
    failed = bad.expect(ErrorReply)
    assert failed.error == "TransportError"
    assert "cannot be read" in failed.message
    good.ask(0, good.expect(TurnGrant).turn)
    good.hear_answer()
    bad.link.send(TurnRequest())
    assert bad.quiet(), "it has to connect anew"
    bad.link.send(Connect())
    bad.greeted()


def test_a_packet_that_contradicts_itself_is_reported_to_its_sender_only(runner: StageRunner) -> None:
    serve(runner)
    good, bad = Client(runner).greeted(), Client(runner).greeted()
    message, arrays = token_message(0, bad.turn(), tokens(), QUESTION)
    bad.link.send(message, arrays[:2])
    failed = bad.expect(ErrorReply)
    assert (failed.error, failed.message) == ("TransportError", "TokenPacketMessage announces 3 arrays and came with 2")
    good.ask(0)
    good.hear_answer()
    bad.link.send(TurnRequest())
    assert bad.quiet()


def test_another_version_of_the_protocol_is_refused(runner: StageRunner) -> None:
    serve(runner)
    failed = Client(runner, protocol=PROTOCOL + 1).expect(ErrorReply)
    assert failed.error == "TransportError"
    assert failed.message == (
        f"the answer server uses version {PROTOCOL} of the protocol, and the client version {PROTOCOL + 1}; "
        "install the same version at both ends"
    )


def test_a_full_server_refuses_clients_until_one_leaves(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "CLIENTS_MAX", 1)
    serve(runner)
    first = Client(runner).greeted()
    late = Client(runner)
    assert late.expect(ErrorReply).message == "the answer server has 1 client, its maximum; try another"
    first.link.send(Disconnect())
    first.link.send(TurnRequest())
    assert first.quiet()
    late.link.send(Connect())
    late.greeted()


def test_a_packet_of_another_encoding_is_refused(runner: StageRunner) -> None:
    serve(runner, encode="prune")
    client = Client(runner).greeted()
    client.ask()
    assert client.expect(ErrorReply).message == "a packet is made for sparse"
    other = Client(runner).greeted()
    other.ask(question=Question("what?", encode="prune"))
    other.hear_answer()


def test_unknown_clients_are_not_answered(runner: StageRunner) -> None:
    serve(runner)
    stranger = Client(runner, join=False)
    for message in (TurnRequest(), Embed(text="who"), Cancel(), Disconnect()):
        stranger.link.send(message)
    stranger.link.send(*token_message(0, 0, tokens(), QUESTION))
    assert stranger.quiet()
    Client(runner).greeted()


def test_a_message_that_it_does_not_take_is_reported_to_its_sender(runner: StageRunner) -> None:
    serve(runner)
    confused, other = Client(runner).greeted(), Client(runner).greeted()
    confused.link.send(Credit())
    failed = confused.expect(ErrorReply)
    assert (failed.error, failed.message) == ("TransportError", "the answer server expected a packet, got Credit")
    assert confused.quiet()
    other.ask(0)
    other.hear_answer()


def test_each_packet_has_its_question(runner: StageRunner) -> None:
    serve(runner, QueryingAnswerModel)
    client, other = Client(runner, query="what").greeted(), Client(runner, query="where").greeted()
    for asker, question in ((client, Question("who and why")), (other, None), (client, None)):
        asker.ask(0, question=question)
        for _ in range(3):
            asker.expect(AnswerDelta)
        assert asker.expect(AnswerReply).text.endswith(f" {(question or asker.question).text}")


def test_every_client_receives_keep_alives(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "KEEP_ALIVE_NS", NS)
    serve(runner)
    clients = [Client(runner).greeted(), Client(runner).greeted()]
    for place, client in enumerate(clients):
        expected = KeepAlive(clients=2, slots=1, place=place)
        until(lambda client=client, expected=expected: _load_of(client) == expected)


def _load_of(client: Client) -> Message | None:
    received = client.link.receive(LIMIT_MS)
    return None if received is None else received.message


def test_a_probe_is_answered_with_the_load_and_adds_no_client(runner: StageRunner) -> None:
    class FourSlots(FakeAnswerModel):
        slots = 4

    statistics = ServerStatistics()
    serve(runner, FourSlots, statistics=statistics)
    asking = runner.link(ALLOCATE_ANSWER)
    asking.send(Probe())
    assert expect(asking, KeepAlive) == KeepAlive(slots=4)
    Client(runner).greeted()
    asking.send(Probe())
    assert expect(asking, KeepAlive) == KeepAlive(clients=1, slots=4, place=1)
    assert statistics.figures().clients == 1


def test_a_shared_stage_outlives_an_answer_that_fails(runner: StageRunner) -> None:
    serve(runner, FrailAnswerModel, shared=True)
    unlucky, other = Client(runner).greeted(), Client(runner).greeted()
    unlucky.ask(0, packet=tokens(13))
    failed = unlucky.expect(ErrorReply)
    assert (failed.error, failed.message) == ("ArithmeticError", "ArithmeticError: the spoon is bent")
    other.ask(0)
    other.hear_answer()
    unlucky.link.send(Connect())
    unlucky.greeted().ask(1)
    unlucky.hear_answer()
    assert runner.control.failure is None


def test_a_stage_that_is_not_shared_reports_what_its_model_raises(runner: StageRunner) -> None:
    serve(runner, BrokenAnswerModel)
    client = Client(runner).greeted()
    client.ask()
    client.expect(AnswerDelta)
    failed = client.expect(ErrorReply)
    assert (failed.error, failed.message) == ("ArithmeticError", "ArithmeticError: the spoon is bent")
    assert "answer_models.py" in failed.details
    failure = runner.join()
    assert isinstance(failure, StageDied)
    assert failure.stage == "answer"


def test_a_model_that_cannot_be_loaded_is_reported_to_a_client_that_connects(runner: StageRunner) -> None:
    client = Client(runner, join=False)
    serve(runner, answer_models.open_missing)
    client.link.send(TurnRequest())
    client.link.send(Connect())
    failed = client.expect(ErrorReply)
    assert (failed.error, failed.message) == ("ModelNotFound", "there is no folder nowhere")
    assert isinstance(runner.join(), ModelNotFound)


def test_a_model_that_cannot_be_loaded_ends_the_stage_if_no_client_connects(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LOAD_FAILURE_NS", NS)
    serve(runner, answer_models.open_missing)
    assert isinstance(runner.join(), ModelNotFound)


@pytest.mark.parametrize("name", ["tests.nowhere:FakeAnswerModel", "tests.support.answer_models:NoModel"])
def test_a_missing_answer_model_is_named(runner: StageRunner, name: str) -> None:
    client = Client(runner)
    serve(runner, lambda config: load_answer_model(name, config))
    assert name in client.expect(ErrorReply).message
    assert isinstance(runner.join(), ConfigError)


def test_a_whole_frame_in_the_message_reaches_the_model(runner: StageRunner) -> None:
    serve(runner)
    client = Client(runner).greeted()
    client.link.send(*frame_message(0, client.turn(), whole_frame(), QUESTION, in_snapshot=False))
    assert client.expect(AnswerDelta).text == "frame 7"
    assert client.expect(AnswerDelta).text == f" sum {whole_frame().image.sum()}"


def test_a_whole_frame_in_the_snapshot_reaches_the_model(runner: StageRunner) -> None:
    with closing(SharedFrameWriter()) as writer:
        serve(runner, snapshot=SharedFrameReader(writer.descriptor))
        client = Client(runner).greeted()
        writer.write(whole_frame().image)
        client.link.send(*frame_message(0, client.turn(), whole_frame(), QUESTION, in_snapshot=True))
        client.expect(AnswerDelta)
        assert client.expect(AnswerDelta).text == f" sum {whole_frame().image.sum()}"


def test_a_frame_in_a_snapshot_that_is_not_shared_is_refused(runner: StageRunner) -> None:
    serve(runner, shared=True)
    client = Client(runner).greeted()
    client.link.send(*frame_message(0, client.turn(), whole_frame(), QUESTION, in_snapshot=True))
    assert client.expect(ErrorReply).message == "a frame refers to shared memory, and this link has none"


@pytest.mark.parametrize("model", [FakeAnswerModel, SilentAnswerModel])
def test_the_run_being_cancelled_stops_it(runner: StageRunner, model: type[FakeAnswerModel]) -> None:
    serve(runner, model)
    client = Client(runner).greeted()
    if model is SilentAnswerModel:
        client.ask()
    runner.control.cancel()
    assert runner.join() is None
    assert client.quiet(0)


def test_it_drops_nothing(runner: StageRunner) -> None:
    stage = AnswerServer(
        lambda: FakeAnswerModel(Config()), ServerOptions("inproc://x"), runner.transport, runner.control
    )
    assert stage.drops == {}


def test_a_question_whose_embedding_is_too_large_to_send_is_refused(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "REPLY_PART_BYTES_MAX", 100)  # three words of the fake have 96
    serve(runner)
    reply, _ = Client(runner).greeted().embed("what is it then")
    assert reply.reason == "the question has 4 tokens, more than the server can send; ask a shorter one"


@pytest.mark.parametrize("model", [FakeAnswerModel, DeviceAnswerModel])
def test_pixels_stay_on_their_device_if_the_model_is_on_one(runner: StageRunner, model: type[FakeAnswerModel]) -> None:
    shared = LocalPixels()
    serve(runner, model, pixels=shared)
    client = Client(runner, pixels_at=shared.offer())
    hello = client.expect(ServerHello)
    assert hello.takes_device_pixels is model.takes_device_pixels
    assert hello.pixels_refused == ""
    packet = tokens()
    pixels = torch.from_numpy(packet.host_pixels.copy())
    place = shared.put(pixels) if hello.takes_device_pixels else None
    message, arrays = token_message(0, client.turn(), packet, QUESTION, pixels_at=place)
    client.link.send(message, arrays)
    text = client.expect(AnswerDelta).text
    while isinstance((received := client.link.receive(LIMIT_MS)), Envelope):
        if isinstance(received.message, AnswerReply):
            text = received.message.text
            break
    assert text.endswith(" there") is model.takes_device_pixels


def test_without_shared_memory_pixels_on_a_device_are_refused(runner: StageRunner) -> None:
    serve(runner, DeviceAnswerModel)
    client = Client(runner, pixels_at=PixelPlace())
    hello = client.expect(ServerHello)
    assert not hello.takes_device_pixels
    client.link.send(*token_message(0, client.turn(), tokens(), QUESTION, pixels_at=PixelPlace()))
    assert "this link shares none" in client.expect(ErrorReply).message


class LosingAnswerModel(FakeAnswerModel):
    """Loses its first answer halfway."""

    has_failed = False

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        yield "a red"
        if not self.has_failed:
            self.has_failed = True
            raise AnswerLost("the network failed", wait_s=0.2)
        yield from super().answer(packet, query)


def test_a_lost_answer_is_reported_and_the_next_turn_comes_after_a_pause(runner: StageRunner) -> None:
    serve(runner, LosingAnswerModel)
    client = Client(runner).greeted()
    client.ask(1)
    client.expect(AnswerDelta)
    began_s = time.monotonic()
    assert client.expect(RequestLost) == RequestLost(answer=1, reason="the network failed")
    client.ask(2)
    assert time.monotonic() - began_s > 0.15
    client.expect(AnswerDelta)
    assert client.hear_answer().answer == 2


class HeldAnswerModel(FakeAnswerModel):
    """Waits within an answer until the test continues it."""

    pause, go_on = threading.Event(), threading.Event()

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        for piece in super().answer(packet, query):
            yield piece
            self.pause.set()
            assert self.go_on.wait(LIMIT_MS / 1000)


def test_a_server_that_drains_ends_its_answer_and_grants_no_more_turns(runner: StageRunner) -> None:
    HeldAnswerModel.pause.clear()
    HeldAnswerModel.go_on.clear()
    statistics, waits_s = ServerStatistics(), []
    statistics.on_wait = waits_s.append
    serve(runner, HeldAnswerModel, shared=True, statistics=statistics)
    client, other = Client(runner).greeted(), Client(runner).greeted()
    client.ask(3)
    assert HeldAnswerModel.pause.wait(LIMIT_MS / 1000)
    other.link.send(TurnRequest())
    runner.control.end()
    HeldAnswerModel.go_on.set()
    assert client.hear_answer().answer == 3
    runner.join()
    assert other.quiet()
    figures = statistics.figures()
    assert (figures.totals.answers, figures.totals.visual_tokens, figures.totals.text_tokens) == (1, 2, 4)
    assert len(waits_s) == 1


def test_a_server_of_one_run_goes_on_while_that_ends(runner: StageRunner) -> None:
    """The last answer of a run comes after the run was asked to end."""
    serve(runner)
    client = Client(runner).greeted()
    runner.control.end()
    client.ask()
    assert client.hear_answer().answer == 0


def test_statistics_count_what_is_served(runner: StageRunner) -> None:
    statistics = ServerStatistics()
    serve(runner, GlancingAnswerModel, statistics=statistics)
    client = Client(runner, checks=("is it there?",)).greeted()
    assert statistics.state == SERVING
    turn = client.turn()
    glance = replace(tokens(), overview=2)
    client.link.send(*glance_message(0, turn, glance, "what?"))
    client.expect(GlanceReply)
    client.ask(0, turn)
    client.expect(YesNoReply)
    client.hear_answer()
    totals = statistics.figures().totals
    assert (totals.glances, totals.checks, totals.answers, totals.failed) == (1, 1, 1, 0)
    assert statistics.figures().clients == 1
    assert totals.busy_ns > 0
