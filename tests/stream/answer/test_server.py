"""Answer server: many clients, fair turns, and isolation of clients from each other."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from arr_coc.types import PastAnswer, PreviousAnswer, QueryEmbedding, Question
from stream.answer import server as server_module
from stream.answer.admission import ServerOptions
from stream.answer.model import Packet, load_answer_model
from stream.answer.server import AnswerServer
from stream.answer.server_statistics import SERVING, ServerStatistics
from stream.config import Config
from stream.errors import AnswerLost
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
    YesNoReply,
)
from tests.support import answer_models
from tests.support.answer_models import (
    BrokenAnswerModel,
    CountingAnswerModel,
    DeviceAnswerModel,
    DrawnWorldAnswerModel,
    FakeAnswerModel,
    GlancingAnswerModel,
    NewsAnswerModel,
    PatientAnswerModel,
    PickyAnswerModel,
    SilentAnswerModel,
    WordlessAnswerModel,
    open_missing,
)
from tests.support.answer_server import (
    END,
    LONG,
    NS,
    STAMP,
    SUM,
    TURN,
    Client,
    Peer,
    about,
    answer,
    expired,
    failed,
    granted,
    limits,
    packet,
    pieces,
    serve,
    tokens,
    whole_frame,
)
from tests.support.events import QUESTION
from tests.support.network import LIMIT_MS
from tests.support.runs import StageRunner
from tests.support.scripts import Script, case, cases, like

a, b, late = Peer("a"), Peer("b"), Peer("late", joins_later=True)
good, bad = Peer("good"), Peer("bad")


class Unreadable(msgspec.Struct, frozen=True, tag_field="kind", tag="unreadable"):
    """Message of an unknown kind."""


OTHER_PROTOCOL = (
    f"the answer server uses version {PROTOCOL} of the protocol, and the client version {PROTOCOL + 1}; "
    "install the same version at both ends"
)
BENT = {"error": "ArithmeticError", "message": "ArithmeticError: the spoon is bent"}
BYTES = [np.zeros(1, np.uint8)]


class QueryingAnswerModel(FakeAnswerModel):
    """Ends its answer with the query."""

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        yield from super().answer(packet, query)
        yield f" {query}"


class FrailAnswerModel(FakeAnswerModel):
    """Fails at frame 13."""

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        if packet.stamp.frame_index == 13:
            raise ArithmeticError("the spoon is bent")
        yield from super().answer(packet, query)


class RememberingAnswerModel(FakeAnswerModel):
    """Counts the packets of each client until it is dropped, and reports the count as frames."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._counts: Counter[bytes] = Counter()

    def drop_client(self, client: bytes) -> None:
        del self._counts[client]

    def answer(self, packet: Packet, query: str) -> Iterator[str]:
        self._counts[self.client] += 1
        frames = self._counts[self.client]
        yield from super().answer(packet, query)
        assert self._answer_stats is not None
        work = replace(self._answer_stats.work, frames=frames, oldest_frame_ns=5, kept_bytes=6)
        self._answer_stats = replace(self._answer_stats, work=work)


def counts(frames: int) -> dict[str, int]:
    """Figures of the work of RememberingAnswerModel."""
    return {"frames": frames, "oldest_frame_ns": 5, "kept_bytes": 6}


class LookingAnswerModel(FakeAnswerModel):
    """Its checks have feedback."""

    def score_yes_no(self, packet: Packet, query: str) -> tuple[float, float]:
        list(self.answer(packet, query))
        return 0.75, 0.5


class FourSlotsAnswerModel(FakeAnswerModel):
    slots = 4


@cases(
    case("each turn is asked for", [a.quiet, a.asks(0, turn=1), a << answer(0), a.quiet, a >> TURN, a << granted(2)]),
    case(
        "two clients that ask again at once are answered by turns",
        [a >> TURN, a << granted(1), b >> TURN, a >> TURN, a >> packet(0, turn=1), a << answer(0)],
        *(
            [c << granted(turn), c >> TURN, c >> packet(turn, turn, frame=turn), c << answer(turn, *about(turn))]
            for turn, c in enumerate([b, a, b, a], 2)
        ),
        [a.quiet],
    ),
    case(
        "a turn that is not used in time goes to the next client",
        [a >> TURN, a << granted(1), b >> TURN, b << granted(2), a >> packet(0, turn=1), a << expired(1)],
        TURN_LIMIT_NS=NS,
    ),
    case(
        "a client whose turn expired may request another",
        [a >> TURN, a << granted(1), b >> TURN, b << granted(2), b >> Disconnect(), limits(TURN_LIMIT_NS=LONG)],
        [a >> packet(0, turn=1), a << expired(1), a.asks(0, turn=3), a << answer(0)],
        TURN_LIMIT_NS=NS,
    ),
    case("a packet without a turn is refused", [a >> packet(0, turn=5), a << expired(5)]),
    case(
        "a packet with the number of another turn is refused and costs nothing",
        [a >> TURN, a << granted(1), a >> packet(0, turn=5), a << expired(5), a >> packet(0, turn=1), a << answer(0)],
    ),
    case(
        "a client that cancels nothing keeps its turn",
        [a >> TURN, a << granted(1), a >> Cancel(), a >> packet(0, turn=1), a << answer(0)],
    ),
    case(
        "a client cannot send in the turn of another",
        [a >> TURN, a << granted(1), b >> packet(0, turn=1), b << expired(1), a >> packet(0, turn=1), a << answer(0)],
    ),
    case(
        "the turn of a lost client goes to the next client",
        [a >> TURN, a << granted(1), b >> TURN, a.vanishes, b << granted(2), b >> packet(0, turn=2), b << answer(0)],
        KEEP_ALIVE_NS=NS,
        TURN_LIMIT_NS=LONG,
    ),
    case(
        "a client that leaves is removed from the queue",
        [a >> TURN, a << granted(1), b >> TURN, a >> Disconnect(), b << granted(2), b >> packet(0, turn=2)],
        [b << answer(0), a >> TURN, a.quiet],
    ),
    case(
        "a client lost during an answer does not disturb the next client",
        [a.asks(0, turn=1), a << answer(0, "first", *about(7)), a.asks(1, turn=2), a << pieces(1, "first")],
        [b >> TURN, a.vanishes, b << granted(3), b >> packet(0, turn=3), b << pieces(0, "first")],
        model=PatientAnswerModel,
    ),
    case(
        "a cancelled answer is not reported and another may be requested",
        [a.asks(0, turn=1), a << answer(0, "first", *about(7)), a.asks(1, turn=2), a << pieces(1, "first")],
        [a >> Cancel(), a >> TURN, a.awaits(granted(3)), a >> packet(2, turn=3), a << pieces(2, "first")],
        model=PatientAnswerModel,
    ),
    case(
        "a full server refuses clients until one leaves",
        [a >> TURN, a << granted(1), late >> Connect()],
        [late << failed("the answer server has 1 client, its maximum; try another"), a >> Disconnect(), a >> TURN],
        [a.quiet, late >> Connect(), late << ServerHello],
        CLIENTS_MAX=1,
    ),
    case(
        "clients that never connected are not answered",
        [late >> each for each in (TURN, Embed(text="who"), Cancel(), Disconnect(), packet(0, turn=0))],
        [late.quiet, a.asks(0, turn=1), a << answer(0)],
    ),
    case(
        "every client receives keep-alives with its place",
        [a.awaits(KeepAlive(clients=2, slots=1, place=0)), b.awaits(KeepAlive(clients=2, slots=1, place=1))],
        KEEP_ALIVE_NS=NS,
    ),
    case(
        "a probe is answered with the load and adds no client",
        [late >> Probe(), late << KeepAlive(clients=1, slots=4, place=1)] * 2,
        [a.asks(0, turn=1), a << answer(0)],
        model=FourSlotsAnswerModel,
    ),
    case(
        "each client has separate state which is dropped when it leaves",
        [a.asks(0, turn=1), a << answer(0, work=counts(1)), a.asks(1, turn=2), a << answer(1, work=counts(2))],
        [b.asks(0, turn=3), b << answer(0, work=counts(1)), a >> Embed(text="another"), a << Embedded],
        [a.asks(2, turn=4), a << answer(2, work=counts(3)), a >> Disconnect(), a >> Connect(), a << ServerHello],
        [a.asks(0, turn=5), a << answer(0, work=counts(1)), b.asks(1, turn=6), b << answer(1, work=counts(2))],
        model=RememberingAnswerModel,
    ),
    case("the server of a run goes on while that ends", [a.quiet, END, a.asks(0, turn=1), a << answer(0)]),
)
def test_turns(play: Callable[[Script], None], script: Script) -> None:
    play(script)


@cases(
    case(
        "garbage of one does not disturb another",
        *(
            [bad >> Unreadable(), bad >> (Unreadable(), BYTES), good.asks(n, turn=n + 1), good << answer(n)]
            for n in range(5)
        ),
        [bad.asks(0, turn=6), bad << answer(0)],
    ),
    case(
        "a packet that cannot be read is reported to its sender and costs its turn",
        [bad >> TURN, bad << granted(1), good >> TURN, bad >> Unreadable(), bad << failed("cannot be read")],
        [good << granted(2), good >> packet(0, turn=2), good << answer(0), bad >> TURN, bad.quiet],
        [bad >> Connect(), bad << ServerHello],
        TURN_LIMIT_NS=LONG,
    ),
    case(
        "a packet that contradicts itself is reported to its sender only",
        [bad >> TURN, bad << granted(1), bad >> (packet(0, turn=1)[0], packet(0, turn=1)[1][:2])],
        [bad << failed("TokenPacketMessage announces 3 arrays and came with 2")],
        [good.asks(0, turn=2), good << answer(0), bad >> TURN, bad.quiet],
    ),
    case(
        "a message that it does not take is reported to its sender",
        [bad >> Credit(), bad << failed("the answer server expected a packet, got Credit"), bad.quiet],
        [good.asks(0, turn=1), good << answer(0)],
    ),
    case(
        "another version of the protocol is refused",
        [late >> Connect(protocol=PROTOCOL + 1), late << failed(OTHER_PROTOCOL)],
    ),
    case(
        "a packet of another encoding is refused",
        [bad.asks(0, turn=1), bad << failed("a packet is made for sparse")],
        [good.asks(0, turn=2, question=Question("what?", encode="prune")), good << answer(0)],
        encode="prune",
    ),
    case(
        "a frame in a snapshot that is not shared is refused",
        [bad >> TURN, bad << granted(1), bad >> frame_message(0, 1, whole_frame(), QUESTION, in_snapshot=True)],
        [bad << failed("a frame refers to shared memory, and this link has none")],
        shared=True,
    ),
    case(
        "pixels on a device are refused without shared memory",
        [late >> Connect(pixels_at=PixelPlace()), late << like(ServerHello, takes_device_pixels=False)],
        [late >> TURN, late << granted(1), late >> token_message(0, 1, tokens(), QUESTION, pixels_at=PixelPlace())],
        [late << failed("this link shares none")],
        model=DeviceAnswerModel,
    ),
    case(
        "a question whose embedding is too large to send is refused",
        [a >> Embed(text="what is it then")],
        [a << like(Embedded, reason="the question has 4 tokens, more than the server can send; ask a shorter one")],
        REPLY_PART_BYTES_MAX=100,  # three words of the fake have 96
    ),
    case(
        "a shared server outlives an answer that fails",
        [bad.asks(0, turn=1, frame=13), bad << like(ErrorReply, **BENT)],
        [good.asks(0, turn=2), good << answer(0), bad >> Connect(), bad << ServerHello],
        [bad.asks(1, turn=3), bad << answer(1)],
        model=FrailAnswerModel,
        shared=True,
    ),
    case(
        "a server that is not shared ends with an answer that fails, and reports where",
        [a.asks(0, turn=1), a << pieces(0, "half an answer")],
        [a << like(ErrorReply, **BENT, details=re.compile("answer_models.py"))],
        model=BrokenAnswerModel,
        failure="StageDied: the answer stage",
    ),
    case(
        "a model that cannot be loaded is reported to a client that connects",
        [late >> TURN, late >> Connect(), late << failed("there is no folder nowhere", "ModelNotFound")],
        model=open_missing,
        failure="ModelNotFound",
    ),
    case(
        "a model that cannot be loaded ends the server if no client connects",
        model=open_missing,
        LOAD_FAILURE_NS=NS,
        failure="ModelNotFound",
    ),
    *(
        case(
            f"a missing answer model is named: {name}",
            [late >> Connect(), late << failed(name, "ConfigError")],
            model=lambda config, name=name: load_answer_model(name, config),
            failure="ConfigError",
        )
        for name in ("tests.nowhere:FakeAnswerModel", "tests.support.answer_models:NoModel")
    ),
)
def test_refused_messages_and_failures(play: Callable[[Script], None], script: Script) -> None:
    play(script)


CHECKS = Question("what?", checks=("is it there", "is it gone"))
FOLLOWING = Question("?", history=(PastAnswer(0, "other"),), previous=PreviousAnswer("quarter 0, other at 0 ms", 0.5))
CHECKED = {"answer": 3, "scores": (CheckScore(0.75, 0.5),) * 2}


@cases(
    case(
        "it greets with its model",
        [late >> Connect()],
        [late << like(ServerHello, model_id="fake", knows_levels=True, known_world="drawn scenes", encode="prune")],
        model=DrawnWorldAnswerModel,
        encode="prune",
    ),
    case(
        "history and the previous answer are of the question",
        [a.asks(0, 1, question=FOLLOWING), a << answer(0, "quarter 0", ", other at 0 ms", same=0.875)],
        [a.asks(1, turn=2), a << answer(1, "quarter 0", same=None)],
        model=NewsAnswerModel,
    ),
    case(
        "each packet has its question",
        [a.asks(0, 1, question=Question("who and why")), a << answer(0, *about(7), " who and why")],
        [b.asks(0, 2, question=Question("where")), b << answer(0, *about(7), " where")],
        [a.asks(1, 3), a << answer(1, *about(7), " what?")],
        model=QueryingAnswerModel,
    ),
    case(
        "the schema of a question reaches the model",
        [a.asks(3, 1, question=Question("what?", schema='{"quarter": "integer"}'))],
        [a << answer(3, '{"qua', "rter")],
        model=CountingAnswerModel,
    ),
    case(
        "checks alone are the whole answer and have feedback",
        [a.asks(3, 1, question=replace(CHECKS, wants_answer=False))],
        [a << like(YesNoReply, **CHECKED, work={"tokens_used": 2}, feedback_stamp=STAMP), a.quiet],
        model=LookingAnswerModel,
    ),
    case(
        "checks are evaluated before the answer and leave the feedback to it",
        [a.asks(3, 1, question=CHECKS), a << like(YesNoReply, **CHECKED, feedback_stamp=None)],
        [a << answer(3, feedback_stamp=STAMP), a.quiet],
        model=LookingAnswerModel,
    ),
    case(
        "a whole frame in the message reaches the model",
        [a >> TURN, a << granted(1), a >> frame_message(0, 1, whole_frame(), QUESTION, in_snapshot=False)],
        [a << answer(0, "frame 7", f" sum {whole_frame().image.sum()}")],
    ),
)
def test_questions_and_their_answers(play: Callable[[Script], None], script: Script) -> None:
    play(script)


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


LONG_QUERY = "is it " + "x" * 99
ENDLESS = '{"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}'


@pytest.mark.parametrize(
    ("model", "embed", "outcome"),
    [
        (FakeAnswerModel, Embed(text="what is it"), ()),
        (UnknowingAnswerModel, Embed(text="what is it"), ()),
        (UnknowingAnswerModel, Embed(text=LONG_QUERY, is_check=True), ("x" * 40,)),
        (WordlessAnswerModel, Embed(text="is it"), ()),
        (WordlessAnswerModel, Embed(text="is it", is_check=True), "ModelError: no single token for"),
        (PickyAnswerModel, Embed(text="refused"), "ContextLengthError: too long"),
        (CountingAnswerModel, Embed(text="what", schema='{"n": "integer"}'), ()),
        (CountingAnswerModel, Embed(text="what", schema='{"refused": "integer"}'), "OptionError: ref"),
        (FakeAnswerModel, Embed(text="what", schema='{"a": "file"}'), 'OptionError: a: there is no type "file"'),
        (FakeAnswerModel, Embed(text="what", schema="[" * 5_000), "OptionError: the schema is not JSON"),
        (FakeAnswerModel, Embed(text="what", schema=ENDLESS), 'OptionError: the reference "#/$defs/a" leads to itself'),
    ],
)
def test_a_question_is_embedded_or_refused(
    runner: StageRunner, model: type[FakeAnswerModel], embed: Embed, outcome: tuple[str, ...] | str
) -> None:
    """The outcome is the words that the model has never seen, or the error."""
    serve(runner, model, shared=True)
    client = Client(runner).greeted()
    client.link.send(embed)
    reply, received = client.expect_whole(Embedded)
    assert (reply.text, reply.is_check, reply.model_id) == (embed.text, embed.is_check, "fake")
    if isinstance(outcome, str):
        assert f"{reply.error}: {reply.reason}".startswith(outcome)
    else:
        assert reply.unseen_words == outcome
        embedding = embedding_of(reply, received.parts)
        assert (embedding.text, embedding.model_id) == (embed.text, "fake")
        assert embedding.tokens.shape == (len(embed.text.split()), 8)
    client.ask(3, question=Question("what?", schema='{"n": "integer"}'))
    client.expect(AnswerDelta)


@pytest.mark.parametrize(
    ("most", "kinds"), [(8, [Embedded, AnswerDelta, Embedded, AnswerReply, Embedded]), (2, [ErrorReply])]
)
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


@pytest.mark.parametrize(("checks", "reported"), [(("is it there",), 0), ((), 1)])
def test_what_is_cancelled_while_the_model_works_on_it_is_not_reported(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch, checks: tuple[str, ...], reported: int
) -> None:
    serve(runner)
    client = Client(runner, checks=checks).greeted()
    monkeypatch.setattr(answer_models, "on_packet", lambda frame_index: client.link.send(Cancel()))
    client.ask(3)
    for _ in range(reported):
        client.expect(AnswerDelta)
    assert client.quiet()


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


def test_a_whole_frame_in_the_snapshot_reaches_the_model(runner: StageRunner) -> None:
    with closing(SharedFrameWriter()) as writer:
        serve(runner, snapshot=SharedFrameReader(writer.descriptor))
        client = Client(runner).greeted()
        writer.write(whole_frame().image)
        client.link.send(*frame_message(0, client.turn(), whole_frame(), QUESTION, in_snapshot=True))
        client.expect(AnswerDelta)
        assert client.expect(AnswerDelta).text == f" sum {whole_frame().image.sum()}"


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
    options = ServerOptions("inproc://x")
    assert AnswerServer(lambda: FakeAnswerModel(Config()), options, runner.transport, runner.control).drops == {}


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
    reply = client.receive(KeepAlive, AnswerDelta).message
    assert isinstance(reply, AnswerReply)
    assert reply.text.endswith(" there") is model.takes_device_pixels


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
    assert (totals.visual_tokens, totals.text_tokens) == (6, 4)
    assert statistics.figures().clients == 1
    assert totals.busy_ns > 0
