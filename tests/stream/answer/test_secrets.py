"""Clients of one server, each with a secret in its picture: no client receives another's."""

from __future__ import annotations

import pytest

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import TokenPacket
from stream.answer import server as server_module
from stream.answer.qwen import QwenAnswerModel
from stream.answer.server_statistics import ServerStatistics
from stream.protocol.messages import AnswerDelta, AnswerReply, Disconnect, KeepAlive, TurnGrant, TurnRequest
from tests.arr_coc.qwen.test_session_slots import SECRET_QUERY, alone, options, secret_packets
from tests.support.answer_server import Client, serve
from tests.support.network import LIMIT_MS
from tests.support.runs import StageRunner


def texts(clients: list[Client], packets: list[TokenPacket]) -> list[str]:
    """Answers to all clients, which ask at once; the pieces of each must make up its text."""
    for client in clients:
        client.link.send(TurnRequest())
    turns = [client.expect(TurnGrant).turn for client in clients]
    for number, (client, turn, packet) in enumerate(zip(clients, turns, packets, strict=True)):
        client.ask(number, turn, packet)
    return [whole_text(client, number) for number, client in enumerate(clients)]


def whole_text(client: Client, number: int) -> str:
    pieces = []
    while (received := client.link.receive(LIMIT_MS)) is not None:
        message = received.message
        if isinstance(message, AnswerReply):
            assert message.answer == number
            assert message.text == "".join(pieces)
            return message.text
        if not isinstance(message, KeepAlive):
            assert isinstance(message, AnswerDelta)
            assert message.answer == number
            pieces.append(message.text)
    raise AssertionError("no answer came")


def test_each_client_gets_its_own_answer_whichever_client_had_its_slot_before(
    runner: StageRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "TURN_LIMIT_NS", LIMIT_MS * 1_000_000)
    qwen, answer_options, statistics = load_qwen(None, device="cpu", dtype="float32"), options(24), ServerStatistics()
    packets = secret_packets(qwen)
    expected = [alone(qwen, answer_options, packet, SECRET_QUERY).text for packet in packets]
    assert len(set(expected)) == len(packets)
    model = QwenAnswerModel(AnswerSession(qwen, answer_options, slots=len(packets)))
    serve(runner, lambda config: model, shared=True, statistics=statistics)
    clients = [Client(runner, query=SECRET_QUERY).greeted() for _ in packets]
    assert texts(clients, packets) == expected
    assert texts(clients, packets[::-1]) == expected[::-1]
    for client in clients[:3]:
        client.link.send(Disconnect())
    others = [Client(runner, query=SECRET_QUERY).greeted() for _ in range(3)]
    assert texts([*others, *clients[3:]], packets) == expected
    totals = statistics.figures().totals
    assert (totals.answers, totals.failed) == (3 * len(packets), 0)
