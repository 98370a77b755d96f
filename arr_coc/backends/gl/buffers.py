"""OpenGL objects that are deleted with their owner, fences, and the mapped ring of uploads."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from arr_coc.backends.gl.device import GlDevice
from arr_coc.backends.gl.library import (
    SYNC_FLUSH_COMMANDS,
    SYNC_GPU_COMMANDS_COMPLETE,
    TIMEOUT_EXPIRED,
    TIMEOUT_IGNORED,
    WAIT_FAILED,
)

PATIENCE_MS = 5000
"""Time limit of the work for one frame, after which the device counts as lost."""


class GlResource:
    """GL objects that are deleted by `release`, or once this object is unreferenced."""

    def __init__(self, device: GlDevice, delete: str, names: tuple[int, ...]) -> None:
        """`delete` is the PyOpenGL function that takes a count and an array of names."""
        self._finalizer = weakref.finalize(self, device.defer_delete, partial(_delete, delete, names))
        self._finalizer.atexit = False

    def release(self) -> None:
        """Delete the objects. May be called twice."""
        self._finalizer()


class MappedBuffer(GlResource):
    """A buffer whose memory this process sees for as long as it lives: persistently mapped, coherent.

    `memory` is uint8 [nbytes]; a buffer to be read is also one to write.
    """

    def __init__(self, device: GlDevice, nbytes: int, access: Literal["write", "read"]) -> None:
        """Raise DeviceLost if the device lacks the memory."""
        gl = device.library.gl
        buffer = ctypes.c_uint()
        flags = gl.GL_MAP_PERSISTENT_BIT | gl.GL_MAP_COHERENT_BIT | gl.GL_MAP_WRITE_BIT
        hints = 0
        if access == "read":
            flags |= gl.GL_MAP_READ_BIT
            hints = gl.GL_CLIENT_STORAGE_BIT
        with device.creating(f"a buffer of {nbytes} bytes"):
            gl.glCreateBuffers(1, buffer)
            super().__init__(device, "glDeleteBuffers", (buffer.value,))
            gl.glNamedBufferStorage(buffer, nbytes, None, flags | hints)
            address = gl.glMapNamedBufferRange(buffer, 0, nbytes, flags)
        self.name = buffer.value
        self.memory: npt.NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(int(address)))


class StorageBuffer(GlResource):
    """A buffer in the device's own memory, for kernels; its host copies parts in and out, in the order of commands."""

    def __init__(self, device: GlDevice, nbytes: int) -> None:
        """Raise DeviceLost if the device lacks the memory."""
        gl = device.library.gl
        buffer = ctypes.c_uint()
        with device.creating(f"a buffer of {nbytes} bytes"):
            gl.glCreateBuffers(1, buffer)
            super().__init__(device, "glDeleteBuffers", (buffer.value,))
            gl.glNamedBufferStorage(buffer, nbytes, None, gl.GL_DYNAMIC_STORAGE_BIT)
        self._device = device
        self.name = buffer.value
        self.nbytes = nbytes

    def write(self, values: npt.NDArray[Any], offset: int = 0) -> None:
        """Copy a contiguous array to `offset` bytes from the start. Some context must be current."""
        self._device.library.calls.glNamedBufferSubData(self.name, offset, values.nbytes, values.ctypes.data)

    def read(self, values: npt.NDArray[Any], offset: int, activity: str) -> None:
        """Fill a contiguous array from `offset` bytes on, once kernels have run. Raises DeviceLost after a time
        limit."""
        Fence(self._device).wait(activity)
        self._device.library.calls.glGetNamedBufferSubData(self.name, offset, values.nbytes, values.ctypes.data)
        self._device.check(activity)


class Fence:
    """A mark in one thread's commands that other threads and contexts can wait for."""

    def __init__(self, device: GlDevice) -> None:
        """In the current context, after the commands issued before, which start running now."""
        calls = device.library.calls
        self._device = device
        self._calls = calls
        self._sync: int | None = calls.glFenceSync(SYNC_GPU_COMMANDS_COMPLETE, 0)
        calls.glFlush()

    def order(self) -> None:
        """Order this thread's later commands after the mark on the device; does not block the thread."""
        self._calls.glWaitSync(self._sync, 0, TIMEOUT_IGNORED)

    def has_passed(self) -> bool:
        return self._calls.glClientWaitSync(self._sync, 0, 0) not in (TIMEOUT_EXPIRED, WAIT_FAILED)

    def wait(self, activity: str) -> None:
        """Return once everything before the mark is done. Raises DeviceLost after a time limit."""
        state = self._calls.glClientWaitSync(self._sync, SYNC_FLUSH_COMMANDS, PATIENCE_MS * 1_000_000)
        if state in (TIMEOUT_EXPIRED, WAIT_FAILED):
            self._device.check(activity)
            raise self._device.mark_lost(f"{self._device.renderer} did not finish {activity} within {PATIENCE_MS} ms")

    def __del__(self) -> None:
        self._device.defer_delete(partial(_delete_sync, self._sync))


def _delete(function: str, names: tuple[int, ...], device: GlDevice) -> None:
    getattr(device.library.gl, function)(len(names), (ctypes.c_uint * len(names))(*names))


def _delete_sync(sync: int | None, device: GlDevice) -> None:
    device.library.calls.glDeleteSync(sync)


ALIGNMENT = 256
"""Alignment of offsets of storage buffers and texels that every OpenGL 4.5 device accepts."""

MOST_IN_FLIGHT = 64
"""Parts that may be in use at a time: more frames than any device is behind."""


def align(nbytes: int) -> int:
    """Return the next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class RingSlice:
    """A part of the ring to fill: `memory` uint8 [nbytes] at `offset` bytes."""

    offset: int
    memory: npt.NDArray[np.uint8]


class UploadRing:
    """Hands out parts that the device has done with. `stalls` counts how often it had to wait for the device."""

    def __init__(self, device: GlDevice, nbytes: int) -> None:
        """Raise DeviceLost if the device lacks the memory."""
        self._buffer = MappedBuffer(device, align(nbytes), "write")
        self._in_flight: deque[tuple[int, int, Fence]] = deque()
        self._last_slice: tuple[int, int] | None = None
        self._end = 0
        self.name = self._buffer.name
        self.capacity = align(nbytes)
        self.stalls = 0

    def take(self, nbytes: int) -> RingSlice:
        """Return the next `nbytes` bytes, in use until the fence of `seal`. Waits only if they are still in use.

        Raises DeviceLost if the device takes too long.
        """
        assert 0 < nbytes <= self.capacity, f"{nbytes} bytes do not fit into a ring of {self.capacity}"
        if self._end + nbytes <= self.capacity:
            start = self._end
        else:
            start = 0
        end = start + nbytes
        while len(self._in_flight) >= MOST_IN_FLIGHT or self._in_use(start, end):
            fence = self._in_flight[0][2]
            if not fence.has_passed():
                self.stalls += 1
                fence.wait("reading a frame's tiles")
            self._in_flight.popleft()
        self._last_slice = (start, align(end))
        self._end = align(end)
        return RingSlice(start, self._buffer.memory[start:end])

    def seal(self, fence: Fence) -> None:
        """Keep the slice that was taken last in use until `fence`."""
        assert self._last_slice is not None, "nothing was taken"
        self._in_flight.append((*self._last_slice, fence))
        self._last_slice = None

    def _in_use(self, start: int, end: int) -> bool:
        return any(first < end and start < last for first, last, _ in self._in_flight)

    def release(self) -> None:
        """Free the memory; it may not be written any more. May be called twice."""
        self._in_flight.clear()
        self._buffer.release()
