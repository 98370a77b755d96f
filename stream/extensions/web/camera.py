"""A viewer's camera as the run's source: checks and publishes its frames, for one camera at a time."""

from __future__ import annotations

import struct
import time

from stream.clock import RateLimit
from stream.config import Config
from stream.extensions.web.viewer import MessageRefused
from stream.sources.address import ZMQ_PREFIX
from stream.transport.camera import CameraSender
from stream.untrusted import MIB

FRAME_BYTES_MAX = 4 * MIB
"""Largest frame; one of 1080p has some 300 kB."""

FRAMES_A_SECOND = 60

SIDE_PX_MAX = 4096

HEADER = struct.Struct("<HH")
"""Before the JPEG of a frame: width and height, little-endian."""

JPEG_BEGIN = b"\xff\xd8\xff"


CAMERA = "camera"
"""Name of the camera's socket in a private directory."""

WAIT_S = 86_400.0
"""Time within which a viewer is to allow their camera."""


def of_camera(config: Config, endpoint: str) -> Config:
    """Return the configuration of a run whose source is the camera published at `endpoint`."""
    config = config.with_values({"capture.open_timeout_s": WAIT_S, "web.camera": endpoint})
    return config.model_copy(update={"source": f"{ZMQ_PREFIX}{endpoint}"})


class BrowserCamera:
    """Frames of a viewer's camera, published at a ZeroMQ endpoint. All belongs to the event loop.

    The socket exists while a camera is connected: a source that reads it detects by the silence that a camera has gone.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._sender: CameraSender | None = None
        self._frames = 0
        self._limit = RateLimit(FRAMES_A_SECOND, FRAMES_A_SECOND)
        self.in_use = False

    def publish(self, message: bytes) -> None:
        """Publish a frame: width and height as u16, then JPEG. Raises MessageRefused for anything else."""
        if len(message) <= HEADER.size or len(message) > FRAME_BYTES_MAX:
            raise MessageRefused(f"a frame has at most {FRAME_BYTES_MAX} bytes")
        width, height = HEADER.unpack_from(message)
        jpeg = message[HEADER.size :]
        if not (1 <= width <= SIDE_PX_MAX and 1 <= height <= SIDE_PX_MAX) or not jpeg.startswith(JPEG_BEGIN):
            raise MessageRefused(f"a frame is a JPEG of at most {SIDE_PX_MAX}x{SIDE_PX_MAX} pixels")
        if not self._limit.take(time.monotonic()):
            return
        if self._sender is None:
            self._sender = CameraSender(self._endpoint)
        self._sender.send(jpeg, width, height, time.monotonic_ns(), self._frames)
        self._frames += 1

    def close(self) -> None:
        """Close the socket."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None
