"""A control socket answers everybody, whoever dies in between; a client says plainly that nobody answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import zmq

from stream.config import NetworkConfig
from stream.errors import OutputError, TransportError
from stream.transport.control import REQUEST_BYTES_MAX, ControlServer, request
from stream.transport.curve import client_curve, make_keys, server_curve
from tests.waiting import LIMIT_MS

ANYWHERE = "tcp://127.0.0.1:*"


def shouting(body: bytes) -> bytes:
    return body.upper()


@pytest.fixture
def server() -> Iterator[ControlServer]:
    with closing(ControlServer(ANYWHERE, None, shouting)) as made:
        yield made


@contextmanager
def client(kind: int, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(kind)
    socket.connect(endpoint)
    try:
        yield socket
    finally:
        socket.close(linger=0)
        context.term()


def test_requests_are_answered_one_after_the_other(server: ControlServer) -> None:
    assert request(server.endpoint, None, b"one") == b"ONE"
    assert request(server.endpoint, None, b"two") == b"TWO"


def test_a_client_without_an_envelope_is_answered_too(server: ControlServer) -> None:
    with client(zmq.DEALER, server.endpoint) as dealer:
        dealer.send(b"bare")
        assert dealer.poll(LIMIT_MS)
        assert dealer.recv_multipart() == [b"BARE"]


def test_a_client_that_dies_in_the_middle_holds_up_nobody(server: ControlServer) -> None:
    with client(zmq.REQ, server.endpoint) as dying:
        dying.send(b"never mind")
    assert request(server.endpoint, None, b"next") == b"NEXT"


def test_a_request_that_is_too_large_closes_only_its_senders_connection(server: ControlServer) -> None:
    with pytest.raises(TransportError, match="nobody answers"):
        request(server.endpoint, None, bytes(REQUEST_BYTES_MAX + 1), limit_s=0.2)
    assert request(server.endpoint, None, b"next") == b"NEXT"


def test_a_port_in_use_is_said_in_one_line(server: ControlServer) -> None:
    with pytest.raises(OutputError, match="another program uses it"):
        ControlServer(server.endpoint, None, shouting)


def test_closing_twice_is_once(server: ControlServer) -> None:
    server.close()
    server.close()
    with pytest.raises(TransportError, match=r"nobody answers at .* within 0.1 s; see that a run with --control"):
        request(server.endpoint, None, b"too late", limit_s=0.1)


def test_an_address_that_is_none() -> None:
    with pytest.raises(TransportError, match="no address for a socket"):
        request("nonsense", None, b"x")


def test_only_who_has_the_key_is_answered(tmp_path: Path) -> None:
    make_keys(tmp_path)
    network = NetworkConfig(keys=str(tmp_path))
    with closing(ControlServer(ANYWHERE, server_curve(network, ANYWHERE), shouting)) as guarded:
        assert request(guarded.endpoint, client_curve(network, guarded.endpoint), b"friend") == b"FRIEND"
        with pytest.raises(TransportError, match="nobody answers"):
            request(guarded.endpoint, None, b"stranger", limit_s=0.2)
