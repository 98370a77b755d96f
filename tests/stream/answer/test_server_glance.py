"""Glances at the answer server: the turn continues, and limits protect other clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from arr_coc.types import TokenPacket
from stream.answer import server as server_module
from stream.answer.model import AnswerStats
from stream.protocol.codec import feedback_of, glance_message
from stream.protocol.messages import (
    Cancel,
    Disconnect,
    ErrorReply,
    GlanceReply,
    TurnExpired,
    TurnGrant,
    TurnRequest,
)
from stream.untrusted import GLANCES_A_TURN_MAX
from tests.stream.answer.test_server import LIMIT_MS, Client, runner, serve, tokens
from tests.support import answer_models
from tests.support.answer_models import BlindAnswerModel, GlancingAnswerModel
from tests.support.runs import StageRunner

__all__ = ["runner"]


@pytest.fixture(autouse=True)
def _ignore_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_models, "on_packet", lambda frame_index: None)


def overview() -> TokenPacket:
    packet = tokens()
    packet.pixels[1] = 9
    return replace(packet, overview=2)


def test_a_glance_returns_the_attention_and_keeps_the_turn(runner: StageRunner) -> None:
    serve(runner, GlancingAnswerModel)
    client = Client(runner).greeted()
    turn = client.turn()
    client.link.send(*glance_message(5, turn, overview(), "what?"))
    reply, received = client.expect_whole(GlanceReply)
    assert (reply.glance, reply.work.tokens_used, reply.work.flops) == (5, 2, 7)
    feedback = feedback_of(reply, received.parts)
    assert feedback is not None
    np.testing.assert_array_equal(feedback.attention, [0, 1])
    client.ask(3, turn)
    assert client.hear_answer().answer == 3


def test_no_other_client_gets_a_turn_between_a_glance_and_its_packet(runner: StageRunner) -> None:
    serve(runner, GlancingAnswerModel, shared=True)
    client, other = Client(runner).greeted(), Client(runner).greeted()
    turn = client.turn()
    other.link.send(TurnRequest())
    client.link.send(*glance_message(0, turn, overview(), "what?"))
    client.expect(GlanceReply)
    assert other.quiet()
    client.ask(0, turn)
    client.hear_answer()
    other.expect(TurnGrant)


def test_too_many_glances_in_a_turn_are_refused(runner: StageRunner) -> None:
    serve(runner, GlancingAnswerModel, shared=True)
    client, other = Client(runner).greeted(), Client(runner).greeted()
    turn = client.turn()
    other.link.send(TurnRequest())
    for number in range(GLANCES_A_TURN_MAX):
        client.link.send(*glance_message(number, turn, overview(), "what?"))
        client.expect(GlanceReply)
    client.link.send(*glance_message(9, turn, overview(), "what?"))
    assert client.expect(TurnExpired).turn == turn
    other.expect(TurnGrant)


def test_a_turn_expires_if_no_packet_follows_the_glance(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(runner, GlancingAnswerModel, shared=True)
    client, other = Client(runner).greeted(), Client(runner).greeted()
    turn = client.turn()
    client.link.send(*glance_message(0, turn, overview(), "what?"))
    client.expect(GlanceReply)
    monkeypatch.setattr(server_module, "TURN_LIMIT_NS", 1)
    other.link.send(TurnRequest())
    other.expect(TurnGrant)  # the packet was never sent


def test_a_packet_that_is_no_overview_is_refused(runner: StageRunner) -> None:
    serve(runner, GlancingAnswerModel, shared=True)
    client = Client(runner).greeted()
    message, _ = glance_message(0, client.turn(), overview(), "what?")
    client.link.send(structs.replace(message, arrays=()))
    assert client.expect(ErrorReply).error == "TransportError"


@pytest.mark.parametrize("shared", [True, False])
def test_a_model_that_cannot_glance_reports_an_error(runner: StageRunner, shared: bool) -> None:
    serve(runner, BlindAnswerModel, shared=shared)
    client = Client(runner).greeted()
    client.link.send(*glance_message(0, client.turn(), overview(), "what?"))
    error = client.expect(ErrorReply)
    assert (error.error, error.message.split(";")[0]) == ("ModelError", "the attention of blind cannot be read")


class WaitingModel(GlancingAnswerModel):
    """Glances once the test allows it."""

    looking, go_on = threading.Event(), threading.Event()

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        self.looking.set()
        assert self.go_on.wait(LIMIT_MS / 1000)
        return super().glance(client, packet, query)


@pytest.fixture
def glancing(runner: StageRunner) -> Iterator[tuple[Client, int]]:
    """A client in the middle of a glance, and its turn."""
    WaitingModel.looking.clear()
    WaitingModel.go_on.clear()
    serve(runner, WaitingModel, shared=True)
    client = Client(runner).greeted()
    turn = client.turn()
    client.link.send(*glance_message(0, turn, overview(), "what?"))
    assert WaitingModel.looking.wait(LIMIT_MS / 1000)
    yield client, turn
    WaitingModel.go_on.set()


@pytest.mark.parametrize(
    "leave", [lambda client: client.link.send(Disconnect()), lambda client: client.link.send(Cancel())]
)
def test_a_client_that_leaves_during_a_glance_frees_its_turn(
    runner: StageRunner, glancing: tuple[Client, int], leave: Callable[[Client], None]
) -> None:
    client, _ = glancing
    other = Client(runner)
    leave(client)
    other.link.send(TurnRequest())
    WaitingModel.go_on.set()
    other.greeted()
    other.link.send(TurnRequest())
    other.expect(TurnGrant)
    assert client.quiet()
