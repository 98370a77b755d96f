"""HTTP server of /metrics, /healthz and /readyz."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

from stream.errors import OutputError
from stream.http.address import names_server
from stream.http.guard import Awaited, ConnectionGuard, ConnectionProgress, GuardLimits, peer_of
from stream.http.traffic import discard_unread, traffic_of

CONNECTIONS_MAX = 8
"""Limit of open connections, each of which has a thread; for a new one, the slowest is closed."""

LIMITS = GuardLimits(CONNECTIONS_MAX, CONNECTIONS_MAX)

POLL_S = 0.1
STOP_LIMIT_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """The reply to one request."""

    status: int
    content_type: str
    body: bytes


FOREIGN = Page(421, "text/plain; charset=utf-8", b"these pages are for this machine; metrics.host opens them\n")
"""Reply to a request for another host: a site may have pointed its own name at this machine (DNS rebinding)."""

UNKNOWN = Page(404, "text/plain; charset=utf-8", b"here are /metrics, /healthz and /readyz\n")

Pages = Callable[[str], Page | None]
"""Return the page at a path, or None."""


class HttpServer(ThreadingHTTPServer):
    """HTTP server of `pages` at `host` and `port`, with a daemon thread per connection.

    Raises OutputError if the port is not available.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int, pages: Pages, guard: ConnectionGuard | None = None) -> None:
        self.pages = pages
        self.guard = guard or ConnectionGuard("the metrics server", LIMITS)
        self._checked_s = time.monotonic()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise OutputError(f"cannot serve metrics at {host}:{port}: {_reason(error)}") from error
        self.address = str(self.server_address[0]), int(self.server_address[1])
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close every connection and stop serving. Idempotent."""
        if self._thread.is_alive():
            self.shutdown()
            self._thread.join(STOP_LIMIT_S)
        self.server_close()
        for connection in self.guard.connections:
            connection.abort()

    def server_bind(self) -> None:
        """Bind like a TCP server: HTTPServer would look up the host's name, which may wait for a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[_Client, Any]:
        """Accept a connection. Wait if no descriptor is free, because the server retries at once."""
        try:
            accepted, address = super().get_request()
        except OSError:
            time.sleep(POLL_S)
            raise
        return _Client(accepted, peer_of(address[0])), address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; if too many are open, the slowest is closed, or the new one."""
        if self.guard.admit(request):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that keep a thread waiting; called between requests, and every POLL_S."""
        now_s = time.monotonic()
        if now_s - self._checked_s >= self.guard.limits.check_s:
            self._checked_s = now_s
            self.guard.close_overdue()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level instead of printing a traceback on stderr."""
        log.debug("a request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request for a page of the server."""

    server_version = "arr-coc-stream"

    def version_string(self) -> str:
        return self.server_version

    def do_GET(self) -> None:
        self._send_page(with_body=True)

    def do_HEAD(self) -> None:
        self._send_page(with_body=False)

    def parse_request(self) -> bool:
        """Read the header; from here on the client waits for the server."""
        is_valid = super().parse_request()
        self.connection.has_asked = True
        return is_valid

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests."""

    def _send_page(self, *, with_body: bool) -> None:
        assert isinstance(self.server, HttpServer)
        host = self.headers["Host"]  # None in HTTP/1.0, which no browser speaks
        if host is not None and not names_server(host, self.server.address[0]):
            page = FOREIGN
        else:
            page = self.server.pages(self.path.partition("?")[0]) or UNKNOWN
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if with_body:
            self.wfile.write(page.body)


class _Client(socket.socket):
    """An accepted connection, as the guard sees it."""

    def __init__(self, accepted: socket.socket, peer: str) -> None:
        super().__init__(fileno=accepted.detach())
        self.peer = peer
        self.has_asked = False

    def progress(self) -> ConnectionProgress | None:
        """Return what the server waits for."""
        traffic = traffic_of(self)
        if traffic is None:
            return None
        if traffic.unread_bytes:
            return ConnectionProgress(Awaited.READING, None, traffic.read_bytes, traffic.unread_bytes)
        return ConnectionProgress(Awaited.NOTHING if self.has_asked else Awaited.REQUEST)

    def abort(self) -> None:
        """Hang up; the connection's thread then closes it."""
        discard_unread(self)
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


def _reason(error: OSError | OverflowError) -> str:
    if isinstance(error, OverflowError):
        return "it is not a valid port"
    if error.errno == errno.EADDRINUSE:
        return "another program uses that port; name another with --metrics-port"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return "this machine has no such address; 127.0.0.1 always works"
    return str(error.strerror)
