"""Glances at the answer server: the turn continues, and limits protect other clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from msgspec import structs

from arr_coc.types import TokenPacket
from stream.answer.model import AnswerStats
from stream.protocol.codec import feedback_of, glance_message
from stream.protocol.messages import Cancel, Disconnect, GlanceReply, Message, TurnGrant
from stream.untrusted import GLANCES_A_TURN_MAX
from tests.support.answer_models import BlindAnswerModel, GlancingAnswerModel
from tests.support.answer_server import (
    NS,
    TURN,
    Client,
    Peer,
    answer,
    expired,
    failed,
    glance,
    granted,
    limits,
    overview,
    packet,
    serve,
)
from tests.support.network import LIMIT_MS
from tests.support.runs import StageRunner
from tests.support.scripts import Script, case, cases, like

a, b = Peer("a"), Peer("b")
CANNOT_READ = failed("the attention of blind cannot be read", "ModelError")
BLIND = [a >> TURN, a << granted(1), a >> glance(0, turn=1), a << CANNOT_READ]


@cases(
    case(
        "the turn is kept, for its client alone, until the packet that follows the glance",
        [a >> TURN, a << granted(1), b >> TURN, a >> glance(5, turn=1)],
        [a << like(GlanceReply, glance=5, work={"tokens_used": 2, "flops": 7}), b.quiet],
        [a >> packet(3, turn=1), a << answer(3), b << granted(2)],
    ),
    case(
        "too many glances in a turn are refused and end it",
        [a >> TURN, a << granted(1), b >> TURN],
        *([a >> glance(number, turn=1), a << GlanceReply] for number in range(GLANCES_A_TURN_MAX)),
        [a >> glance(9, turn=1), a << expired(1), limits(TURN_LIMIT_NS=NS), b << granted(2)],
    ),
    case(
        "a turn expires if no packet follows the glance",
        [a >> TURN, a << granted(1), a >> glance(0, turn=1), a << GlanceReply],
        [limits(TURN_LIMIT_NS=NS), b >> TURN, b << granted(2)],
    ),
    case(
        "a packet that is no overview is refused",
        [a >> TURN, a << granted(1), a >> structs.replace(glance(0, turn=1)[0], arrays=()), a << failed("arrays")],
    ),
    case("a model that cannot glance is reported", BLIND, model=BlindAnswerModel, shared=True),
    case("a model that cannot glance ends a server of one run", BLIND, model=BlindAnswerModel, failure="ModelError"),
    model=GlancingAnswerModel,
)
def test_glances(play: Callable[[Script], None], script: Script) -> None:
    play(script)


def test_a_glance_returns_the_attention(runner: StageRunner) -> None:
    serve(runner, GlancingAnswerModel)
    client = Client(runner).greeted()
    client.link.send(*glance_message(5, client.turn(), overview(), "what?"))
    reply, received = client.expect_whole(GlanceReply)
    feedback = feedback_of(reply, received.parts)
    assert feedback is not None
    np.testing.assert_array_equal(feedback.attention, [0, 1])


class WaitingModel(GlancingAnswerModel):
    """Glances once the test allows it."""

    looking, go_on = threading.Event(), threading.Event()

    def glance(self, client: bytes, packet: TokenPacket, query: str) -> AnswerStats:
        self.looking.set()
        assert self.go_on.wait(LIMIT_MS / 1000)
        return super().glance(client, packet, query)


@pytest.fixture
def glancing(runner: StageRunner) -> Iterator[Client]:
    """A client in the middle of a glance."""
    WaitingModel.looking.clear()
    WaitingModel.go_on.clear()
    serve(runner, WaitingModel, shared=True)
    client = Client(runner).greeted()
    client.link.send(*glance_message(0, client.turn(), overview(), "what?"))
    assert WaitingModel.looking.wait(LIMIT_MS / 1000)
    yield client
    WaitingModel.go_on.set()


@pytest.mark.parametrize("message", [Disconnect(), Cancel()])
def test_a_client_that_leaves_during_a_glance_frees_its_turn(
    runner: StageRunner, glancing: Client, message: Message
) -> None:
    other = Client(runner)
    glancing.link.send(message)
    WaitingModel.go_on.set()
    other.greeted()
    other.link.send(TURN)
    other.expect(TurnGrant)
    assert glancing.quiet()
