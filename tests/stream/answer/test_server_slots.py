"""Server with a model of several slots: turns, interleaved answers, and isolation of clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from arr_coc.types import Question, Work
from stream.answer import server as server_module
from stream.answer import turns as turns_module
from stream.answer.model import AnswerStats, ClientQuestion
from stream.answer.server_statistics import ServerStatistics
from stream.config import Config
from stream.errors import AnswerLost
from stream.protocol.codec import glance_message, token_message
from stream.protocol.messages import (
    AnswerDelta,
    AnswerReply,
    Cancel,
    CheckScore,
    Disconnect,
    ErrorReply,
    GlanceReply,
    KeepAlive,
    Probe,
    RequestLost,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    YesNoReply,
)
from tests.stream.answer.test_server import Client, runner, serve, tokens
from tests.stream.answer.test_server_glance import overview
from tests.support.answer_models import GlancingAnswerModel
from tests.support.events import QUESTION
from tests.support.network import LIMIT_MS
from tests.support.runs import StageRunner, expect

__all__ = ["runner"]

STEPS = 3
"""Number of pieces of an answer."""

UNANSWERABLE = 13
"""Index of a frame whose answer fails."""

LOST = 14
"""Index of a frame whose answer is lost."""


class SlotAnswerModel(GlancingAnswerModel):
    """Model with two slots. Answers in STEPS pieces of the frame's number and its client's question; a step needs a
    permit."""

    slots = 2
    permits = threading.Semaphore(0)
    batch_sizes: list[int] = []  # noqa: RUF012  (cleared before each test)
    """Number of answers generated together, at each step."""
    request_counts: list[int] = []  # noqa: RUF012  (likewise)
    """Number of answers begun together, each time."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._slots: dict[bytes, list[ClientQuestion]] = {}

    def hold(self, client: bytes) -> None:
        assert len(self._slots) < self.slots
        assert client not in self._slots
        self._slots[client] = []

    def release(self, client: bytes) -> None:
        del self._slots[client]

    def ask(self, questions: Sequence[ClientQuestion]) -> None:
        self.request_counts.append(len(questions))
        for question in questions:
            if question.packet.stamp.frame_index == UNANSWERABLE:
                question.error, question.ended = ArithmeticError("the spoon is bent"), True
            elif question.packet.stamp.frame_index == LOST:
                question.error, question.ended = AnswerLost("the network failed", wait_s=0.0), True
            elif question.part.checks:
                question.scores = ((0.75, 0.5),) * len(question.part.checks)
                question.ended, question.stats = True, stats_of(question)
            else:
                self._slots[question.client] = [question]
                question.piece = str(question.packet.stamp.frame_index)

    def step(self) -> Sequence[ClientQuestion]:
        if not self.permits.acquire(timeout=0.005):
            return []
        speaking = [question for (question,) in filter(None, self._slots.values())]
        self.batch_sizes.append(len(speaking))
        for question in speaking:
            pieces = question.stats.work.text_tokens + 1 if question.stats else 1
            question.piece, question.stats = f" {question.part.text}", stats_of(question, pieces)
            if pieces == STEPS - 1:
                question.ended = True
                self._slots[question.client] = []
        return speaking

    def finish(self, question: ClientQuestion) -> None:
        raise NotImplementedError


def stats_of(question: ClientQuestion, text_tokens: int = 0) -> AnswerStats:
    return AnswerStats(Work(len(question.packet.regions), text_tokens, 1.0, 2.0, 3.0))  # type: ignore[union-attr]


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(server_module, "TURN_LIMIT_NS", LIMIT_MS * 1_000_000)
    SlotAnswerModel.permits = threading.Semaphore(0)
    monkeypatch.setattr(turns_module, "GATHER_NS", 0)
    SlotAnswerModel.batch_sizes.clear()
    SlotAnswerModel.request_counts.clear()
    yield
    SlotAnswerModel.permits.release(1000)


def allow(steps: int) -> None:
    SlotAnswerModel.permits.release(steps)


def clients(runner: StageRunner, *queries: str) -> list[Client]:
    return [Client(runner, query=query).greeted() for query in queries]


def begin(client: Client, number: int, frame: int, turn: int | None = None) -> None:
    """Ask, and receive the first piece."""
    client.ask(number, turn, tokens(frame))
    assert client.expect(AnswerDelta) == AnswerDelta(answer=number, text=str(frame))


def hear(client: Client, number: int, frame: int, query: str) -> AnswerReply:
    """Receive the rest of an answer that has begun."""
    for _ in range(STEPS - 1):
        assert client.expect(AnswerDelta) == AnswerDelta(answer=number, text=f" {query}")
    reply = client.expect(AnswerReply)
    assert (reply.answer, reply.text) == (number, f"{frame} {query} {query}")
    return reply


def test_each_slot_grants_a_turn_and_each_client_receives_only_its_own_answer(runner: StageRunner) -> None:
    serve(runner, SlotAnswerModel, shared=True)
    red, green, blue = clients(runner, "red", "green", "blue")
    begin(red, 5, 10)
    begin(green, 6, 20)
    blue.link.send(TurnRequest())
    assert blue.quiet()
    allow(STEPS - 1)
    hear(red, 5, 10, "red")
    hear(green, 6, 20, "green")
    assert SlotAnswerModel.batch_sizes == [2, 2]
    begin(blue, 7, 30, blue.expect(TurnGrant).turn)
    allow(STEPS - 1)
    hear(blue, 7, 30, "blue")
    assert red.quiet()
    assert green.quiet()


def test_packets_of_turns_granted_together_begin_together(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "GATHER_NS", LIMIT_MS * 1_000_000)
    serve(runner, SlotAnswerModel, shared=True)
    red, green = clients(runner, "red", "green")
    turns = []
    for client in (red, green):
        client.link.send(TurnRequest())
        turns.append(client.expect(TurnGrant).turn)
    red.link.send(*token_message(5, turns[0], tokens(10), red.question))
    assert red.quiet()
    green.link.send(*token_message(6, turns[1], tokens(20), green.question))
    for client, number, frame in ((red, 5, 10), (green, 6, 20)):
        assert client.expect(AnswerDelta) == AnswerDelta(answer=number, text=str(frame))
    assert SlotAnswerModel.request_counts == [2]


def test_a_new_request_joins_and_the_longest_wait_comes_first(runner: StageRunner) -> None:
    serve(runner, SlotAnswerModel, shared=True)
    red, green, blue, black = clients(runner, "red", "green", "blue", "black")
    begin(red, 0, 1)
    allow(1)
    assert red.expect(AnswerDelta).text == " red"
    begin(green, 0, 2)
    for client in (black, blue):
        client.link.send(TurnRequest())
        assert client.quiet(5)
    allow(1)
    assert red.expect(AnswerDelta).text == " red"
    assert red.expect(AnswerReply).text == "1 red red"
    begin(black, 0, 4, black.expect(TurnGrant).turn)
    assert blue.quiet()
    allow(STEPS)
    hear(green, 0, 2, "green")
    assert SlotAnswerModel.batch_sizes[:3] == [1, 2, 2]
    blue.expect(TurnGrant)


def test_a_client_has_at_most_one_slot(runner: StageRunner) -> None:
    serve(runner, SlotAnswerModel, shared=True)
    greedy, other = clients(runner, "red", "green")
    begin(greedy, 0, 1)
    greedy.link.send(TurnRequest())
    assert greedy.quiet()
    other.link.send(TurnRequest())
    other.expect(TurnGrant)
    allow(STEPS - 1)
    hear(greedy, 0, 1, "red")
    greedy.expect(TurnGrant)


@pytest.mark.parametrize("leaves", [False, True], ids=["cancels", "leaves"])
def test_a_client_that_cancels_or_leaves_frees_only_its_slot(runner: StageRunner, leaves: bool) -> None:
    serve(runner, SlotAnswerModel, shared=True)
    red, green, blue = clients(runner, "red", "green", "blue")
    begin(red, 0, 1)
    begin(green, 0, 2)
    blue.link.send(TurnRequest())
    assert blue.quiet()
    red.link.send(Disconnect() if leaves else Cancel())
    begin(blue, 0, 3, blue.expect(TurnGrant).turn)
    allow(STEPS - 1)
    hear(green, 0, 2, "green")
    hear(blue, 0, 3, "blue")
    assert red.quiet()
    if not leaves:
        begin(red, 1, 4)


def test_a_lost_client_frees_its_slot(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "KEEP_ALIVE_NS", 1)
    serve(runner, SlotAnswerModel, shared=True)
    red, green, blue = clients(runner, "red", "green", "blue")
    begin(red, 0, 1)
    begin(green, 0, 2)
    blue.link.send(TurnRequest())
    red.link.close()
    blue.expect(TurnGrant)
    allow(STEPS - 1)
    hear(green, 0, 2, "green")


def test_a_turn_that_expires_frees_its_slot(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "TURN_LIMIT_NS", 1)
    serve(runner, SlotAnswerModel, shared=True)
    idle = clients(runner, *(["red"] * 3))
    turns = [client.turn() for client in idle]  # one after the other, in two slots
    idle[0].ask(0, turns[0])
    assert idle[0].expect(TurnExpired).turn == turns[0]


def test_a_failure_is_reported_to_its_client_only(runner: StageRunner) -> None:
    statistics = ServerStatistics()
    serve(runner, SlotAnswerModel, shared=True, statistics=statistics)
    good, bad = clients(runner, "red", "green")
    begin(good, 0, 1)
    bad.ask(0, packet=tokens(UNANSWERABLE))
    assert bad.expect(ErrorReply).message == "ArithmeticError: the spoon is bent"
    allow(STEPS - 1)
    hear(good, 0, 1, "red")
    begin(good, 1, 2)
    figures = statistics.figures()
    assert (figures.slots, figures.serving, figures.totals.answers, figures.totals.failed) == (2, 1, 1, 1)


def test_an_answer_that_is_lost_on_its_way_ends_no_connection(runner: StageRunner) -> None:
    serve(runner, SlotAnswerModel)
    red, green = clients(runner, "red", "green")
    begin(red, 0, 1)
    green.ask(4, packet=tokens(LOST))
    assert green.expect(RequestLost) == RequestLost(answer=4, reason="the network failed")
    begin(green, 5, 2)
    allow(STEPS - 1)
    hear(red, 0, 1, "red")
    hear(green, 5, 2, "green")


def test_a_failure_ends_a_server_of_one_run(runner: StageRunner) -> None:
    serve(runner, SlotAnswerModel)
    (client,) = clients(runner, "red")
    client.ask(0, packet=tokens(UNANSWERABLE))
    client.expect(ErrorReply)
    runner.join()
    assert runner.control.failure is not None


def test_watches_are_evaluated_beside_answers(runner: StageRunner) -> None:
    statistics = ServerStatistics()
    serve(runner, SlotAnswerModel, shared=True, statistics=statistics)
    (red,) = clients(runner, "red")
    watching = Client(runner).greeted()
    checking = Question("green", checks=("is it there",))
    begin(red, 0, 1)
    message, arrays = token_message(4, watching.turn(), tokens(2), replace(checking, wants_answer=False))
    watching.link.send(message, arrays)
    reply = watching.expect(YesNoReply)
    assert (reply.answer, reply.scores) == (4, (CheckScore(0.75, 0.5),))
    watching.ask(5, packet=tokens(3), question=checking)
    assert watching.expect(YesNoReply).answer == 5
    assert watching.expect(AnswerDelta).text == "3"
    allow(STEPS - 1)
    hear(red, 0, 1, "red")
    hear(watching, 5, 3, "green")
    assert statistics.figures().totals.checks == 2


def test_a_glance_leaves_the_turn_while_others_are_answered(runner: StageRunner) -> None:
    serve(runner, SlotAnswerModel, shared=True)
    red, green = clients(runner, "red", "green")
    begin(red, 0, 1)
    turn = green.turn()
    green.link.send(*glance_message(5, turn, overview(), "what?"))
    assert green.expect(GlanceReply).glance == 5
    begin(green, 3, 2, turn)
    allow(STEPS - 1)
    hear(red, 0, 1, "red")
    hear(green, 3, 2, "green")


def test_a_packet_that_cannot_be_read_frees_the_slot(runner: StageRunner) -> None:
    serve(runner, SlotAnswerModel, shared=True)
    bad, good = clients(runner, "red", "green")
    message, arrays = token_message(0, bad.turn(), tokens(1), QUESTION)
    bad.link.send(message, arrays[:1])
    assert bad.expect(ErrorReply).error == "TransportError"
    for number in range(2):
        begin(good, number, number)
        allow(STEPS - 1)
        hear(good, number, number, "green")


def test_a_server_that_drains_ends_the_answers_under_way(runner: StageRunner) -> None:
    serve(runner, SlotAnswerModel, shared=True)
    red, green, blue = clients(runner, "red", "green", "blue")
    begin(red, 0, 1)
    begin(green, 0, 2)
    runner.control.end()
    blue.link.send(TurnRequest())
    allow(STEPS - 1)
    hear(red, 0, 1, "red")
    hear(green, 0, 2, "green")
    runner.join()
    assert blue.quiet()


def test_an_endless_answer_is_cut(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(SlotAnswerModel):
        def finish(self, question: ClientQuestion) -> None:
            question.ended, question.piece = True, ""
            self._slots[question.client] = []

    monkeypatch.setattr(turns_module, "ANSWER_CHARS_MAX", 4)
    serve(runner, Endless, shared=True)
    (client,) = clients(runner, "red")
    begin(client, 0, 1)
    allow(1)
    assert client.expect(AnswerDelta).text == " re"
    assert client.expect(AnswerReply).text == "1 re"


def test_a_server_that_drains_ends_the_answers_under_way_and_grants_no_free_slot(runner: StageRunner) -> None:
    serve(runner, SlotAnswerModel, shared=True)
    red, green = clients(runner, "red", "green")
    begin(red, 5, 10)
    runner.control.end()
    while not (received := green.link.receive(LIMIT_MS)) or received.message != KeepAlive(
        clients=2, slots=2, place=1, draining=True
    ):
        assert received is not None
    green.link.send(TurnRequest())
    newcomer = Client(runner, query="blue")
    newcomer.link.send(Probe())
    assert expect(newcomer.link, KeepAlive).draining
    assert green.quiet()
    allow(STEPS - 1)
    hear(red, 5, 10, "red")
    runner.join()
    assert newcomer.quiet()
