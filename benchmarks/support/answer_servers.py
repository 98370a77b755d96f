"""Answer servers in processes of their own, which a benchmark kills and starts again, and a clip for their cameras."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import av
import cv2

from stream.scenes import load_scene

COMMAND = Path(__file__).parents[2] / "run_stream.py"
FPS, WIDTH_PX, HEIGHT_PX, LOOP_S = 6, 320, 192, 12
READY = " answers at "
"""Line that a server prints once it has its model."""


def make_clip(path: Path, seconds: float) -> None:
    """Write the scene again and again: it is encoded once, and its packets are repeated."""
    scene = load_scene("demo")
    step = round(scene.fps / FPS)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"preset": "veryfast", "g": str(FPS), "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = WIDTH_PX, HEIGHT_PX, "yuv420p"
        packets: list[bytes] = []
        for index in range(0, LOOP_S * FPS * step, step):
            image = cv2.resize(scene.render(index), (WIDTH_PX, HEIGHT_PX), interpolation=cv2.INTER_AREA)
            packets += map(bytes, stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        packets += map(bytes, stream.encode())
        for number, data in enumerate(itertools.islice(itertools.cycle(packets), round(seconds * FPS))):
            packet = av.Packet(data)
            packet.stream, packet.time_base = stream, Fraction(1, FPS)
            packet.pts = packet.dts = number
            packet.duration, packet.is_keyframe = 1, number % FPS == 0
            container.mux(packet)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


class AnswerServerProcess:
    """`serve-answers` at a fixed port, which is started again after it has died."""

    def __init__(self, port: int, environment: Mapping[str, str], log: Path) -> None:
        self.address = f"tcp://127.0.0.1:{port}"
        self._environment = environment
        self._log = log
        self.starts = 0
        self.stopped = False
        self.start()

    def start(self) -> None:
        self.starts += 1
        self.stopped = False
        with self._log.open("wb") as log:
            command = [sys.executable, str(COMMAND), "serve-answers", self.address]
            self.process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    def output(self) -> str:
        """Return what it has printed since its last start."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    @property
    def serves(self) -> bool:
        """True if it has its model, and is not stopped."""
        return self.lives and not self.stopped and READY in self.output()
