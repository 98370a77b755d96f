"""Client of the answer protocol with groups of pictures: what packets build on, and what is sent again after a loss."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from msgspec.structs import replace

from arr_coc.errors import OptionError
from arr_coc.types import FrameStamp, GroupPlace
from stream.events import Answer
from stream.protocol.codec import token_packet, token_packets
from stream.protocol.device_pixels import LocalPixels
from stream.protocol.messages import Connect, GlancePacketMessage, TokenPacketMessage, TurnExpired
from tests.support.answer_client import (
    HELLO,
    LOSES_SERVER,
    ClientFixture,
    ClientStep,
    acted,
    client_options,
    does,
    embeds,
    failed,
    gets_turn,
    goes_on_at,
    has,
    hear,
    play,
    sent,
)
from tests.support.clock import FakeClock
from tests.support.events import make_answer_reply, make_glance_reply, make_group_packet
from tests.support.scripts import Script, case, cases

MEMORY = replace(HELLO, memory_tokens=2048)


def frames_sent(*frames: int) -> ClientStep:
    """The client sends a packet with these frames, by their second; its own last."""

    def compare(server: ClientFixture) -> None:
        message, envelope = server.expect_whole((TokenPacketMessage, GlancePacketMessage))
        assert [packet.stamp.frame_index for packet in token_packets(message, envelope.parts)] == list(frames)

    return compare


def sends(place: tuple[int, int], second: int, tokens: int = 2) -> ClientStep:
    return lambda server: server.send(make_group_packet(place, tokens, second))


def glances(place: tuple[int, int], second: int) -> ClientStep:
    packet = make_group_packet(place, tokens=0, second=second)
    return lambda server: server.client.send_glance(packet, "what?", server.clock.now_ns())


def reads(*places: tuple[int, int]) -> ClientStep:
    """The packets at these places are in the group, each of the second of its place."""
    return lambda server: [
        server.client.requests.group.add(make_group_packet(place, second=place[1])) for place in places
    ]


def answers(number: int) -> ClientStep:
    return hear(make_answer_reply(number, "t"), Answer)


def connected(**options: Any) -> ClientFixture:
    server = ClientFixture(FakeClock(), client_options(**options))
    server.greet(hello=MEMORY)
    return server


FIRST = [gets_turn(1), sends((1, 0), second=0), frames_sent(0), answers(0)]
SECOND = [gets_turn(2, (1, 1)), sends((1, 1), second=2), frames_sent(2)]
THIRD = sends((1, 2), second=4)


@cases(
    case(
        "a packet builds on what the turn reports as kept",
        [goes_on_at(None), *FIRST, gets_turn(2, (1, 1)), goes_on_at((1, 1)), sends((1, 1), second=2), frames_sent(2)],
        [answers(1), gets_turn(3, None), goes_on_at(None)],  # evicted, or served by another one
        resend_after_loss=False,
    ),
    case(
        "with resend after loss a packet builds on all sent ones, and evicted ones are sent again",
        [*FIRST, goes_on_at((1, 1)), *SECOND, answers(1), gets_turn(3, None), goes_on_at((1, 2)), THIRD],
        [frames_sent(0, 2, 4)],
    ),
    *(
        case(
            f"it sends what the server lacks, which goes on at {kept}",
            [*FIRST, *SECOND, answers(1), gets_turn(3, kept), THIRD, frames_sent(*lacking, 4), answers(2)],
        )
        for kept, lacking in ((None, [0, 2]), ((9, 2), [0, 2]), ((1, 1), [2]), ((1, 2), []), ((1, 3), []))
    ),
    case(
        "a new group brings nothing of the old one",
        [*FIRST, gets_turn(2, (1, 1)), sends((2, 0), second=2), frames_sent(2), answers(1)],
        [gets_turn(3, None), sends((2, 1), second=4), frames_sent(2, 4)],
    ),
    case(
        "a packet sent again to another server brings its group",
        [*FIRST, *SECOND, LOSES_SERVER, sent(Connect), hear(MEMORY), embeds(), gets_turn(1), frames_sent(0, 2)],
        [answers(1), goes_on_at((1, 2))],
    ),
    case(
        "a packet too late for its turn is sent again",
        [*FIRST, *SECOND, hear(TurnExpired(turn=2)), gets_turn(3, (1, 1)), frames_sent(2)],
    ),
    case(
        "a packet too late for its turn is not in the group",
        [*FIRST, *SECOND, hear(TurnExpired(turn=2)), gets_turn(3, (1, 1)), goes_on_at((1, 1))],
        resend_after_loss=False,
    ),
    case(
        "a cancelled answer leaves its packet in the group",
        [*FIRST, *SECOND, does(lambda client: client.cancel_answer(FrameStamp(9, 9, 9, 9)))],
        [does(lambda client: client.outbox.clear()), gets_turn(3, (1, 2)), goes_on_at((1, 2))],
        resend_after_loss=False,
    ),
    case(
        "a glance at a group brings what the server lacks",
        [*FIRST, gets_turn(2, None), glances((1, 1), second=2), frames_sent(0, 2)],
        [hear(make_glance_reply(0)), has(may_send=True)],
    ),
    case(
        "recalled packets are sent with the first new one",
        [reads((1, 0), (1, 1), (1, 2)), does(lambda client: client.requests.group.add(None)), goes_on_at((1, 3))],
        [gets_turn(1, None), sends((1, 3), second=3), frames_sent(0, 1, 2, 3)],
    ),
    *(
        case(
            f"a successor with less memory is refused with resend after loss, and so is the next: {tokens}",
            FIRST,
            [LOSES_SERVER, sent(Connect), hear(replace(HELLO, memory_tokens=tokens)), failed(reason, OptionError)] * 2,
        )
        for tokens, reason in (
            (0, "it keeps 0 tokens of visual memory, and the server before it 2048; start it with --memory"),
            (1024, "the server before it 2048; start it with --set answer.memory.tokens=2048"),
        )
    ),
    case(
        "a successor without memory is accepted without resend after loss",
        [*FIRST, LOSES_SERVER, sent(Connect), hear(HELLO), acted()],
        resend_after_loss=False,
    ),
    resend_after_loss=True,
    reconnect=True,
)
def test_groups(script: Script) -> None:
    play(script, connected(**script.options))


def test_a_frame_with_nothing_new_is_sent_and_not_kept() -> None:
    server = connected(resend_after_loss=True)
    for step in (*FIRST, gets_turn(2, (1, 1)), sends((1, 1), second=2, tokens=0)):
        step(server)
    message, envelope = server.expect_whole(TokenPacketMessage)
    assert (message.place, len(token_packet(message, envelope.parts).regions)) == (GroupPlace(1, 1), 0)
    assert server.client.requests.group.next_place == GroupPlace(1, 1)


def test_pixels_of_a_group_stay_on_their_device_together() -> None:
    pixels = LocalPixels()
    server = connected(reconnect=True, resend_after_loss=True, pixels=pixels)
    server.lose()
    server.expect(Connect)
    server.hear(replace(MEMORY, takes_device_pixels=True))
    server.embed()
    for number in range(2):
        packet = make_group_packet((1, number), second=number)
        on_device = torch.from_numpy(packet.host_pixels)
        gets_turn(number + 1)(server)
        server.send(dataclasses.replace(packet, pixels=on_device))
        message, envelope = server.expect_whole(TokenPacketMessage)
        packets = token_packets(message, envelope.parts, pixels.take)
        assert len(message.arrays) == 3
        assert [int(packet.pixels.max()) for packet in packets] == list(range(number + 1))
        server.hear(make_answer_reply(number, "t"))
    for step in (gets_turn(3, (1, 2)), sends((1, 2), second=2, tokens=0), frames_sent(2)):
        step(server)
