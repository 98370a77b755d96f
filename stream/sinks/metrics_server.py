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
from stream.web.access import names_server

CONNECTIONS_MAX = 8
"""Limit of open connections. A new one closes the oldest, so that a thousand idle clients occupy eight threads and
block no other client."""

POLL_S = 0.1
STOP_LIMIT_S = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Page:
    """The reply to one request."""

    status: int
    content_type: str
    body: bytes


FOREIGN = Page(421, "text/plain; charset=utf-8", b"these pages are for this machine; output.metrics_host opens them\n")
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

    def __init__(self, host: str, port: int, pages: Pages) -> None:
        self.pages = pages
        self._open: list[socket.socket] = []
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
        for connection in self._open:
            _hang_up(connection)

    def server_bind(self) -> None:
        """Bind like a TCP server: HTTPServer would look up the host's name, which may wait for a name server."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Wait if no descriptor is free, because the server retries at once."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(POLL_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection; close the oldest if too many are open."""
        self._open = [*(connection for connection in self._open if connection.fileno() >= 0), request]
        if len(self._open) > CONNECTIONS_MAX:
            _hang_up(self._open.pop(0))
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log at debug level instead of printing a traceback on stderr."""
        log.debug("a request from %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Handler of one request for a page of the server."""

    timeout = 5.0  # seconds that a client may be silent
    server_version = "arr-coc-stream"

    def version_string(self) -> str:
        return self.server_version

    def do_GET(self) -> None:
        self._send_page(with_body=True)

    def do_HEAD(self) -> None:
        self._send_page(with_body=False)

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


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _reason(error: OSError | OverflowError) -> str:
    if isinstance(error, OverflowError):
        return "it is not a valid port"
    if error.errno == errno.EADDRINUSE:
        return "another program uses that port; name another with --metrics-port"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return "this machine has no such address; 127.0.0.1 always works"
    return str(error.strerror)
