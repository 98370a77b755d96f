"""Client of the answer protocol between two answers: packets that its server reads ahead."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from arr_coc.types import GroupPlace
from stream.answer.client import may_read_ahead
from stream.answer.embeddings import QuestionKey
from stream.answer.idle import IdleExchange, IdleOutcome
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
from tests.support.answer_client import HELLO, ClientFixture
from tests.support.clock import FakeClock
from tests.support.events import make_answer_reply, make_group_packet

READS_AHEAD = replace(HELLO, memory_tokens=2048, reads_ahead=True)


def connected(*, resend: bool = False) -> ClientFixture:
    server = ClientFixture(FakeClock(), ClientOptions(reconnect=True, resend_after_loss=resend))
    server.greet(hello=READS_AHEAD)
    return server


def exchange_of(server: ClientFixture) -> IdleExchange:
    return server.client.requests.idle


def request(server: ClientFixture, *, in_lockstep: bool = False) -> None:
    assert may_read_ahead(server.client)
    server.client.outbox.append((exchange_of(server).request(in_lockstep=in_lockstep), []))
    assert server.expect(IdleRequest).in_lockstep == in_lockstep
    assert exchange_of(server).is_open
    assert not may_read_ahead(server.client)


def grant(server: ClientFixture, number: int, place: GroupPlace | None = None) -> None:
    assert server.hear(IdleGrant(number=number, tokens=32, kept=place)) == []


def send(server: ClientFixture, place: tuple[int, int] = (1, 1), *, is_beside: bool = False) -> list[int]:
    """Frames of a packet that is sent, by their second."""
    server.client.send_idle(make_group_packet(place, second=place[1]), is_beside=is_beside)
    message, envelope = server.expect_whole(IdlePacketMessage)
    assert message.number == exchange_of(server).grant.number
    return [packet.stamp.frame_index for packet in token_packets(message, envelope.parts)]


def reply(
    server: ClientFixture, number: int, place: GroupPlace | None, tokens: int = 2, **fields: bool
) -> list[object]:
    """The outcomes of a reading."""
    server.hear(IdleReply(number=number, tokens=tokens, took_ms=4.0, kept=place, **fields))
    return [*server.of(IdleOutcome)]


def test_a_packet_is_requested_granted_sent_and_read() -> None:
    server = connected()
    request(server)
    assert not exchange_of(server).is_granted
    grant(server, 1, GroupPlace(1, 1))
    assert exchange_of(server).is_granted
    assert exchange_of(server).grant.tokens == 32
    assert server.client.requests.group.next_place == GroupPlace(1, 1)
    assert send(server) == [1]
    assert exchange_of(server).is_open
    assert not exchange_of(server).is_granted
    assert reply(server, 1, GroupPlace(1, 2)) == [IdleOutcome(GroupPlace(1, 2), rebuilt=False)]
    assert server.client.requests.group.next_place == GroupPlace(1, 2)
    assert may_read_ahead(server.client)
    assert server.client.refused_messages == 0


def test_with_nothing_to_read_the_permission_is_passed_on() -> None:
    server = connected()
    request(server)
    grant(server, 1)
    server.client.send_idle(None)
    server.expect(IdlePass)
    assert may_read_ahead(server.client)


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


def test_while_it_is_open_the_server_s_silence_counts() -> None:
    server = connected()
    assert not server.client.awaits_server
    request(server)
    assert server.client.awaits_server


def test_a_turn_that_comes_first_makes_a_late_permission_void() -> None:
    server = connected()
    request(server)
    server.request_turn()
    server.expect(TurnRequest)
    assert not exchange_of(server).is_open
    grant(server, 1, GroupPlace(1, 1))
    assert not exchange_of(server).is_granted
    server.hear(TurnGrant(turn=1, kept=GroupPlace(1, 1)))
    assert server.client.may_send


def test_a_turn_after_the_permission_ends_it() -> None:
    server = connected()
    request(server)
    grant(server, 1)
    server.request_turn()
    assert not exchange_of(server).is_granted
    assert not exchange_of(server).is_open


def test_the_end_of_a_reading_that_a_turn_came_before_is_taken_all_the_same() -> None:
    server = connected()
    request(server)
    grant(server, 1, GroupPlace(1, 1))
    send(server)
    server.request_turn()
    server.expect(TurnRequest)
    assert reply(server, 1, GroupPlace(1, 2)) == [IdleOutcome(GroupPlace(1, 2), rebuilt=False)]
    server.hear(TurnGrant(turn=1, kept=GroupPlace(1, 2)))
    assert server.client.requests.group.next_place == GroupPlace(1, 2)
    assert server.client.may_send


def test_beside_a_new_group_that_is_read_the_next_packet_is_asked_for() -> None:
    """The end of its reading does not end the exchange that began meanwhile."""
    server = connected()
    request(server)
    grant(server, 1, GroupPlace(1, 1))
    send(server, (2, 0), is_beside=True)
    request(server)
    assert reply(server, 1, GroupPlace(2, 1), rebuilt=True) == [IdleOutcome(GroupPlace(2, 1), rebuilt=True)]
    grant(server, 2, GroupPlace(2, 1))
    assert exchange_of(server).is_granted
    assert send(server, (2, 1)) == [1]
    assert exchange_of(server).is_open


def test_a_new_group_may_be_read_later_than_what_came_after_it() -> None:
    server = connected()
    request(server)
    grant(server, 1, GroupPlace(1, 1))
    send(server, (2, 0), is_beside=True)
    request(server)
    grant(server, 2, GroupPlace(1, 1))
    send(server)
    assert reply(server, 1, GroupPlace(2, 1), rebuilt=True) == [IdleOutcome(GroupPlace(2, 1), rebuilt=True)]
    assert exchange_of(server).is_open, "the second one is read"
    assert reply(server, 2, GroupPlace(2, 1), tokens=0) == [IdleOutcome(GroupPlace(2, 1), rebuilt=False)]
    assert may_read_ahead(server.client)


@pytest.mark.parametrize("granted", [0, 1])
def test_the_end_of_a_reading_that_was_not_asked_for_is_refused(granted: int) -> None:
    server = connected()
    if granted:
        request(server)
        grant(server, granted)
        send(server)
    (notice,) = server.hear(IdleReply(number=granted + 1, tokens=2, took_ms=4.0, kept=GroupPlace(5, 5)))
    assert isinstance(notice, Notice)
    assert notice.code == PEER_MISBEHAVES
    assert "idle work that was not asked for" in notice.message
    assert server.of(IdleOutcome) == []
    assert server.client.refused_messages == 1
    assert server.client.requests.group.next_place is None
    assert exchange_of(server).is_open == bool(granted)


def test_another_server_knows_nothing_of_what_was_asked_for_before() -> None:
    server = connected()
    request(server)
    grant(server, 3, GroupPlace(1, 1))
    send(server)
    server.lose()
    server.expect(Connect)
    assert not exchange_of(server).is_open
    server.hear(READS_AHEAD)
    server.embed()
    request(server)
    grant(server, 1)
    send(server, (1, 0))
    assert reply(server, 1, GroupPlace(1, 1)) == [IdleOutcome(GroupPlace(1, 1), rebuilt=False)]
    server.hear(IdleReply(number=3, tokens=2, took_ms=4.0))
    assert server.client.refused_messages == 1


def test_in_lockstep_a_packet_brings_what_the_server_lacks() -> None:
    server = connected(resend=True)
    for number in range(2):
        server.client.requests.group.add(make_group_packet((1, number), second=number))
    request(server, in_lockstep=True)
    grant(server, 1, None)
    assert server.client.requests.group.next_place == GroupPlace(1, 2)
    assert send(server, (1, 2)) == [0, 1, 2]
    reply(server, 1, GroupPlace(1, 3))
    assert server.client.requests.group.next_place == GroupPlace(1, 3)


def test_the_next_answer_reports_what_was_read_since_the_last_one() -> None:
    server = connected()
    for number, (place, is_rebuilt) in enumerate([((1, 1), False), ((2, 0), True), ((3, 0), True)], 1):
        request(server)
        grant(server, number, GroupPlace(1, 1))
        send(server, place, is_beside=is_rebuilt)
        reply(server, number, GroupPlace(place[0], place[1] + 1), tokens=0 if place[0] == 3 else 7, rebuilt=is_rebuilt)
    answers = []
    for number in range(2):
        server.grant(number + 1)
        server.send(make_group_packet((2, 1 + number)))
        server.expect(TokenPacketMessage)
        answers += server.events(Answer, make_answer_reply(number, "t"))
    assert [(answer.idle_tokens, answer.rebuilt, answer.timing and answer.timing.idle_ms) for answer in answers] == [
        (14, 1, 12.0),
        (0, 0, 0.0),
    ]


def test_an_exchange_alone_refuses_a_number_that_was_not_granted() -> None:
    exchange = IdleExchange()
    with pytest.raises(TransportError, match="not asked for"):
        exchange.on_reply(IdleReply(number=1, tokens=1, took_ms=1.0))
    exchange.request()
    exchange.on_grant(IdleGrant(number=5, tokens=1))
    assert exchange.on_reply(IdleReply(number=4, tokens=0, took_ms=1.0)) == IdleOutcome(None, rebuilt=False)
    assert exchange.is_granted, "an earlier reading has ended"
