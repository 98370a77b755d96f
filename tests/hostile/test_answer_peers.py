"""Peers of the answer port that speak ZeroMQ by hand: what they declare, break off or never read costs no other client
its answers."""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack, suppress

import pytest
import zmq

from stream.protocol.messages import Connect, ServerHello, encode
from stream.transport.links import REPLIES_MAX
from tests.faults.test_messages import answered
from tests.faults.test_messages import until as until_message
from tests.support.network import LIMIT_S, free_port
from tests.support.served_answers import ServedAnswers

GROWTH_MAX_BYTES = 200 << 20

pytestmark = pytest.mark.growth_max_bytes(GROWTH_MAX_BYTES)

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
SOCKET_TYPE = b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
READY = b"\x05READY" + SOCKET_TYPE
COMMAND, LONG_FRAME, MORE = 4, 2, 1
PEERS = 20


def command(body: bytes) -> bytes:
    return bytes([COMMAND, len(body)]) + body


def long_frame(declared_bytes: int, data: bytes = b"x" * 100, flags: int = 0) -> bytes:
    return bytes([LONG_FRAME | flags]) + struct.pack(">Q", declared_bytes) + data


def after_handshake(data: bytes) -> bytes:
    return GREETING + command(READY) + data


PEER_BYTES = {
    "a greeting": GREETING,
    "half a handshake": GREETING + command(READY)[:10],
    "a handshake": after_handshake(b""),
    "a socket of no type": GREETING + command(b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 1 << 31)),
    "an unknown command": after_handshake(command(b"\x04WHAT") * 100),
    "pings": after_handshake(command(b"\x04PING\x00\x00") * 10_000),
    **{f"a frame of 2^{power} bytes": after_handshake(long_frame((1 << power) - 1)) for power in (20, 30, 40, 63, 64)},
    "many parts": after_handshake(b"".join(long_frame(100, flags=MORE) for _ in range(10_000))),
    "empty messages": after_handshake(b"\x00\x00" * 10_000),
    "reserved flags": after_handshake(b"\xf8\x01x"),
}


@pytest.mark.parametrize("name", PEER_BYTES)
def test_a_peer_by_hand_costs_no_client_its_answers(name: str) -> None:
    with ExitStack() as stack:
        port = free_port()
        served = ServedAnswers(stack, f"tcp://127.0.0.1:{port}")
        early = served.client()
        early.send(Connect())
        until_message(early, ServerHello)  # the port is open
        for _ in range(PEERS):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port), LIMIT_S))
            with suppress(ConnectionError):  # the server may have closed it meanwhile
                peer.sendall(PEER_BYTES[name])
        good = served.client()
        good.send(Connect())
        until_message(good, ServerHello)
        assert [answered(good, number) for number in range(3)] == ["frame 7 sum 0"] * 3
        assert served.control.failure is None


def test_clients_that_never_read_cost_no_other_its_answers() -> None:
    with ExitStack() as stack:
        served = ServedAnswers(stack, f"tcp://127.0.0.1:{free_port()}")
        good = served.client()
        good.send(Connect())
        until_message(good, ServerHello)
        for _ in range(PEERS):
            deaf = served.transport.context.socket(zmq.DEALER)
            stack.callback(deaf.close, linger=0)
            deaf.setsockopt(zmq.RCVHWM, 1)
            deaf.setsockopt(zmq.RCVBUF, 4096)
            deaf.connect(served.endpoint)
            for _ in range(3 * REPLIES_MAX):
                with suppress(zmq.Again):
                    deaf.send(encode(Connect()), zmq.NOBLOCK)
        assert [answered(good, number) for number in range(3)] == ["frame 7 sum 0"] * 3
        assert served.control.failure is None
