"""Threads that send live video on loopback: MPEG-TS over UDP, and HLS into a folder."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import av
import msgspec
import numpy as np
import zmq

from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.media import Source, SourceFrame, SourceOutage
from stream.sources.factory import open_source
from stream.sources.segments import SegmentRecorder
from tests.support.network import LIMIT_S
from tests.support.video import Image, moving_square

FPS = 50


class Sender:
    """Encodes a moving square at its pace into any output of FFmpeg, until it is closed."""

    def __init__(self, target: str, container_format: str, *, gop: int = 10, **options: str) -> None:
        self._target = target
        self._format = container_format
        self._options = options
        self._gop = gop
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self) -> None:
        pictures = list(moving_square(20))
        with av.open(self._target, "w", format=self._format, options=self._options) as container:
            stream = container.add_stream("libx264", rate=FPS, options={"preset": "ultrafast", "tune": "zerolatency"})
            stream.height, stream.width, stream.pix_fmt = *pictures[0].shape[:2], "yuv420p"
            stream.codec_context.gop_size = self._gop
            for index in itertools.count():
                if self._stop.wait(1 / FPS):
                    break
                frame = av.VideoFrame.from_ndarray(pictures[index % len(pictures)], format="rgb24")
                frame.pts, frame.time_base = index, Fraction(1, FPS)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))


def free_udp_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def udp_sender(port: int) -> Sender:
    return Sender(f"udp://127.0.0.1:{port}?pkt_size=1316", "mpegts")


def hls_sender(folder: Path) -> Sender:
    """Writes `live.m3u8`, a window of the last segments of 0.2 s."""
    return Sender(str(folder / "live.m3u8"), "hls", hls_time="0.2", hls_list_size="5", hls_flags="delete_segments")


def ts_bytes(count: int, gop: int, fps: int = FPS, **options: str) -> bytes:
    """`count` pictures of a moving square as MPEG-TS, each in its own packets, a key frame every `gop`; `options` are
    the muxer's."""
    output = io.BytesIO()
    with av.open(output, "w", format="mpegts", options=options) as container:
        coder = {"x264-params": f"keyint={gop}:min-keyint={gop}:scenecut=0", "tune": "zerolatency"}
        stream = container.add_stream("libx264", rate=fps, options={"preset": "ultrafast", **coder})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index, picture in zip(range(count), itertools.cycle(moving_square(20)), strict=False):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return output.getvalue()


class TcpSender:
    """Sends one connection after the other its bytes over TCP, at once; it closes each but the last one at `go_on`."""

    def __init__(self, *connections: bytes) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"tcp://127.0.0.1:{self._listening.getsockname()[1]}"
        self.go_on = threading.Event()
        self._ended = threading.Event()
        self._connections = connections
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            for data in self._connections:
                client, _ = self._listening.accept()
                with client:
                    client.sendall(data)
                    self.go_on.wait(LIMIT_S)
                    if data is self._connections[-1]:
                        self._ended.wait(LIMIT_S)

    def __enter__(self) -> TcpSender:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(LIMIT_S)


EVERY_S = 0.003

Message = list[bytes]


def message(value: int = 90, width: int = 64, height: int = 48, **header: Any) -> Message:
    """A frame of one shade in rgb24; `header` adds fields or replaces them, None leaves one out."""
    fields = {"v": 1, "width": width, "height": height, "format": "rgb24", **header}
    fields = {name: field for name, field in fields.items() if field is not None}
    return [msgspec.msgpack.encode(fields), np.full((height, width, 3), value, np.uint8).tobytes()]


class FrameSender:
    """Sends `now`, again and again, from a thread that owns the socket; nothing while it is None."""

    def __init__(
        self,
        now: Message | None,
        kind: int = zmq.PUB,
        endpoint: str = "tcp://127.0.0.1:*",
        curve: tuple[bytes, bytes] | None = None,
    ) -> None:
        self.now = now
        self.sent_count = 0
        self._kind, self._address, self._curve = kind, endpoint, curve
        self._bound = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> FrameSender:
        self._thread.start()
        assert self._bound.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        context = zmq.Context()
        socket = context.socket(self._kind)
        socket.setsockopt(zmq.SNDHWM, 2)
        if self._curve is not None:
            socket.curve_secretkey, socket.curve_publickey, socket.curve_server = *self._curve, True
        socket.bind(self._address)
        self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._bound.set()
        while not self._ending.wait(EVERY_S):
            if self.now is not None and socket.poll(10, zmq.POLLOUT):
                # The only receiver of a PUSH socket may disconnect after the poll: a blocking send would never return.
                with contextlib.suppress(zmq.Again):
                    socket.send_multipart(self.now, zmq.NOBLOCK)
                    self.sent_count += 1
        socket.close(linger=0)
        context.term()


BOUNDARY = "frame"
TYPES = {
    ".m3u8": "application/vnd.apple.mpegurl",
    ".ts": "video/mp2t",
    ".mp4": "video/mp4",
    ".html": "text/html",
    ".js": "text/javascript",
}


class Server(ThreadingHTTPServer):
    """Serves the files of a folder, and the content of `live` under its name. Close it by `cut`."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path, live: dict[str, Callable[[Handler], None]] | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.folder = folder
        self.live = live or {}
        self.login: tuple[str, str] | None = None
        self.ranges = True
        """True if a client may ask for a part of a file."""
        self.requests: list[tuple[str, dict[str, str]]] = []
        """Path and headers of each request."""
        self.clients: set[socket.socket] = set()
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def requested(self, part: str) -> list[str]:
        """Paths with this in them that were asked for."""
        return [path for path, _ in self.requests if part in path]

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
        """Clients may leave at any time."""


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
        self.server.requests.append((self.path, dict(self.headers)))
        name = self.path.partition("?")[0].lstrip("/")
        path = self.server.folder / name
        if self.server.login is not None:
            credentials = "Basic " + base64.b64encode(":".join(self.server.login).encode()).decode()
            if self.headers.get("Authorization") != credentials:
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
        """Logs nothing."""


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


Item = SourceFrame | SourceOutage


def opened(address: str, segments: SegmentRecorder | None = None, **capture: object) -> Source:
    """Opens a source. Its time limits are those of a hang, unless the test names its own."""
    limits = {"open_timeout_s": LIMIT_S, "stall_s": LIMIT_S}
    config = CaptureConfig.model_validate({**limits, **capture})
    return open_source(address, config, MonotonicClock(), segments=segments)


class Reading:
    """One pass over a source's frames."""

    def __init__(self, source: Source) -> None:
        self.stop = False
        self._items: Iterator[Item] = source.frames(self._should_stop)
        self._limit_s = time.monotonic() + LIMIT_S

    def _should_stop(self) -> bool:
        assert time.monotonic() < self._limit_s, "nothing came in time"
        return self.stop

    def until(self, is_complete: Callable[[list[Item]], bool]) -> list[Item]:
        """Items as they come, until `is_complete` accepts them."""
        items: list[Item] = []
        while not is_complete(items):
            items.append(next(self._items))
        return items

    def frames(self, count: int) -> list[SourceFrame]:
        return frames_of(self.until(lambda items: len(frames_of(items)) == count))

    def frame(self, predicate: Callable[[SourceFrame], bool]) -> SourceFrame:
        """The next frame that is wanted."""
        return frames_of(self.until(lambda items: any(map(predicate, frames_of(items[-1:])))))[-1]

    def lost(self) -> SourceOutage:
        """The next outage that begins."""
        return self._outage(lambda outage: outage.lasted_s is None)

    def back(self) -> SourceOutage:
        """The next outage that ends."""
        return self._outage(lambda outage: outage.lasted_s is not None)

    def _outage(self, predicate: Callable[[SourceOutage], bool]) -> SourceOutage:
        return outages_of(self.until(lambda items: any(map(predicate, outages_of(items[-1:])))))[-1]


def frames_of(items: list[Item]) -> list[SourceFrame]:
    return [item for item in items if isinstance(item, SourceFrame)]


def outages_of(items: list[Item]) -> list[SourceOutage]:
    return [item for item in items if isinstance(item, SourceOutage)]
