"""Threads that send live video on loopback: MPEG-TS over UDP, and HLS into a folder."""

from __future__ import annotations

import itertools
import socket
import threading
from fractions import Fraction
from pathlib import Path

import av

from tests.video_maker import moving_square

FPS = 50


class Sender:
    """Encodes a moving square at its pace into whatever FFmpeg can write to, until it is closed."""

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
