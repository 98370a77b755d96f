"""A small HTTP server for machines that look at a run: a few connections at a time, each with a time limit."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from stream.errors import OutputError

CONNECTIONS_MAX = 8
"""Open at a time; the oldest is closed for one more, so that nobody who dawdles keeps others out."""

READ_LIMIT_S = 5.0
"""How long a client may be silent."""

POLL_S = 0.1
STOP_LIMIT_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """What is answered."""

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
        """Closes every connection, and waits for the threads; may be called twice."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(STOP_LIMIT_S)
        self._server.server_close()


class _Server(HTTPServer):
    """One thread for each connection, and never more than `CONNECTIONS_MAX` of them."""

    request_queue_size = 256

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        self.pages = pages
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """As a TCP server does: HTTPServer would look up the host's name, which may wait for a name server."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="metrics-client", daemon=True
        )
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = next(iter(self._open))
                del self._open[oldest]
                _hang_up(oldest)
            self._open[request] = thread
        thread.start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Where no thread can be started for a client: not a traceback on stderr, which is the server's own way."""
        with self._lock:
            self._open.pop(request, None)
        log.debug("a connection from %s could not be served", client_address, exc_info=True)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            left = dict(self._open)
        for connection, thread in left.items():
            _hang_up(connection)
            thread.join(STOP_LIMIT_S)

    def _serve(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:
            log.debug("a request for %s failed", client_address, exc_info=True)
        finally:
            self.shutdown_request(request)
            with self._lock:
                self._open.pop(request, None)


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
        """Requests are not told."""

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
