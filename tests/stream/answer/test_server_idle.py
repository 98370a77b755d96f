"""Answer server that reads ahead: packets between the answers of its clients, and turns that come first."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from typing import ClassVar

import pytest

from arr_coc.types import GroupPlace, TokenPacket
from stream.answer import idle_work as idle_work_module
from stream.answer import server as server_module
from stream.answer.memory import GroupMemory
from stream.answer.readings import KeptReading
from stream.answer.server_statistics import ServerStatistics
from stream.config import Config
from stream.protocol.codec import idle_message
from stream.protocol.messages import (
    ErrorReply,
    IdleGrant,
    IdlePass,
    IdleReply,
    IdleRequest,
    ServerHello,
    TurnGrant,
    TurnRequest,
)
from tests.stream.answer.test_server import Client, runner, serve
from tests.stream.answer.test_server_memory import ask, shown
from tests.support.answer_models import MemoryAnswerModel
from tests.support.events import make_group_packet
from tests.support.network import LIMIT_MS, until
from tests.support.runs import StageRunner

__all__ = ["runner"]


class StepwiseReading(KeptReading):
    """Keeps its packets once its model lets it end."""

    def __init__(
        self, model: ReadingAnswerModel, memory: GroupMemory, client: bytes, packets: Sequence[TokenPacket]
    ) -> None:
        super().__init__(memory, client, packets)
        self._model = model
        self.is_key_frame = packets[-1].place is not None and not packets[-1].place.frame

    def steps(self) -> Generator[None, None, None]:
        try:
            while not self._model.may_end.wait(0.001):
                self._model.steps += 1
                yield
        finally:
            self._model.ended += 1


class ReadingAnswerModel(MemoryAnswerModel):
    """Reads packets ahead in as many steps as it takes."""

    newest: ClassVar[ReadingAnswerModel]

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.memory = GroupMemory(config.answer.memory.tokens, 1.0)
        self.may_end = threading.Event()
        self.steps = self.ended = 0
        ReadingAnswerModel.newest = self

    def read_ahead(self, client: bytes, packets: Sequence[TokenPacket]) -> StepwiseReading:
        return StepwiseReading(self, self.memory, client, packets)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((server_module, "TURN_LIMIT_NS"), (idle_work_module, "GRANT_LIMIT_NS")):
        monkeypatch.setattr(module, name, LIMIT_MS * 1_000_000)


@pytest.fixture
def client(runner: StageRunner) -> Client:
    """Client of whose group the server has the key frame."""
    serve(runner, model=ReadingAnswerModel, shared=True, statistics=ServerStatistics())
    client = Client(runner)
    assert client.expect(ServerHello).reads_ahead
    ask(client, (1, 0), 1)
    return client


def grant(client: Client, *, in_lockstep: bool = False) -> IdleGrant:
    client.link.send(IdleRequest(in_lockstep=in_lockstep))
    return client.expect(IdleGrant)


def send(client: Client, number: int, place: tuple[int, int], second: int = 2) -> None:
    client.link.send(*idle_message(number, make_group_packet(place, second=second)))


@pytest.mark.parametrize("in_lockstep", [False, True])
def test_a_packet_is_read_and_the_next_answer_builds_on_it(client: Client, in_lockstep: bool) -> None:
    ReadingAnswerModel.newest.may_end.set()
    granted = grant(client, in_lockstep=in_lockstep)
    assert granted.kept == GroupPlace(1, 1)
    assert granted.tokens > 0
    send(client, granted.number, (1, 1))
    reply = client.expect(IdleReply)
    assert (reply.number, reply.tokens, reply.rebuilt, reply.kept) == (granted.number, 2, False, GroupPlace(1, 2))
    assert ask(client, (1, 2), 3) == shown((1, 2), (2, 2), (3, 2))


def test_a_new_group_takes_the_place_of_the_old_one(client: Client) -> None:
    ReadingAnswerModel.newest.may_end.set()
    granted = grant(client)
    send(client, granted.number, (2, 0))
    reply = client.expect(IdleReply)
    assert (reply.rebuilt, reply.kept) == (True, GroupPlace(2, 1))
    assert ask(client, (2, 1), 3) == shown((2, 2), (3, 2))


def test_a_turn_of_another_client_comes_between_two_pieces(runner: StageRunner, client: Client) -> None:
    """The reading would never end, and it goes on once the answer has been given."""
    model, other = ReadingAnswerModel.newest, Client(runner).greeted()
    send(client, grant(client).number, (1, 1))
    until(lambda: model.steps > 0)
    assert ask(other, (1, 0), 5) == shown((5, 2))
    steps = model.steps
    until(lambda: model.steps > steps)
    assert model.ended == 0
    model.may_end.set()
    assert client.expect(IdleReply).kept == GroupPlace(1, 2)


def test_its_own_turn_ends_the_reading_of_a_client(client: Client) -> None:
    model = ReadingAnswerModel.newest
    send(client, grant(client).number, (1, 1))
    until(lambda: model.steps > 0)
    assert ask(client, (1, 1), 3) == shown((1, 2), (3, 2))
    assert model.ended == 1


def test_answers_about_the_old_group_come_while_a_new_one_is_read(client: Client) -> None:
    model = ReadingAnswerModel.newest
    granted = grant(client)
    send(client, granted.number, (2, 0))
    until(lambda: model.steps > 0)
    assert ask(client, (1, 1), 3) == shown((1, 2), (3, 2))
    assert model.ended == 0
    model.may_end.set()
    reply = client.expect(IdleReply)
    assert (reply.number, reply.kept) == (granted.number, GroupPlace(2, 1))


def test_a_packet_after_the_client_s_own_turn_was_requested_comes_too_late(client: Client) -> None:
    granted = grant(client)
    client.link.send(TurnRequest())
    client.expect(TurnGrant)
    send(client, granted.number, (1, 1))
    reply = client.expect(IdleReply)
    assert (reply.number, reply.tokens, reply.kept) == (granted.number, 0, GroupPlace(1, 1))


def test_a_client_that_passes_or_leaves_lets_others_read(runner: StageRunner, client: Client) -> None:
    ReadingAnswerModel.newest.may_end.set()
    other = Client(runner).greeted()
    ask(other, (1, 0), 5)
    grant(client)
    other.link.send(IdleRequest())
    client.link.send(IdlePass())
    first = other.expect(IdleGrant)
    client.link.send(IdleRequest())
    other.link.close()
    assert client.expect(IdleGrant).number == first.number + 1


def test_a_packet_that_does_not_go_on_with_the_group_is_refused(client: Client) -> None:
    ReadingAnswerModel.newest.may_end.set()
    send(client, grant(client).number, (1, 7))
    assert "builds on 7 frames" in client.expect(ErrorReply).message


def test_a_server_without_idle_time_says_so(runner: StageRunner) -> None:
    serve(runner, model=MemoryAnswerModel)
    client = Client(runner)
    assert not client.expect(ServerHello).reads_ahead
    client.link.send(IdleRequest(in_lockstep=True))
    assert client.quiet()
