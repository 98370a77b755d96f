"""Forwarder: connections to fixed addresses reach servers that move."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stream.fleet.on_ray.forwarder import Forwarder
from tests.support.network import LIMIT_S


@contextmanager
def named_server(name: bytes) -> Iterator[str]:
    """A server that sends its name, then all that it gets."""

    def serve() -> None:
        while True:
            try:
                taken, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(taken,), daemon=True).start()

    def echo(taken: socket.socket) -> None:
        with taken:
            taken.sendall(name)
            while data := taken.recv(1 << 16):
                taken.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"


def connected(address: str) -> socket.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), LIMIT_S)


def received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def test_connections_follow_a_server_that_moves() -> None:
    big = bytes(range(256)) * 8_192
    with named_server(b"A") as first, named_server(b"B") as second:
        forwarder = Forwarder(2)
        try:
            with connected(forwarder.addresses[0]) as one, connected(forwarder.addresses[1]) as other:
                forwarder.route([first])
                assert received(one, 1) == b"A", "it waited for its server"
                threading.Thread(target=one.sendall, args=(big,), daemon=True).start()
                assert received(one, len(big)) == big
                forwarder.route([first])
                one.sendall(b"still")
                assert received(one, 5) == b"still"
                forwarder.route([second, first])
                assert received(other, 1) == b"A"
                assert received(one, 1) == b"", "the connection to what was there before is closed"
            with connected(forwarder.addresses[0]) as one, connected(forwarder.addresses[1]) as other:
                assert (received(one, 1), received(other, 1)) == (b"B", b"A")
        finally:
            forwarder.close()
            forwarder.close()


def test_a_connection_waits_for_a_server_that_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        gone = f"tcp://127.0.0.1:{bound.getsockname()[1]}"
    forwarder = Forwarder(1)
    try:
        forwarder.route([gone])
        with connected(forwarder.addresses[0]) as one, named_server(b"A") as first:
            one.sendall(b"early")
            forwarder.route([first])
            assert received(one, 6) == b"Aearly"
    finally:
        forwarder.close()
