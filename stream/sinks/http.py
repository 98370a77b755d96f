"""HTTP server for programs that monitor a run: a few connections at a time, each with a time limit."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from stream.errors import OutputError

CONNECTIONS_MAX = 8
"""Connections open at a time. The oldest is closed for one more, so that a thousand idle clients take eight threads and
keep nobody out."""

READ_LIMIT_S = 5.0
"""Seconds that a client may be silent."""

POLL_S = 0.1
STOP_LIMIT_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """The reply to one request."""

    status: int
    content_type: str
    body: bytes


Pages = Callable[[str], Page | None]
"""The page at a path, or None where there is none."""


class HttpServer:
    """Serves `pages` at `host` and `port`, in threads of its own. Raises OutputError where the port cannot be had."""

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        try:
            self._server = _Server(host, port, pages)
        except (OSError, OverflowError) as error:
            raise OutputError(f"cannot serve metrics at {host}:{port}: {_reason(error)}") from error
        self.address: tuple[str, int] = self._server.server_address[:2]  # type: ignore[assignment]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Closes every connection and stops serving; may be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(STOP_LIMIT_S)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    """One daemon thread for each connection, of which at most `CONNECTIONS_MAX` are open."""

    request_queue_size = 256

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        self.pages = pages
        self._open: list[socket.socket] = []
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """As a TCP server does: HTTPServer would look up the host's name, which may wait for a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open = [*(one for one in self._open if one.fileno() >= 0), request]
        if len(self._open) > CONNECTIONS_MAX:
            _hang_up(self._open.pop(0))
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Not a traceback on stderr, which is the server's own way."""
        log.debug("a request from %s failed", client_address, exc_info=True)

    def server_close(self) -> None:
        super().server_close()
        for connection in self._open:
            _hang_up(connection)


class _Handler(BaseHTTPRequestHandler):
    timeout = READ_LIMIT_S
    server_version = "arr-coc-stream"

    def version_string(self) -> str:
        return self.server_version

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

    def _answer(self, *, with_body: bool) -> None:
        assert isinstance(self.server, _Server)
        page = self.server.pages(self.path.partition("?")[0])
        if page is None:
            page = Page(404, "text/plain; charset=utf-8", b"here are /metrics, /healthz and /readyz\n")
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _reason(error: OSError | OverflowError) -> str:
    if isinstance(error, OverflowError):
        return "that is no port"
    if error.errno == errno.EADDRINUSE:
        return "another program uses that port; name another with --metrics-port"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return "this machine has no such address; 127.0.0.1 is always there"
    return str(error.strerror)
