"""Pinned memory beside device memory, through which tiles travel."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack

import numpy as np
import torch

from arr_coc.ops.cuda.device import Device
from arr_coc.ops.cuda.driver import call
from arr_coc.ops.planes import Plane

PORTABLE = 1
"""CU_MEMHOSTALLOC_PORTABLE of cuda.h: pinned for every context."""

NO_TIMING = 2
"""CU_EVENT_DISABLE_TIMING of cuda.h: an event that takes no time stamp costs less."""


class Slot:
    """As much memory on both sides: `host` uint8 [nbytes] is pinned, `device` is the other's address.

    `wait` returns once what used the memory before is done with it.
    """

    def __init__(self, device: Device, nbytes: int, owned: ExitStack) -> None:
        """In the current context. Raises DeviceLost where there is no memory for it."""
        self._address = int(call("cuMemHostAlloc", nbytes, PORTABLE))
        owned.callback(call, "cuMemFreeHost", self._address)
        self._done = call("cuEventCreate", NO_TIMING)
        owned.callback(call, "cuEventDestroy", self._done)
        self._used = False
        self._memory = device.empty((nbytes,), torch.uint8)
        self.host: Plane = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self._address))
        self.device = self._memory.data_ptr()

    def upload(self, nbytes: int, stream: int) -> None:
        """Copies the first bytes to the device, asynchronously."""
        call("cuMemcpyHtoDAsync", self.device, self._address, nbytes, stream)

    def download(self, start: int, nbytes: int, stream: int) -> None:
        """Copies bytes from `start` on to the host, asynchronously."""
        call("cuMemcpyDtoHAsync", self._address + start, self.device + start, nbytes, stream)

    def mark(self, stream: int) -> None:
        """The memory is in use until the stream has done what it has been given so far."""
        call("cuEventRecord", self._done, stream)
        self._used = True

    def wait(self) -> None:
        if self._used:
            call("cuEventSynchronize", self._done)
            self._used = False


class Ring:
    """Slots that take turns, so that one is filled while the device works on the others."""

    def __init__(self, device: Device, slots: int, nbytes: int, owned: ExitStack) -> None:
        self._slots = [Slot(device, nbytes, owned) for _ in range(slots)]
        self._next = 0

    def take(self) -> Slot:
        """The slot that has rested longest; waits where the device still reads it."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % len(self._slots)
        slot.wait()
        return slot
