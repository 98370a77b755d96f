"""Waiting for what other processes and threads do, with a limit, and the places at which they may meet."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import zmq

from stream.config import NetworkConfig
from stream.transport.security import make_keys

LIMIT_S = 120.0
"""Only a hang takes this long: a test that waits for an event never measures the machine's speed."""

LIMIT_MS = int(LIMIT_S * 1000)


def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Calls `condition` until it returns something true; fails if that takes too long."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"nothing came of it within {limit_s:g} s"
        time.sleep(0.01)


def keyed(folder: Path, name: str = "keys") -> NetworkConfig:
    """Configuration of hosts that share new keys, in a separate folder."""
    make_keys(folder / name)
    return NetworkConfig(keys=str(folder / name))


def free_port() -> int:
    """A TCP port of this machine without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def fetched(address: tuple[str, int], path: str, method: str = "GET") -> tuple[int, str]:
    """Status and body of a page."""
    host, port = address
    request = urllib.request.Request(f"http://{host}:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Relay:
    """A TCP relay in front of an address, which can stand still: connections stay, and no byte passes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").partition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._passes = threading.Event()
        self._passes.set()
        self._open: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()
        for opened in tuple(self._open):
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        for thread in tuple(self._threads):
            thread.join(LIMIT_S)
        for opened in self._open:
            opened.close()

    def hold(self) -> None:
        """Stand still, as a process that is stopped."""
        self._passes.clear()

    def go_on(self) -> None:
        """Pass on the messages so far, and all that follow."""
        self._passes.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.append(client)
                server = socket.create_connection(self._to)
                self._open.append(server)
                for source, sink in ((client, server), (server, client)):
                    self._threads.append(threading.Thread(target=self._pump, args=(source, sink)))
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self._passes.wait(LIMIT_S)
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


class Listener:
    """Subscriber of one publisher."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket

    def next(self, topic: str = "", limit_s: float = LIMIT_S) -> Any:
        """The next message of a topic, as a robot would see it. Fails if none comes."""
        message = self.next_or_none(topic, limit_s)
        assert message is not None, f"no {topic or 'message'} within {limit_s} s"
        return message

    def next_or_none(self, topic: str = "", limit_s: float = LIMIT_S) -> Any:
        end_s = time.monotonic() + limit_s
        while (left_s := end_s - time.monotonic()) > 0:
            if self.socket.poll(int(left_s * 1000) + 1):
                received, body = self.socket.recv_multipart()
                if not topic or received.decode() == topic:
                    return msgspec.msgpack.decode(body)
        return None


@contextmanager
def listening(
    endpoint: str,
    *topics: str,
    prepare: Callable[[zmq.Socket[bytes]], None] = lambda socket: None,
) -> Iterator[Listener]:
    """A subscriber to the topics, or to all of them; `prepare` is given the socket before it connects."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    prepare(socket)
    for topic in topics or ("",):
        socket.setsockopt_string(zmq.SUBSCRIBE, topic)
    socket.connect(endpoint)
    try:
        yield Listener(socket)
    finally:
        socket.close(linger=0)
        context.term()
