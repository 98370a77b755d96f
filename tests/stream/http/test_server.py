"""Server of ASGI applications: a client that keeps it waiting is closed, in every phase of a request, and no other."""

from __future__ import annotations

import asyncio
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from stream.errors import OutputError
from stream.http.server import GuardedServer, default_limits, open_listener
from tests.support.guards import TimeUp
from tests.support.network import LIMIT_S, until

LARGE_BYTES = 32 << 20
"""More than the kernels' buffers on both sides hold."""


class Application:
    """Replies at once, with much, after the body, or not before the connection ends; `requests`: those that it got."""

    def __init__(self) -> None:
        self.requests = 0

    async def __call__(self, scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
        self.requests += 1
        await reply(scope, receive, send)


async def reply(scope: Any, receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    if scope["path"] == "/body":
        while (await receive()).get("more_body"):
            pass
    elif scope["path"] == "/wait":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    length = LARGE_BYTES if scope["path"] == "/large" else 2
    headers = [(b"content-length", str(length).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(max(1, length // 65536)):
        await send({"type": "http.response.body", "body": b"ok" * (min(length, 65536) // 2), "more_body": length > 2})
    if length > 2:
        await send({"type": "http.response.body", "body": b""})


class Served:
    """The application behind a guard whose clock the test moves."""

    def __init__(self, connections: int) -> None:
        self.time_up = TimeUp(connections)
        self.listener = open_listener("a test", "127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.application = Application()
        self.server = GuardedServer(self.application, self.listener, self.time_up.guard, lifespan="off", ws="none")
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()))
        self._thread.start()

    def send(self, path: str, *headers: str, body: bytes = b"", stack: ExitStack) -> socket.socket:
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", self.port), LIMIT_S))
        lines = ("GET" if not headers else "POST") + f" {path} HTTP/1.1", "Host: here", *headers, "", ""
        connection.sendall("\r\n".join(lines).encode() + body)
        return connection

    def wait_for_requests(self, count: int) -> None:
        """Wait until the application has so many requests: before that, time must not go."""
        until(lambda: self.application.requests == count)

    def close(self) -> None:
        self.server.stop()
        self._thread.join(LIMIT_S)
        self.listener.close()


@contextmanager
def served(connections: int = 100) -> Iterator[tuple[Served, ExitStack]]:
    page = Served(connections)
    with ExitStack() as stack:
        stack.callback(page.close)
        yield page, stack


UNSENT = "Content-Length: 5000"


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("/body", (UNSENT,), b""),
        ("/body", (UNSENT,), b"some"),
        ("/body", ("Transfer-Encoding: chunked",), b"4\r\nso"),
        ("/", (UNSENT,), b"some"),
        ("/body", (UNSENT, "Expect: 100-continue"), b""),
    ],
)
def test_a_body_that_never_comes_is_not_waited_for(path: str, headers: tuple[str, ...], body: bytes) -> None:
    with served() as (page, stack):
        connection = page.send(path, *headers, body=body, stack=stack)
        page.wait_for_requests(1)
        received = page.time_up.received(connection)
    assert received.startswith(b"HTTP/1.1 200") is (path == "/")


def test_a_reply_that_is_not_read_is_not_waited_for() -> None:
    with served() as (page, stack):
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", page.port))
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
        page.wait_for_requests(1)
        page.time_up.until(lambda: page.server.connections == 0)
        with pytest.raises(ConnectionResetError):  # the kernel keeps nothing of it
            read_to_end(connection)


def test_a_request_that_waits_for_the_application_is_not_closed() -> None:
    with served() as (page, stack):
        waiting = page.send("/wait", stack=stack)
        page.wait_for_requests(1)
        idle = stack.enter_context(socket.create_connection(("127.0.0.1", page.port), LIMIT_S))
        assert page.time_up.received(idle) == b""
        waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.recv(1)


def read_to_end(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


@pytest.mark.parametrize("path", ["/body", "/large"])
def test_a_crowd_that_keeps_the_server_waiting_leaves_room_for_others(path: str) -> None:
    with served(connections=8) as (page, stack):
        for _ in range(50):
            page.send(path, *((UNSENT,) if path == "/body" else ()), stack=stack)
        connection = page.send("/", stack=stack)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        until(lambda: page.server.connections <= 8)


def test_a_crowd_of_requests_under_way_refuses_new_ones() -> None:
    with served(connections=4) as (page, stack):
        waiting = [page.send("/wait", stack=stack) for _ in range(4)]
        page.wait_for_requests(4)
        with suppress(ConnectionResetError, BrokenPipeError):
            assert page.send("/", stack=stack).recv(1) == b""
        waiting[0].close()
        until(lambda: page.server.connections == 3)
        assert page.send("/", stack=stack).recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("descriptors", "connections"), [(resource.RLIM_INFINITY, 512), (1024, 512), (256, 128), (2, 1)]
)
def test_half_of_the_descriptors_may_be_connections(
    descriptors: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    limits = default_limits()
    assert (limits.connections, limits.of_a_peer) == (connections, max(1, 3 * connections // 4))


def test_an_address_that_cannot_be_bound_is_one_line() -> None:
    with open_listener("a test", "127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OutputError, match=f"cannot serve a test at 127.0.0.1:{port}: the port is in use"):
            open_listener("a test", "127.0.0.1", port)
