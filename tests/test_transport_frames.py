"""The socket for frames: the newest of those that came, or every one; who is there, and who is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
import zmq.auth

from stream.errors import TransportError
from stream.transport.curve import ClientCurve
from stream.transport.frames import QUEUE_MESSAGES, FrameSocket


@contextmanager
def bound(kind: int) -> Iterator[tuple[zmq.Socket[bytes], str]]:
    context = zmq.Context()
    socket = context.socket(kind)
    try:
        socket.bind("tcp://127.0.0.1:*")
        yield socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)
    finally:
        socket.close(linger=0)
        context.term()


@contextmanager
def frame_socket(endpoint: str, *, pull: bool = False, curve: ClientCurve | None = None) -> Iterator[FrameSocket]:
    socket = FrameSocket(endpoint, pull=pull, curve=curve)
    try:
        yield socket
    finally:
        socket.close()


def await_subscriber(publisher: zmq.Socket[bytes], subscriber: FrameSocket) -> None:
    for _ in range(500):
        publisher.send(b"hello")
        if subscriber.receive(10)[0] is not None:
            return
    pytest.fail("the subscriber never heard anything")


def received(socket: FrameSocket) -> tuple[list[bytes], int]:
    for _ in range(100):
        parts, passed = socket.receive(50)
        if parts is not None:
            return [bytes(part) for part in parts], passed
    pytest.fail("nothing came")


def test_of_several_the_newest_is_given_whole() -> None:
    with bound(zmq.XPUB) as (publisher, endpoint), frame_socket(endpoint) as socket:
        await_subscriber(publisher, socket)
        while socket.receive(20)[0] is not None:
            pass
        for number in range(QUEUE_MESSAGES - 1):
            publisher.send_multipart([b"head %d" % number, b"body %d" % number])
        publisher.send_multipart([b"last head", b"last body"])
        taken = 0
        parts: list[bytes] = []
        while not parts or parts[0] != b"last head":
            parts, passed = received(socket)
            taken += 1 + passed
        assert parts == [b"last head", b"last body"]
        assert taken == QUEUE_MESSAGES
        assert socket.receive(0) == (None, 0)
        assert socket.met
        assert not socket.refused


def test_what_is_pulled_comes_one_by_one() -> None:
    with bound(zmq.PUSH) as (sender, endpoint), frame_socket(endpoint, pull=True) as socket:
        for number in range(4):
            assert sender.poll(2000, zmq.POLLOUT)
            sender.send_multipart([b"%d" % number, b"x"])
        assert [received(socket) for _ in range(4)] == [([b"%d" % number, b"x"], 0) for number in range(4)]


def test_nobody_there_is_no_error_yet() -> None:
    with frame_socket("tcp://127.0.0.1:9") as socket:
        assert socket.receive(20) == (None, 0)
        assert not socket.met


def test_an_address_that_is_none_is_an_error() -> None:
    with pytest.raises(TransportError, match=r"cannot connect to tcp://no host:5: Invalid argument; check the address"):
        FrameSocket("tcp://no host:5")


def test_keys_that_the_sender_has_no_use_for_are_a_refusal(tmp_path: Path) -> None:
    pairs = [zmq.auth.load_certificate(zmq.auth.create_certificates(tmp_path, name)[1]) for name in ("a", "b")]
    (public, secret), (server, _) = pairs
    assert secret is not None
    with bound(zmq.PUB) as (_, endpoint), frame_socket(endpoint, curve=ClientCurve(secret, public, server)) as socket:
        limit = time.monotonic() + 10
        while not socket.refused and time.monotonic() < limit:
            assert socket.receive(20) == (None, 0)
        assert socket.refused
        assert not socket.met
