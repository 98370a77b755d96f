"""HTTP server of metrics and health: it serves its pages, whatever its clients send."""

from __future__ import annotations

import errno
import socket
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, RemoteDisconnected
from socketserver import TCPServer

import pytest

from stream.errors import OutputError
from stream.extensions.metrics import server as metrics_server
from stream.extensions.metrics.server import HttpServer, Page
from tests.support.network import LIMIT_S, fetched, until


def pages(path: str) -> Page | None:
    if path == "/broken":
        raise KeyError("oops")
    return Page(503, "text/plain", path.encode()) if path == "/sick" else Page(200, "text/plain", b"hello")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with closing(HttpServer("127.0.0.1", 0, lambda path: None if path == "/" else pages(path))) as http_server:
        yield http_server


def test_without_descriptors_the_server_waits(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def get_request(self: HttpServer) -> tuple[socket.socket, object]:
        if len(waits) < 3:
            raise OSError(errno.EMFILE, "too many open files")
        return accept(self)

    accept = TCPServer.get_request
    monkeypatch.setattr(TCPServer, "get_request", get_request)
    monkeypatch.setattr("stream.extensions.metrics.server.time.sleep", waits.append)
    assert fetched(server.address, "/well") == (200, "hello")
    assert waits == [metrics_server.POLL_S] * 3


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:9109", 200),
        ("[::1]:9109", 200),
        (None, 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example:9109", 421),
        ("", 421),
    ],
)
def test_a_foreign_host_is_refused(server: HttpServer, host: str | None, status: int) -> None:
    connection = HTTPConnection(*server.address, timeout=LIMIT_S)
    connection.putrequest("GET", "/well", skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    with closing(connection), connection.getresponse() as reply:
        assert reply.status == status
        assert (reply.read() == b"hello") == (status == 200)


def test_a_server_for_other_machines_has_any_name() -> None:
    with closing(HttpServer("0.0.0.0", 0, pages)) as server:
        connection = HTTPConnection("127.0.0.1", server.address[1], timeout=LIMIT_S)
        connection.request("GET", "/well", headers={"Host": "metrics.example"})
        with closing(connection), connection.getresponse() as reply:
            assert reply.status == 200


def test_pages_are_served_with_their_status(server: HttpServer) -> None:
    assert fetched(server.address, "/well?why=not") == (200, "hello")
    assert fetched(server.address, "/sick") == (503, "/sick")
    assert fetched(server.address, "/well", "HEAD") == (200, "")
    assert fetched(server.address, "/")[0] == 404
    assert fetched(server.address, "/well", "POST")[0] == 501


def test_a_page_that_cannot_be_made_closes_only_its_connection(server: HttpServer) -> None:
    with pytest.raises(RemoteDisconnected):
        fetched(server.address, "/broken")
    assert fetched(server.address, "/well")[0] == 200


def _threads(name: str) -> int:
    return sum(name in thread.name for thread in threading.enumerate())


def test_if_no_thread_can_be_started_only_that_client_is_disconnected(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Exhausted(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr("socketserver.threading.Thread", Exhausted)
    with pytest.raises((urllib.error.URLError, ConnectionError, RemoteDisconnected)):
        fetched(server.address, "/well")
    monkeypatch.undo()
    assert fetched(server.address, "/well") == (200, "hello")
    server.close()
    assert capfd.readouterr().err == ""


def test_idle_clients_block_no_other_client(server: HttpServer) -> None:
    with ExitStack() as stack:
        for _ in range(3 * metrics_server.CONNECTIONS_MAX):
            client = stack.enter_context(closing(socket.create_connection(server.address, timeout=LIMIT_S)))
            client.sendall(b"GET /well HTT")
        assert fetched(server.address, "/well")[0] == 200
        until(lambda: _threads("process_request_thread") <= metrics_server.CONNECTIONS_MAX)
        server.close()
    server.close()
    assert not _threads("metrics")


@pytest.mark.parametrize("nonsense", [b"\0" * 100, b"GET\r\n\r\n", b"x" * 70_000 + b"\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_an_invalid_request_affects_no_other_client(server: HttpServer, nonsense: bytes) -> None:
    with closing(socket.create_connection(server.address, timeout=LIMIT_S)) as client:
        client.sendall(nonsense)
    assert fetched(server.address, "/well")[0] == 200


def test_an_unavailable_port_is_reported_in_one_line(server: HttpServer) -> None:
    host, port = server.address
    for address, reason in [
        ((host, port), f"cannot serve metrics at {host}:{port}: another program uses that port"),
        (("203.0.113.9", 9109), "this machine has no such address"),
        ((host, 70_000), "it is not a valid port"),
        (("127.0.0.1.9.9.9", 9109), "this machine has no such address"),
        (("::1%nowhere", 9109), "this machine has no such address"),
    ]:
        with pytest.raises(OutputError, match=reason):
            HttpServer(*address, pages)
