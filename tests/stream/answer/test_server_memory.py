"""Answer server that keeps groups of pictures of its clients: turns, evictions, and refused packets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from arr_coc.types import GroupPlace, Question, TokenPacket
from stream.answer import server as server_module
from stream.answer.qwen import ClientSlots
from stream.answer.server_statistics import ServerStatistics
from stream.config import Config
from stream.protocol.codec import feedback_of, glance_message, token_message
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    ErrorReply,
    GlanceReply,
    ServerHello,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from tests.stream.answer.test_server import Client, runner, serve, tokens
from tests.support.answer_models import MemoryAnswerModel
from tests.support.events import make_group_packet
from tests.support.network import LIMIT_MS
from tests.support.runs import StageRunner

__all__ = ["runner"]

PIXELS = 3 * 32 * 32


class SlotMemoryModel(MemoryAnswerModel):
    """Evicts as a Qwen model of one slot does."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._table = ClientSlots(1)

    def hold(self, client: bytes) -> None:
        if (evicted := self._table.hold(client)) is not None:
            self.memory.evict(evicted)

    def release(self, client: bytes) -> None:
        super().release(client)
        self._table.release(client)

    def drop_client(self, client: bytes) -> None:
        super().drop_client(client)
        self._table.drop(client)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "TURN_LIMIT_NS", LIMIT_MS * 1_000_000)


def grant(client: Client) -> TurnGrant:
    client.link.send(TurnRequest())
    return client.expect(TurnGrant)


def ask(
    client: Client, place: tuple[int, int], second: int, earlier_packets: Sequence[TokenPacket] = (), count: int = 2
) -> str:
    turn = grant(client).turn
    packet = make_group_packet(place, count, second)
    client.link.send(*token_message(0, turn, packet, client.question, earlier_packets=earlier_packets))
    client.expect(AnswerDelta)
    return client.expect(AnswerReply).text


def shown(*frames: tuple[int, int], query: str = "what is it") -> str:
    """Answer of the model about these frames, each with its second and its tokens."""
    return " ".join([query, *(f"{second}:{second * count * PIXELS}" for second, count in frames)])


def test_each_turn_reports_what_is_kept_and_each_answer_is_about_the_group(runner: StageRunner) -> None:
    serve(runner, model=MemoryAnswerModel)
    client = Client(runner)
    assert client.expect(ServerHello).memory_tokens == 2048
    assert grant(client).kept is None
    client.link.send(*token_message(0, 1, make_group_packet((1, 0), 4, 1), client.question))
    client.expect(AnswerDelta)
    reply, envelope = client.expect_whole(AnswerReply)
    assert reply.text == shown((1, 4))
    assert (reply.work.appended_tokens, reply.work.prefilled_tokens, reply.work.memory_tokens) == (4, 9, 5)
    granted = grant(client)
    assert granted.kept == GroupPlace(1, 1)
    client.link.send(*token_message(1, granted.turn, make_group_packet((1, 1), 1, 2), client.question))
    client.expect(AnswerDelta)
    reply, envelope = client.expect_whole(AnswerReply)
    assert reply.text == shown((1, 4), (2, 1))
    assert (reply.work.tokens_used, reply.work.appended_tokens, reply.work.memory_tokens) == (5, 1, 6)
    feedback = feedback_of(reply, envelope.parts)
    assert feedback is not None
    assert (len(feedback.regions), feedback.stamp.frame_index) == (5, 2)
    assert ask(client, (1, 2), 3, count=0) == shown((1, 4), (2, 1), (3, 0))
    assert grant(client).kept == GroupPlace(1, 2), "nothing was new in the last frame"


def test_a_server_without_memory_reports_it_and_refuses_groups(runner: StageRunner) -> None:
    serve(runner, shared=True)
    client = Client(runner)
    assert client.expect(ServerHello).memory_tokens == 0
    granted = grant(client)
    assert granted.kept is None
    client.link.send(*token_message(0, granted.turn, make_group_packet((1, 0)), client.question))
    assert client.expect(ErrorReply).message == "this answer server keeps no visual memory; start it with --memory"


def test_a_watch_and_an_answer_about_one_frame_keep_it_once(runner: StageRunner) -> None:
    serve(runner, model=MemoryAnswerModel)
    client = Client(runner, checks=("is it there?",)).greeted()
    for wants_answer in (False, True):
        packet = make_group_packet((1, 0), second=1)
        client.link.send(
            *token_message(0, grant(client).turn, packet, replace(client.question, wants_answer=wants_answer))
        )
        client.expect(YesNoReply)
    client.expect(AnswerDelta)
    assert client.expect(AnswerReply).text == shown((1, 2))
    assert grant(client).kept == GroupPlace(1, 1)


def test_another_question_is_about_the_same_group(runner: StageRunner) -> None:
    serve(runner, model=MemoryAnswerModel)
    client = Client(runner).greeted()
    ask(client, (1, 0), 1)
    client.question = Question("where is it")
    assert ask(client, (1, 1), 1, count=0) == shown((1, 2), (1, 0), query="where is it")


def test_a_cancelled_answer_leaves_its_frame_in_the_group(runner: StageRunner) -> None:
    serve(runner, model=MemoryAnswerModel)
    client = Client(runner).greeted()
    ask(client, (1, 0), 1)
    client.link.send(*token_message(1, grant(client).turn, make_group_packet((1, 1), second=2), client.question))
    client.expect(AnswerDelta)
    client.link.send(Cancel())
    client.link.send(TurnRequest())
    message = None
    while not isinstance(message, TurnGrant):
        received = client.link.receive(LIMIT_MS)
        assert received is not None
        message = received.message
    assert message.kept == GroupPlace(1, 2)


def test_a_turn_that_expired_leaves_the_group_as_it_was(runner: StageRunner) -> None:
    serve(runner, model=MemoryAnswerModel)
    client = Client(runner).greeted()
    ask(client, (1, 0), 1)
    client.link.send(
        *token_message(1, 1, make_group_packet((1, 1), second=2), client.question)
    )  # the first turn has ended
    client.expect(TurnExpired)
    assert ask(client, (1, 1), 3) == shown((1, 2), (3, 2))


def test_packets_that_the_server_lacks_may_be_sent_along(runner: StageRunner) -> None:
    serve(runner, model=MemoryAnswerModel)
    earlier_packets = [make_group_packet((1, number), second=number) for number in range(3)]
    client = Client(runner).greeted()
    assert ask(client, (1, 3), 3, earlier_packets) == shown((0, 2), (1, 2), (2, 2), (3, 2))
    assert grant(client).kept == GroupPlace(1, 4)


def test_a_client_that_leaves_or_connects_anew_has_no_memory(runner: StageRunner) -> None:
    serve(runner, model=MemoryAnswerModel, shared=True)
    client = Client(runner).greeted()
    ask(client, (1, 0), 1)
    other = Client(runner).greeted()
    assert grant(other).kept is None


def test_clients_of_one_slot_evict_each_other_and_that_is_counted(runner: StageRunner) -> None:
    statistics = ServerStatistics()
    serve(runner, model=SlotMemoryModel, shared=True, statistics=statistics)
    first, second = Client(runner).greeted(), Client(runner).greeted()
    ask(first, (1, 0), 1)
    assert ask(first, (1, 1), 2) == shown((1, 2), (2, 2))
    assert ask(second, (1, 0), 3) == shown((3, 2))
    figures = statistics.figures()
    assert (figures.groups, figures.group_tokens, figures.totals.evictions) == (0, 0, 1)
    granted = grant(first)
    assert granted.kept is None
    first.link.send(*token_message(0, granted.turn, make_group_packet((2, 0), second=4), first.question))
    first.expect(AnswerDelta)
    assert first.expect(AnswerReply).text == shown((4, 2))
    assert grant(first).kept == GroupPlace(2, 1)
    assert (statistics.figures().totals.evictions, statistics.figures().groups) == (2, 1)


@pytest.mark.parametrize(
    ("place", "count", "error"),
    [
        ((1, 1), 1, "builds on 1 frame, and the memory has None"),
        ((1, 0), 0, "holds nothing of a frame that others in its group of pictures build on"),
        ((1, 0), 2049, "shows 2049 tokens, of at most 2048"),
    ],
)
def test_a_packet_that_builds_on_nothing_or_exceeds_the_memory_is_refused_and_other_clients_go_on(
    runner: StageRunner, place: tuple[int, int], count: int, error: str
) -> None:
    serve(runner, model=MemoryAnswerModel, shared=True)
    good, bad = Client(runner).greeted(), Client(runner).greeted()
    ask(good, (1, 0), 1)
    bad.link.send(*token_message(0, grant(bad).turn, make_group_packet(place, count), bad.question))
    assert error in bad.expect(ErrorReply).message
    assert ask(good, (1, 1), 2) == shown((1, 2), (2, 2))


def test_a_glance_looks_at_the_group_and_at_what_is_new(runner: StageRunner) -> None:
    serve(runner, model=MemoryAnswerModel)
    client = Client(runner).greeted()
    ask(client, (1, 0), 1)
    turn = grant(client).turn
    client.link.send(*glance_message(0, turn, make_group_packet((1, 1), 0, 2), "what?"))
    assert client.expect(GlanceReply).work.tokens_used == 2
    client.link.send(*token_message(1, turn, make_group_packet((1, 1), 1, 2), client.question))
    client.expect(AnswerDelta)
    assert client.expect(AnswerReply).text == shown((1, 2), (2, 1))


def test_packets_without_a_place_are_complete_in_themselves(runner: StageRunner) -> None:
    serve(runner, model=MemoryAnswerModel)
    client = Client(runner).greeted()
    ask(client, (1, 0), 1)
    client.link.send(*token_message(0, grant(client).turn, tokens(), client.question))
    client.expect(AnswerDelta)
    assert client.expect(AnswerReply).text == f"what is it 7:{2 * 2 * PIXELS}"
    assert grant(client).kept == GroupPlace(1, 1)
