"""A client with a valid key that lies to an answer stage: an honest one beside it gets all its answers, and its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from arr_coc.types import FrameStamp, Question, TileGrid, TokenPacket
from stream.protocol.codec import glance_message, token_message
from stream.protocol.messages import (
    AnswerReply,
    Cancel,
    Connect,
    Disconnect,
    Embed,
    Message,
    ServerHello,
    TurnExpired,
    TurnGrant,
    TurnRequest,
    encode,
)
from stream.transport import Link
from stream.untrusted import QUERY_LIMIT_CHARS
from tests.hostile.lies import NUMBERS
from tests.hostile.nasty import NASTY
from tests.support.answer_models import GlancingAnswerModel
from tests.support.events import QUESTION
from tests.support.network import LIMIT_S, free_port
from tests.support.served_answers import ServedAnswers

GROWTH_MAX_BYTES = 200 << 20

pytestmark = pytest.mark.growth_max_bytes(GROWTH_MAX_BYTES)
HONEST_FRAME, HONEST_SUM = 777, 3 * 32 * 32 * 5
HONEST = TokenPacket(
    FrameStamp(HONEST_FRAME, 1, 1, 9),
    TileGrid.of(64, 64),
    np.zeros((1, 3), np.int32),
    np.ones(1, np.float32),
    np.full((1, 3, 32, 32), 5, np.uint8),
)
OTHER = TokenPacket(FrameStamp(1, 1, 1, 9), HONEST.grid, HONEST.regions, HONEST.relevance, np.zeros_like(HONEST.pixels))


class EchoingAnswerModel(GlancingAnswerModel):
    """Answers with the question, so that another client's would be seen; fails on some questions."""

    def embed_query(self, query: str) -> Any:
        if "\x00" in query:
            raise ZeroDivisionError("a tokenizer trips")
        return super().embed_query(query)

    def answer(self, packet: Any, query: str) -> Iterator[str]:
        yield f"{query} "
        yield from super().answer(packet, query)


class Honest:
    """A client that does everything as it should."""

    def __init__(self, link: Link, query: str) -> None:
        self._link, self._query, self._number = link, query, 0
        link.send(Connect())
        self._until(ServerHello)

    def ask(self) -> None:
        """One answer: its own, to its own question, about its own frame."""
        while True:
            self._link.send(TurnRequest())
            turn = self._until(TurnGrant)
            assert isinstance(turn, TurnGrant)
            self._link.send(*token_message(self._number, turn.turn, HONEST, Question(self._query)))
            reply = self._until(AnswerReply, TurnExpired)
            if isinstance(reply, AnswerReply):
                break
        assert reply.answer == self._number
        assert reply.text == f"{self._query} frame {HONEST_FRAME} sum {HONEST_SUM}"
        self._number += 1

    def _until(self, *kinds: type[Message]) -> Message:
        for _ in range(int(LIMIT_S * 20)):
            received = self._link.receive(50)
            if received is None:
                continue
            message = received.message
            if isinstance(message, kinds):
                return message
        raise AssertionError(f"none of {kinds} came")


def structured(rng: random.Random) -> list[bytes]:
    """A message of a client, with some of its fields changed or misplaced."""
    packet, arrays = token_message(rng.randrange(3), rng.randrange(50), OTHER, QUESTION)
    overview, _ = glance_message(rng.randrange(3), rng.randrange(50), OTHER, "what?")
    seeds: list[tuple[Message, list[bytes]]] = [
        (Connect(), []),
        (Embed(text=rng.choice(["a", NASTY[:QUERY_LIMIT_CHARS], "x" * QUERY_LIMIT_CHARS, "\x00"])), []),
        (TurnRequest(), []),
        (Cancel(), []),
        (Disconnect(), []),
        (packet, [array.tobytes() for array in arrays]),
        (overview, [array.tobytes() for array in arrays]),
    ]
    message, parts = rng.choice(seeds)
    fields = msgspec.msgpack.decode(encode(message))
    if rng.random() < 0.6:
        name = rng.choice(list(fields))
        fields[name] = rng.choice([*NUMBERS, "z" * rng.randrange(6000), {"rows": 1}, [[0] * 5] * 5])
    if "grid" in fields and isinstance(fields["grid"], dict) and rng.random() < 0.3:
        fields["grid"][rng.choice(["rows", "cols", "height_px", "width_px"])] = rng.choice([0, -1, 2**40, 1.5])
    altered = [msgspec.msgpack.encode(fields), *parts]
    if rng.random() < 0.2:
        rng.shuffle(altered)
    if rng.random() < 0.1:
        altered += [rng.randbytes(rng.randrange(100)) for _ in range(rng.randrange(20))]
    return altered


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedAnswers]:
    """An answer server that only holders of a key reach; none of their messages makes it fail."""
    with ExitStack() as stack:
        served = ServedAnswers(stack, f"tcp://127.0.0.1:{free_port()}", EchoingAnswerModel, tmp_path / "keys")
        yield served
        assert served.control.failure is None


@pytest.fixture
def honest(server: ServedAnswers) -> Honest:
    return Honest(server.client(), "What is mine?")


@pytest.mark.parametrize("count", [2_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_structured_lies_take_nothing_from_an_honest_client(server: ServedAnswers, honest: Honest, count: int) -> None:
    bad, rng = server.raw(), random.Random(5)
    for number in range(count):
        bad.send_multipart(structured(rng))
        while bad.poll(0):
            bad.recv_multipart()
        if number % (count // 20) == 0:
            honest.ask()
    honest.ask()


def test_a_flood_of_questions_is_looked_at_a_few_at_a_time(server: ServedAnswers, honest: Honest) -> None:
    bad = server.raw()
    for number in range(1_000):
        bad.send(encode(Connect()))
        while bad.poll(0):
            bad.recv_multipart()
        if number % 100 == 0:
            honest.ask()


def test_a_client_that_asks_for_turns_and_uses_none_loses_them_sooner_and_sooner(
    server: ServedAnswers, honest: Honest
) -> None:
    bad = server.raw()
    bad.send(encode(Connect()))
    for _ in range(8):
        bad.send(encode(TurnRequest()))
        honest.ask()


def test_one_that_glances_without_end_gets_no_more_than_its_share(server: ServedAnswers, honest: Honest) -> None:
    bad = server.raw()
    bad.send(encode(Connect()))
    for turn in range(200):
        bad.send(encode(TurnRequest()))
        message, arrays = glance_message(turn, turn, OTHER, "what?")
        for _ in range(5):
            bad.send_multipart([encode(message), *(array.tobytes() for array in arrays)])
        while bad.poll(0):
            bad.recv_multipart()
        if turn % 40 == 0:
            honest.ask()
    honest.ask()


def test_an_honest_client_survives_another_that_goes_in_the_middle_of_its_answer(
    server: ServedAnswers, honest: Honest
) -> None:
    for _ in range(5):
        bad = server.raw()
        bad.send(encode(Connect()))
        bad.send(encode(TurnRequest()))
        honest.ask()
        bad.close(linger=0)
    honest.ask()
