"""HTTP servers on loopback, in a thread."""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeVar

POLL_S = 0.01

Entered = TypeVar("Entered", bound="LoopbackServer")


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing about clients that do not wait for their reply."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class LoopbackServer:
    """Serves `port` of this machine, any free one for 0, from its making to `close`; a thread for each connection."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        self._server = _Server(("127.0.0.1", port), handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(POLL_S,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self: Entered) -> Entered:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class QuietHandler(BaseHTTPRequestHandler):
    """Handler that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass

    def content(self) -> bytes:
        """The content of the request."""
        return self.rfile.read(int(self.headers["Content-Length"]))

    def send_whole(self, status: int, content: bytes = b"", *headers: tuple[str, str]) -> None:
        """Reply; to HEAD without the content."""
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if content and self.command != "HEAD":
            self.wfile.write(content)


class DrippingServer(LoopbackServer):
    """Sends headers (`/head`) or content (`/body`) byte by byte, without an end; at any other path one whole reply."""

    def __init__(self) -> None:
        self.released = released = threading.Event()

        class Handler(QuietHandler, BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path not in ("/head", "/body"):
                    self.send_whole(200, b"whole")
                    return
                try:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n" + (b"" if self.path == "/head" else b"\r\n"))
                    while not released.wait(POLL_S):
                        self.wfile.write(b"X: y\r\n")
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def do_POST(self) -> None:
                self.content()
                self.do_GET()

        super().__init__(Handler)

    def close(self) -> None:
        self.released.set()
        super().close()
