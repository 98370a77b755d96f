"""A web server on loopback that serves video: files, endless MJPEG, HLS; with logins, and with faults."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import av
import numpy as np

from tests.video_maker import Image

BOUNDARY = "frame"
TYPES = {".m3u8": "application/vnd.apple.mpegurl", ".ts": "video/mp2t", ".mp4": "video/mp4"}


class Server(ThreadingHTTPServer):
    """Serves the files of a folder, and what `live` gives under its name. Close it by `cut`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path, live: dict[str, Callable[[Handler], None]] | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.folder = folder
        self.live = live or {}
        self.login: tuple[str, str] | None = None
        self.ranges = True
        """Whether a client may ask for a part of a file."""
        self.clients: set[socket.socket] = set()
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def cut(self) -> None:
        """Closes every socket."""
        self.stopped.set()
        self.shutdown()
        self.server_close()
        for client in list(self.clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may leave when they like."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.0"

    def setup(self) -> None:
        super().setup()
        self.server.clients.add(self.connection)

    def finish(self) -> None:
        self.server.clients.discard(self.connection)
        super().finish()

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].lstrip("/")
        path = self.server.folder / name
        if self.server.login is not None:
            wanted = "Basic " + base64.b64encode(":".join(self.server.login).encode()).decode()
            if self.headers.get("Authorization") != wanted:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="camera"')
                self.end_headers()
                return
        if name in self.server.live:
            self.server.live[name](self)
        elif path.is_file():
            self._send_file(path)
        else:
            self.send_error(404)

    def _send_file(self, path: Path) -> None:
        data = path.read_bytes()
        if not self.server.ranges:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Type", TYPES.get(path.suffix, "application/octet-stream"))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(data[start:])

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


def jpegs(pictures: list[Image]) -> list[bytes]:
    codec = av.CodecContext.create("mjpeg", "w")
    codec.height, codec.width = pictures[0].shape[:2]
    codec.pix_fmt, codec.time_base = "yuvj420p", 1
    coded = []
    for index, picture in enumerate(pictures):
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        frame.pts = index
        coded += [bytes(packet) for packet in codec.encode(frame)]
    return coded + [bytes(packet) for packet in codec.encode(None)]


def mjpeg(
    pictures: list[bytes], fps: float = 50, good: int | None = None, then: str = "close"
) -> Callable[[Handler], None]:
    """An endless stream of JPEGs as cameras send it; after `good` of them it may `close`, stay `silent`, or send
    `garbage`."""

    def serve(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", f"multipart/x-mixed-replace; boundary={BOUNDARY}")
        handler.end_headers()
        count = 0
        while not handler.server.stopped.wait(1 / fps):
            faulty = good is not None and count >= good
            if faulty and then == "close":
                return
            if faulty and then == "silent":
                continue
            body = bytes(range(256)) * 8 if faulty else pictures[count % len(pictures)]
            head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(body)}\r\n\r\n"
            handler.wfile.write(head.encode() + body + b"\r\n")
            count += 1

    return serve
