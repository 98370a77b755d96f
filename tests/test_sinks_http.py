"""The HTTP server answers, whatever its clients do, and lets go of everything."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import RemoteDisconnected

import pytest

from stream.errors import OutputError
from stream.sinks import http as http_module
from stream.sinks.http import HttpServer, Page
from tests.waiting import LIMIT_S, until


def pages(path: str) -> Page | None:
    if path == "/broken":
        raise KeyError("oops")
    return Page(503, "text/plain", path.encode()) if path == "/sick" else Page(200, "text/plain", b"hello")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with closing(HttpServer("127.0.0.1", 0, lambda path: None if path == "/" else pages(path))) as made:
        yield made


def fetched(server: HttpServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request("http://{}:{}{}".format(*server.address, path), method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_pages_are_served_with_their_status(server: HttpServer) -> None:
    assert fetched(server, "/well?why=not") == (200, b"hello")
    assert fetched(server, "/sick") == (503, b"/sick")
    assert fetched(server, "/well", "HEAD") == (200, b"")
    assert fetched(server, "/")[0] == 404
    assert fetched(server, "/well", "POST")[0] == 501


def test_a_page_that_cannot_be_made_closes_only_its_connection(server: HttpServer) -> None:
    with pytest.raises(RemoteDisconnected):
        fetched(server, "/broken")
    assert fetched(server, "/well")[0] == 200


def _threads(name: str) -> int:
    return sum(name in thread.name for thread in threading.enumerate())


def test_where_no_thread_can_be_started_only_that_client_has_to_go(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Exhausted(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr("socketserver.threading.Thread", Exhausted)
    with pytest.raises((urllib.error.URLError, ConnectionError, RemoteDisconnected)):
        fetched(server, "/well")
    monkeypatch.undo()
    assert fetched(server, "/well") == (200, b"hello")
    server.close()
    assert capfd.readouterr().err == ""


def test_clients_that_dawdle_keep_nobody_out(server: HttpServer) -> None:
    with ExitStack() as stack:
        for _ in range(3 * http_module.CONNECTIONS_MAX):
            client = stack.enter_context(closing(socket.create_connection(server.address, timeout=LIMIT_S)))
            client.sendall(b"GET /well HTT")
        assert fetched(server, "/well")[0] == 200
        until(lambda: _threads("process_request_thread") <= http_module.CONNECTIONS_MAX)
        server.close()
    server.close()
    assert not _threads("metrics")


@pytest.mark.parametrize("nonsense", [b"\0" * 100, b"GET\r\n\r\n", b"x" * 70_000 + b"\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_what_is_no_request_harms_nobody(server: HttpServer, nonsense: bytes) -> None:
    with closing(socket.create_connection(server.address, timeout=LIMIT_S)) as client:
        client.sendall(nonsense)
    assert fetched(server, "/well")[0] == 200


def test_a_port_that_cannot_be_had_is_said_in_one_line(server: HttpServer) -> None:
    host, port = server.address
    for address, reason in [
        ((host, port), f"cannot serve metrics at {host}:{port}: another program uses that port"),
        (("203.0.113.9", 9109), "this machine has no such address"),
        ((host, 70_000), "that is no port"),
        (("127.0.0.1.9.9.9", 9109), "this machine has no such address"),
        (("::1%nowhere", 9109), "this machine has no such address"),
    ]:
        with pytest.raises(OutputError, match=reason):
            HttpServer(*address, pages)
