"""Reader of a run's shared texture, for another program: `SharedTexture`. It needs NumPy alone.

from stream.extensions.shared_texture.reader import SharedTexture

with SharedTexture.connect("ar.sock") as texture:
    while not texture.ended:
        frame = texture.update(timeout_s=1.0)
        if frame is not None:
            draw(frame.pixels, frame.regions, texture.answer)
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.texture.packing import cover
from arr_coc.types import NS_PER_S, TILE_PX, TileGrid, TileVersions
from stream.errors import TransportError
from stream.extensions.shared_texture.layout import TextureMemory, fence

LONGEST_LINE = 1 << 20
ATTEMPTS = 8
"""Times that a picture is read again, because a newer one was written into its place meanwhile."""


@dataclass(frozen=True, slots=True)
class SharedFrame:
    """One whole frame of a run. Its arrays are the reader's own; `pixels` changes with the next update."""

    frame_index: int
    media_s: float
    capture_ns: int
    """Monotonic clock of the run's machine."""
    grid: TileGrid
    versions: TileVersions
    """Epoch, and frame in which each tile last changed, int64 [rows, cols]."""
    changed: npt.NDArray[np.bool_]
    """Tiles that differ from the frame of the update before, [rows, cols]."""
    pixels: npt.NDArray[np.uint8]
    """RGB [rows * 32, cols * 32, 3]; the picture's own size is that of `grid`, its edge is repeated beyond."""
    relevance: npt.NDArray[np.uint8]
    """[rows, cols], 255 is 1."""
    regions: npt.NDArray[np.int16]
    """[K, 3] (shape, row, col) of the tokens that the model is shown (docs/robots.md#regions)."""
    overview: int
    """How many of them, from the first, are an overview."""


@dataclass(frozen=True, slots=True)
class SharedAnswer:
    """Answer of a run."""

    frame_index: int
    pts_s: float
    query: str
    text: str


class SharedTexture:
    """Connection to a run with `--share-texture`. For one thread. A slow reader skips frames, and delays no run."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""
        self._descriptors: deque[int] = deque()
        self._memory: TextureMemory | None = None
        self._pixels = np.zeros((0, 0, 3), np.uint8)
        self._versions: TileVersions | None = None
        self._number = 0
        self.source = ""
        """Name of the run's source."""
        self.answer: SharedAnswer | None = None
        """The newest answer; None before the first."""
        self.ended = False
        """True once the run has ended, or its process was restarted: connect again."""
        self.torn = 0
        """Pictures that were overwritten while they were read, and so were read again."""

    @classmethod
    def connect(cls, path: str | os.PathLike[str]) -> SharedTexture:
        """Connect to the socket of a run. Raises TransportError if none listens there."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(os.fspath(path))
        except OSError as error:
            connection.close()
            reason = error.strerror or str(error)
            raise TransportError(
                f"no texture at {os.fspath(path)} ({reason})", f"start a run: watch … --share-texture {os.fspath(path)}"
            ) from error
        return cls(connection)

    def update(self, timeout_s: float = 0.0) -> SharedFrame | None:
        """Return the newest frame, once there is a newer one than before; None if none came within the time limit, or
        the run has ended. Raises TransportError if the other end is no run of this version."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._receive(max(0.0, deadline_s - time.monotonic()))
            frame = self._read()
            if frame is not None or self.ended or time.monotonic() >= deadline_s:
                return frame

    def close(self) -> None:
        """Disconnect. Idempotent."""
        self.ended = True
        self._connection.close()
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def __enter__(self) -> SharedTexture:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _receive(self, timeout_s: float) -> None:
        """Read the lines that came, and wait for the first of them."""
        while not self.ended:
            self._connection.settimeout(timeout_s)
            try:
                data, descriptors, _, _ = socket.recv_fds(self._connection, 1 << 16, 4)
            except (BlockingIOError, TimeoutError):
                return
            except ConnectionError:
                data = b""
                descriptors = []
            self._descriptors.extend(descriptors)
            self.ended = not data
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            if len(self._buffer) > LONGEST_LINE:
                raise TransportError("the other end sends lines without end; it is no run that shares its texture")
            for line in lines:
                self._take(line)
            timeout_s = 0.0

    def _take(self, line: bytes) -> None:
        try:
            message: dict[str, Any] = json.loads(line)
            if "memory" in message:
                self._map(message["memory"])
            if "answer" in message:
                self.answer = SharedAnswer(**message["answer"])
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise TransportError(f"the other end is no run that shares its texture: {line[:80]!r}") from error

    def _map(self, facts: dict[str, Any]) -> None:
        """Map the memory that came with a line."""
        self.source = str(facts["source"])
        descriptor = self._descriptors.popleft()
        try:
            memory = TextureMemory.of(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
        self._memory = memory
        self._pixels = np.zeros((memory.grid.padded_height_px, memory.grid.padded_width_px, 3), np.uint8)
        self._versions = None
        self._number = 0

    def _read(self) -> SharedFrame | None:
        """Return the newest picture if it is another one than before, and whole."""
        memory = self._memory
        if memory is None:
            return None
        for _ in range(ATTEMPTS):
            number = memory.newest
            if number == self._number:
                return None
            frame = self._copy(memory, number)
            if frame is not None:
                self._number = number
                return frame
            self.torn += 1
        return None

    def _copy(self, memory: TextureMemory, number: int) -> SharedFrame | None:
        """Return a copy of a picture; None if its slot was written meanwhile."""
        slot = memory.slot(number)
        fence()
        if slot.head["number"] != number:
            return None
        head = slot.head.copy()
        versions = TileVersions(int(head["epoch"]), slot.versions.astype(np.int64))
        if self._versions is None:
            changed = np.ones(memory.grid.shape, bool)
        else:
            changed = self._versions.stale(versions)
        self._versions = None  # all tiles are copied again if this picture is not whole
        for top, left, bottom, right in cover(changed):
            place = slice(top * TILE_PX, bottom * TILE_PX), slice(left * TILE_PX, right * TILE_PX)
            self._pixels[place] = slot.pixels[place]
        relevance = slot.relevance.copy()
        regions = slot.regions[: int(head["regions"])].copy()
        fence()
        if slot.head["number"] != number:
            return None
        self._versions = versions
        return SharedFrame(
            frame_index=int(head["frame_index"]),
            media_s=int(head["media_ns"]) / NS_PER_S,
            capture_ns=int(head["capture_ns"]),
            grid=memory.grid,
            versions=versions,
            changed=changed,
            pixels=self._pixels,
            relevance=relevance,
            regions=regions,
            overview=int(head["overview"]),
        )
