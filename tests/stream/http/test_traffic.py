"""Counts of the kernel, and what a close drops."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from stream.http.traffic import Traffic, discard_unread, traffic_of
from tests.support.network import until


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(listener.getsockname()))
        server = stack.enter_context(listener.accept()[0])
        yield client, server


def traffic(connection: socket.socket) -> Traffic:
    counts = traffic_of(connection)
    assert counts is not None
    return counts


def test_it_counts_what_the_peer_sent_and_read(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    before = traffic(server)
    assert before.received_bytes is not None
    assert before.read_bytes is not None
    client.sendall(bytes(100))
    server.sendall(bytes(30))
    until(lambda: traffic(server).received_bytes == before.received_bytes + 100)
    until(lambda: traffic(server) == Traffic(before.received_bytes + 100, before.read_bytes + 30, 0))


def test_it_counts_bytes_that_the_peer_does_not_read(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    server.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            server.send(bytes(65536))
    assert traffic(server).unread_bytes > 0


def test_a_closed_connection_has_no_counts(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    assert traffic_of(pair[1]) is None
    discard_unread(pair[1])


def test_a_kernel_that_does_not_count_says_so(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: bytes(104))
    assert traffic_of(pair[1]) == Traffic(None, None, 0)
    monkeypatch.delattr(socket, "TCP_INFO")
    assert traffic_of(pair[1]) == Traffic(None, None, 0)


def test_a_close_resets_a_connection_whose_peer_does_not_read(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    discard_unread(server)
    server.close()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
