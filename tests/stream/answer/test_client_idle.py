"""Client of the answer protocol between two answers: packets that its server reads ahead."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from arr_coc.types import GroupPlace
from stream.answer.client import may_read_ahead
from stream.answer.embeddings import QuestionKey
from stream.answer.idle import IdleExchange, IdleOutcome, IdlePhase
from stream.answer.request import ClientOptions
from stream.errors import TransportError
from stream.events import PEER_MISBEHAVES, Answer, Notice
from stream.protocol.codec import token_packets
from stream.protocol.messages import (
    Connect,
    IdleGrant,
    IdlePacketMessage,
    IdlePass,
    IdleReply,
    IdleRequest,
    TokenPacketMessage,
    TurnGrant,
    TurnRequest,
)
from tests.support.answer_client import (
    HELLO,
    LOSES_SERVER,
    MISBEHAVES,
    REQUESTS_TURN,
    ClientFixture,
    ClientStep,
    does,
    embeds,
    gets_turn,
    goes_on_at,
    has,
    hear,
    play,
    sent,
)
from tests.support.clock import FakeClock
from tests.support.events import make_answer_reply, make_group_packet
from tests.support.scripts import Script, case, cases, containing, like

READS_AHEAD = replace(HELLO, memory_tokens=2048, reads_ahead=True)


def connected(*, resend: bool = False) -> ClientFixture:
    server = ClientFixture(FakeClock(), ClientOptions(reconnect=True, resend_after_loss=resend))
    server.greet(hello=READS_AHEAD)
    return server


def requests(*, in_lockstep: bool = False) -> ClientStep:
    """The client, which may read ahead, requests the permission to send a packet."""

    def request(server: ClientFixture) -> None:
        assert may_read_ahead(server.client)
        server.client.outbox.append((server.client.requests.idle.request(in_lockstep=in_lockstep), []))
        assert server.expect(IdleRequest).in_lockstep == in_lockstep
        assert not may_read_ahead(server.client)

    return request


def is_permitted(number: int, kept: tuple[int, int] | None = None) -> ClientStep:
    return hear(IdleGrant(number=number, tokens=32, kept=None if kept is None else GroupPlace(*kept)))


def sends(place: tuple[int, int] = (1, 1), *earlier: int, is_beside: bool = False) -> ClientStep:
    """The client sends a packet, whose second is that of its place, and earlier ones that the server lacks."""

    def send(server: ClientFixture) -> None:
        server.client.send_idle(make_group_packet(place, second=place[1]), is_beside=is_beside)
        message, envelope = server.expect_whole(IdlePacketMessage)
        assert message.number == server.client.requests.idle.grant.number
        frames = [packet.stamp.frame_index for packet in token_packets(message, envelope.parts)]
        assert frames == [*earlier, place[1]]

    return send


def is_read(number: int, kept: tuple[int, int], tokens: int = 2, *, rebuilt: bool = False) -> ClientStep:
    """The server has read a packet, of which the outcome comes."""
    place = GroupPlace(*kept)
    reply = IdleReply(number=number, tokens=tokens, took_ms=4.0, kept=place, rebuilt=rebuilt)
    return hear(reply, IdleOutcome(place, rebuilt=rebuilt))


def phase(expected: IdlePhase) -> ClientStep:
    return has(requests={"idle": {"phase": expected}})


def may_read(server: ClientFixture) -> None:
    assert may_read_ahead(server.client)


def answers_report(number: int, idle_tokens: int, rebuilt: int, idle_ms: float) -> list[ClientStep]:
    """The client asks about a packet, whose answer reports idle work."""
    event = like(Answer, idle_tokens=idle_tokens, rebuilt=rebuilt, timing={"idle_ms": idle_ms})
    return [
        gets_turn(number + 1),
        lambda server: server.send(make_group_packet((2, 1 + number))),
        sent(TokenPacketMessage),
        hear(make_answer_reply(number, "t"), event),
    ]


EARLIER = IdleReply(number=3, tokens=2, took_ms=4.0)
NOT_ASKED_FOR = like(Notice, code=PEER_MISBEHAVES, message=containing("idle work that was not asked for"))


@cases(
    case(
        "a packet is requested, granted, sent and read",
        [requests(), phase(IdlePhase.REQUESTED), is_permitted(1, (1, 1)), phase(IdlePhase.GRANTED), goes_on_at((1, 1))],
        [has(requests={"idle": {"grant": {"tokens": 32}}}), sends(), phase(IdlePhase.SENT), is_read(1, (1, 2))],
        [goes_on_at((1, 2)), may_read, has(refused_messages=0)],
    ),
    case(
        "with nothing to read the permission is passed on",
        [requests(), is_permitted(1), does(lambda client: client.send_idle(None)), sent(IdlePass), may_read],
    ),
    case(
        "while it is open the silence of the server counts",
        [has(awaits_server=False), requests(), has(awaits_server=True)],
    ),
    case(
        "a turn that comes first makes a late permission void",
        [requests(), REQUESTS_TURN, sent(TurnRequest), phase(IdlePhase.NONE), is_permitted(1, (1, 1))],
        [phase(IdlePhase.NONE), hear(TurnGrant(turn=1, kept=GroupPlace(1, 1))), has(may_send=True)],
    ),
    case(
        "a turn after the permission ends it",
        [requests(), is_permitted(1), REQUESTS_TURN, phase(IdlePhase.NONE)],
    ),
    case(
        "the end of a reading that a turn came before is taken all the same",
        [requests(), is_permitted(1, (1, 1)), sends(), REQUESTS_TURN, sent(TurnRequest), is_read(1, (1, 2))],
        [hear(TurnGrant(turn=1, kept=GroupPlace(1, 2))), goes_on_at((1, 2)), has(may_send=True)],
    ),
    case(
        "beside a new group that is read the next packet is asked for, and stays so at the end of that reading",
        [requests(), is_permitted(1, (1, 1)), sends((2, 0), is_beside=True), requests()],
        [is_read(1, (2, 1), rebuilt=True), is_permitted(2, (2, 1)), phase(IdlePhase.GRANTED), sends((2, 1))],
        [phase(IdlePhase.SENT)],
    ),
    case(
        "a new group may be read later than what came after it",
        [requests(), is_permitted(1, (1, 1)), sends((2, 0), is_beside=True), requests(), is_permitted(2, (1, 1))],
        [sends(), is_read(1, (2, 1), rebuilt=True), phase(IdlePhase.SENT), is_read(2, (2, 1), tokens=0), may_read],
    ),
    case(
        "the end of a reading that was not asked for is refused",
        [hear(IdleReply(number=1, tokens=2, took_ms=4.0, kept=GroupPlace(5, 5)), NOT_ASKED_FOR)],
        [has(refused_messages=1), goes_on_at(None), phase(IdlePhase.NONE)],
    ),
    case(
        "the end of another reading than the one under way is refused",
        [requests(), is_permitted(1), sends()],
        [hear(IdleReply(number=2, tokens=2, took_ms=4.0, kept=GroupPlace(5, 5)), NOT_ASKED_FOR)],
        [has(refused_messages=1), goes_on_at(None), phase(IdlePhase.SENT)],
    ),
    case(
        "another server knows nothing of what was asked for before",
        [requests(), is_permitted(3, (1, 1)), sends(), LOSES_SERVER, sent(Connect), phase(IdlePhase.NONE)],
        [hear(READS_AHEAD), embeds(), hear(EARLIER, MISBEHAVES), requests(), is_permitted(1), sends((1, 0))],
        [is_read(1, (1, 1)), hear(EARLIER), has(refused_messages=2)],
    ),
    case(
        "in lockstep a packet brings what the server lacks",
        [does(lambda client: client.requests.group.add(make_group_packet((1, 0), second=0)))],
        [does(lambda client: client.requests.group.add(make_group_packet((1, 1), second=1)))],
        [requests(in_lockstep=True), is_permitted(1), goes_on_at((1, 2)), sends((1, 2), 0, 1)],
        [is_read(1, (1, 3)), goes_on_at((1, 3))],
        resend=True,
    ),
    case(
        "the next answer reports what was read since the last one",
        [requests(), is_permitted(1, (1, 1)), sends((1, 1)), is_read(1, (1, 2), tokens=7)],
        [requests(), is_permitted(2), sends((2, 0), is_beside=True), is_read(2, (2, 1), tokens=7, rebuilt=True)],
        [requests(), is_permitted(3), sends((3, 0), is_beside=True), is_read(3, (3, 1), tokens=0, rebuilt=True)],
        answers_report(0, idle_tokens=14, rebuilt=1, idle_ms=12.0),
        answers_report(1, idle_tokens=0, rebuilt=0, idle_ms=0.0),
    ),
)
def test_readings(script: Script) -> None:
    play(script, connected(**script.options))


def test_it_is_asked_for_only_if_the_server_reads_ahead_and_nothing_else_is_under_way() -> None:
    server = ClientFixture(FakeClock(), ClientOptions())
    assert not may_read_ahead(server.client), "no server"
    server.greet()
    assert not may_read_ahead(server.client), "it reads nothing ahead"
    server = connected()
    server.request_turn()
    assert not may_read_ahead(server.client), "a turn was requested"
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=1))
    assert not may_read_ahead(server.client), "a turn was granted"
    server.send(make_group_packet((1, 0)))
    assert not may_read_ahead(server.client), "an answer is awaited"
    server.hear(make_answer_reply(0, "t"))
    assert may_read_ahead(server.client)
    server.client.embed(QuestionKey("who?"))
    assert not may_read_ahead(server.client), "another question is not in force yet"


def test_an_exchange_alone_refuses_a_number_that_was_not_granted() -> None:
    exchange = IdleExchange()
    with pytest.raises(TransportError, match="not asked for"):
        exchange.on_reply(IdleReply(number=1, tokens=1, took_ms=1.0))
    exchange.request()
    exchange.on_grant(IdleGrant(number=5, tokens=1))
    assert exchange.on_reply(IdleReply(number=4, tokens=0, took_ms=1.0)) == IdleOutcome(None, rebuilt=False)
    assert exchange.is_granted, "an earlier reading has ended"
