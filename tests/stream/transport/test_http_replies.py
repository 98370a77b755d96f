"""Replies of servers that never end, or end too late."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator

import pytest

from stream.transport.http_replies import REPLY_BYTES_MAX, start_of, timed_connection, timed_opener, until
from tests.support.http_server import DrippingServer

SHORT_S, LONG_S = 0.3, 30.0


@pytest.fixture
def server() -> Iterator[DrippingServer]:
    with DrippingServer() as dripping_server:
        yield dripping_server


@pytest.mark.parametrize("path", ["/head", "/body"])
def test_a_reply_that_comes_byte_by_byte_is_given_up(server: DrippingServer, path: str) -> None:
    with pytest.raises(TimeoutError):
        timed_opener().open(f"{server.address}{path}", timeout=SHORT_S).read()
    connection = timed_connection(("127.0.0.1", server.port), SHORT_S)
    connection.request("GET", path)
    with pytest.raises(TimeoutError):
        connection.getresponse().read()
    connection.close()


def test_a_whole_reply_is_read(server: DrippingServer) -> None:
    with timed_opener().open(f"{server.address}/whole", timeout=LONG_S) as reply:
        assert reply.read(2) == b"wh"
        assert reply.read() == b"ole"


@pytest.mark.parametrize(
    "head",
    [b"X Server: a\r\n", b"Server : a\r\n", b"Content-Length: 9\r\n", b"Content-Length:\r\n", b"nonsense\r\n"],
)
def test_a_reply_with_an_odd_head_is_read(head: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = timed_connection(listener.getsockname(), LONG_S)
        connection.request("GET", "/")
        accepted, _ = listener.accept()
        with accepted:
            accepted.recv(65536)
            accepted.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\nwhole")
        assert connection.getresponse().read(100) == b"whole"
        connection.close()


def test_of_an_endless_reply_the_start_is_read() -> None:
    assert start_of(itertools.repeat(b"x" * 1000)) == b"x" * REPLY_BYTES_MAX
    assert start_of([b"a", b"b"], 10) == b"ab"


def test_chunks_end_with_the_deadline() -> None:
    assert list(until([b"a", b"b"], float("inf"))) == [b"a", b"b"]
    with pytest.raises(TimeoutError):
        list(until(itertools.repeat(b"a"), float("-inf")))
