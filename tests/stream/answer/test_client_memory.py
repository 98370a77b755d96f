"""Client of the answer protocol with groups of pictures: what packets build on, and what is sent again after a loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from arr_coc.errors import OptionError
from arr_coc.types import FrameStamp, GroupPlace
from stream.answer.client import Failure
from stream.protocol.codec import token_packet, token_packets
from stream.protocol.device_pixels import LocalPixels
from stream.protocol.messages import (
    Connect,
    GlancePacketMessage,
    TokenPacketMessage,
    TurnExpired,
    TurnGrant,
    TurnRequest,
)
from tests.support.answer_client import HELLO, ClientFixture, client_options
from tests.support.clock import FakeClock
from tests.support.events import make_answer_reply, make_glance_reply, make_group_packet

MEMORY = replace(HELLO, memory_tokens=2048)


def connected(*, resend: bool = True, **options: Any) -> ClientFixture:
    server = ClientFixture(FakeClock(), client_options(reconnect=True, resend_after_loss=resend, **options))
    server.greet(hello=MEMORY)
    return server


def grant(server: ClientFixture, turn: int, server_place: GroupPlace | None) -> None:
    server.request_turn()
    server.expect(TurnRequest)
    server.hear(TurnGrant(turn=turn, kept=server_place))


def frames_of(server: ClientFixture) -> list[int]:
    """Frames of the next packet, by their second; its own last."""
    message, envelope = server.expect_whole(TokenPacketMessage)
    return [packet.stamp.frame_index for packet in token_packets(message, envelope.parts)]


def ask(
    server: ClientFixture, number: int, server_place: GroupPlace | None, place: tuple[int, int], second: int
) -> list[int]:
    grant(server, number + 1, server_place)
    server.send(make_group_packet(place, second=second))
    frames = frames_of(server)
    server.hear(make_answer_reply(number, "t"))
    return frames


def test_a_packet_builds_on_what_the_turn_reports_as_kept() -> None:
    server = connected(resend=False)
    assert server.client.requests.group.next_place is None
    assert ask(server, 0, None, (1, 0), 0) == [0]
    grant(server, 2, GroupPlace(1, 1))
    assert server.client.requests.group.next_place == GroupPlace(1, 1)
    server.send(make_group_packet((1, 1), second=2))
    assert frames_of(server) == [2]
    server.hear(make_answer_reply(1, "t"))
    grant(server, 3, None)
    assert server.client.requests.group.next_place is None, "evicted, or served by another one"


def test_with_resend_after_loss_a_packet_builds_on_all_sent_ones() -> None:
    server = connected()
    assert ask(server, 0, None, (1, 0), 0) == [0]
    assert server.client.requests.group.next_place == GroupPlace(1, 1)
    assert ask(server, 1, GroupPlace(1, 1), (1, 1), 2) == [2]
    grant(server, 3, None)
    assert server.client.requests.group.next_place == GroupPlace(1, 2), "evicted packets are sent again"
    server.send(make_group_packet((1, 2), second=4))
    assert frames_of(server) == [0, 2, 4]


@pytest.mark.parametrize(
    ("server_place", "missing_frames"),
    [
        (None, [0, 2]),
        (GroupPlace(9, 2), [0, 2]),
        (GroupPlace(1, 1), [2]),
        (GroupPlace(1, 2), []),
        (GroupPlace(1, 3), []),
    ],
)
def test_it_sends_what_the_server_lacks(server_place: GroupPlace | None, missing_frames: list[int]) -> None:
    server = connected()
    ask(server, 0, None, (1, 0), 0)
    ask(server, 1, GroupPlace(1, 1), (1, 1), 2)
    assert ask(server, 2, server_place, (1, 2), 4) == [*missing_frames, 4]


def test_a_new_group_brings_nothing_of_the_old_one() -> None:
    server = connected()
    ask(server, 0, None, (1, 0), 0)
    assert ask(server, 1, GroupPlace(1, 1), (2, 0), 2) == [2]
    assert ask(server, 2, None, (2, 1), 4) == [2, 4]


def test_a_packet_sent_again_to_another_server_brings_its_group() -> None:
    server = connected()
    ask(server, 0, None, (1, 0), 0)
    grant(server, 2, GroupPlace(1, 1))
    server.send(make_group_packet((1, 1), second=2))
    assert frames_of(server) == [2]
    server.lose()
    server.expect(Connect)
    server.hear(MEMORY)
    server.embed()
    message = server.grant_again(1, TokenPacketMessage)
    assert (message.place, [frame.stamp.frame_index for frame in message.earlier]) == (GroupPlace(1, 1), [0])
    server.hear(make_answer_reply(1, "t"))
    assert server.client.requests.group.next_place == GroupPlace(1, 2)


@pytest.mark.parametrize("resend", [True, False])
def test_a_packet_too_late_for_its_turn(resend: bool) -> None:
    server = connected(resend=resend)
    ask(server, 0, None, (1, 0), 0)
    grant(server, 2, GroupPlace(1, 1))
    server.send(make_group_packet((1, 1), second=2))
    frames_of(server)
    server.hear(TurnExpired(turn=2))
    if resend:
        server.expect(TurnRequest)
        server.hear(TurnGrant(turn=3, kept=GroupPlace(1, 1)))
        assert frames_of(server) == [2]
    else:
        grant(server, 3, GroupPlace(1, 1))
        assert server.client.requests.group.next_place == GroupPlace(1, 1), "the observer sees that its packet was lost"


def test_a_cancelled_answer_leaves_its_packet_in_the_group() -> None:
    server = connected(resend=False)
    ask(server, 0, None, (1, 0), 0)
    grant(server, 2, GroupPlace(1, 1))
    server.send(make_group_packet((1, 1), second=2))
    server.client.cancel_answer(FrameStamp(9, 9, 9, 9))
    server.client.outbox.clear()
    grant(server, 3, GroupPlace(1, 2))
    assert server.client.requests.group.next_place == GroupPlace(1, 2)


def test_a_frame_with_nothing_new_is_sent_and_not_kept() -> None:
    server = connected()
    ask(server, 0, None, (1, 0), 0)
    grant(server, 2, GroupPlace(1, 1))
    server.send(make_group_packet((1, 1), tokens=0, second=2))
    message, envelope = server.expect_whole(TokenPacketMessage)
    assert (message.place, len(token_packet(message, envelope.parts).regions)) == (GroupPlace(1, 1), 0)
    assert server.client.requests.group.next_place == GroupPlace(1, 1)


def test_a_glance_at_a_group_brings_what_the_server_lacks() -> None:
    server = connected()
    ask(server, 0, None, (1, 0), 0)
    grant(server, 2, None)
    server.client.send_glance(make_group_packet((1, 1), tokens=0, second=2), "what?", server.clock.now_ns())
    message, envelope = server.expect_whole(GlancePacketMessage)
    assert [packet.stamp.frame_index for packet in token_packets(message, envelope.parts)] == [0, 2]
    server.hear(make_glance_reply(0))
    assert server.client.may_send


def test_recalled_packets_are_sent_with_the_first_new_one() -> None:
    server = connected()
    for number in range(3):
        server.client.requests.group.add(make_group_packet((1, number), second=number))
    server.client.requests.group.add(None)
    assert server.client.requests.group.next_place == GroupPlace(1, 3)
    assert ask(server, 0, None, (1, 3), 3) == [0, 1, 2, 3]


@pytest.mark.parametrize(("tokens", "remedy"), [(0, "--memory"), (1024, "--set answer.memory.tokens=2048")])
def test_a_successor_with_less_memory_is_refused_with_resend_after_loss(tokens: int, remedy: str) -> None:
    server = connected()
    ask(server, 0, None, (1, 0), 0)
    for _ in range(2):
        server.lose()
        server.expect(Connect)
        server.hear(replace(HELLO, memory_tokens=tokens))
        (failure,) = server.of(Failure)
        assert isinstance(failure.error, OptionError)
        assert failure.reason == (
            f"it keeps {tokens} tokens of visual memory, and the server before it 2048; start it with {remedy}"
        )


def test_a_successor_without_memory_is_accepted_without_resend_after_loss() -> None:
    server = connected(resend=False)
    ask(server, 0, None, (1, 0), 0)
    server.lose()
    server.expect(Connect)
    server.hear(HELLO)
    assert server.of(Failure) == []


def test_pixels_of_a_group_stay_on_their_device_together() -> None:
    pixels = LocalPixels()
    server = connected(pixels=pixels)
    server.lose()
    server.expect(Connect)
    server.hear(replace(MEMORY, takes_device_pixels=True))
    server.embed()
    for number in range(2):
        packet = make_group_packet((1, number), second=number)
        on_device = torch.from_numpy(packet.host_pixels)
        grant(server, number + 1, None)
        server.send(dataclasses.replace(packet, pixels=on_device))
        message, envelope = server.expect_whole(TokenPacketMessage)
        packets = token_packets(message, envelope.parts, pixels.take)
        assert len(message.arrays) == 3
        assert [int(packet.pixels.max()) for packet in packets] == list(range(number + 1))
        server.hear(make_answer_reply(number, "t"))
    grant(server, 3, GroupPlace(1, 2))
    server.send(make_group_packet((1, 2), tokens=0, second=2))
    assert frames_of(server) == [2]
