"""OpenGL devices for tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from arr_coc.ops.gl.device import Device, find_device, open_device
from arr_coc.ops.gl.owned import MappedBuffer
from tests.backends import require


def shared_device() -> Device:
    """The device that stores use. Skips the test where there is none."""
    require("gl")
    return open_device()


def seen_by(device: Device, buffer: MappedBuffer) -> npt.NDArray[np.uint8]:
    """A buffer as the device sees it. Its context must be current."""
    seen = np.empty_like(buffer.memory)
    device.library.gl.glGetNamedBufferSubData(buffer.name, 0, seen.nbytes, seen)
    return seen


def own_device() -> Device:
    """One that a test may lose."""
    require("gl")
    return find_device()
