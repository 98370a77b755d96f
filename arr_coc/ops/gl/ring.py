"""Mapped memory that one thread fills and the device empties, used round and round."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.ops.gl.device import Device
from arr_coc.ops.gl.owned import Fence, MappedBuffer

ALIGNMENT = 256
"""What every OpenGL 4.5 device takes as the offset of a storage buffer and of a texture's texels."""

MOST_IN_FLIGHT = 64
"""Parts that may be in use at a time: more frames than any device is behind."""


def aligned(nbytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of the ring to fill: `memory` uint8 [nbytes] at `offset` bytes."""

    offset: int
    memory: npt.NDArray[np.uint8]


class Ring:
    """Hands out parts that the device has done with. `stalls` counts how often it had to wait for the device."""

    def __init__(self, device: Device, nbytes: int) -> None:
        """Raises DeviceLost where the device has not so much memory."""
        self._buffer = MappedBuffer(device, aligned(nbytes), "write")
        self._in_flight: deque[tuple[int, int, Fence]] = deque()
        self._taken: tuple[int, int] | None = None
        self._end = 0
        self.name = self._buffer.name
        self.capacity = aligned(nbytes)
        self.stalls = 0

    def take(self, nbytes: int) -> Slot:
        """The next `nbytes` bytes; `seal` says until when they are in use. Waits only where they still are.

        Raises DeviceLost where the device takes too long.
        """
        assert 0 < nbytes <= self.capacity, f"{nbytes} bytes do not fit into a ring of {self.capacity}"
        start = self._end if self._end + nbytes <= self.capacity else 0
        end = start + nbytes
        while len(self._in_flight) >= MOST_IN_FLIGHT or self._in_use(start, end):
            fence = self._in_flight[0][2]
            if not fence.passed():
                self.stalls += 1
                fence.wait("reading a frame's tiles")
            self._in_flight.popleft()
        self._taken = (start, aligned(end))
        self._end = aligned(end)
        return Slot(start, self._buffer.memory[start:end])

    def seal(self, fence: Fence) -> None:
        """What was taken last is in use until `fence`."""
        assert self._taken is not None, "nothing was taken"
        self._in_flight.append((*self._taken, fence))
        self._taken = None

    def _in_use(self, start: int, end: int) -> bool:
        return any(first < end and start < last for first, last, _ in self._in_flight)

    def release(self) -> None:
        """Gives the memory up; it may not be written any more. May be called twice."""
        self._in_flight.clear()
        self._buffer.release()
