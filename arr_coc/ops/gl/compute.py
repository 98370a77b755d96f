"""Runs a kernel whose results the thread waits for; each thread has memory of its own for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.ops.gl.device import Context, Device
from arr_coc.ops.gl.names import CLIENT_MAPPED_BUFFER_BARRIER, R32UI, READ_ONLY, SHADER_STORAGE_BUFFER
from arr_coc.ops.gl.owned import Fence, MappedBuffer
from arr_coc.ops.gl.programs import program
from arr_coc.ops.gl.ring import ALIGNMENT, aligned
from arr_coc.ops.gl.texture import TileTexture
from arr_coc.ops.planes import Plane

PLACE_BYTES = 16
PLACES_ALIGNED = ALIGNMENT // PLACE_BYTES

SMALLEST_SCRATCH = 1 << 20

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """`groups` workgroups, which see the first input from byte `start` on. `level`: of the texture, as an image."""

    groups: int
    start: int = 0
    level: int | None = None


def scratch(device: Device, context: Context, nbytes: int) -> MappedBuffer:
    """This thread's memory for results, of `nbytes` or more."""
    buffer: MappedBuffer | None = context.scratch.get("results")
    if buffer is None or len(buffer.memory) < nbytes:
        if buffer is not None:
            buffer.release()
        size = max(SMALLEST_SCRATCH, 1 << (nbytes - 1).bit_length())
        buffer = context.scratch["results"] = MappedBuffer(device, size, "read")
    return buffer


def compute(
    device: Device,
    kernel: str,
    inputs: Sequence[Array],
    out: Array,
    dispatches: Sequence[Dispatch],
    texture: TileTexture | None = None,
    defines: Sequence[str] = (),
) -> None:
    """Fills `out` by a kernel compiled with `defines`.

    The first input is the storage buffer 0, results are 1, further inputs 2 and on. Raises DeviceLost where the device
    gave up.
    """
    with device.current() as context:
        starts = np.cumsum([0, aligned(out.nbytes), *(aligned(array.nbytes) for array in inputs)]).tolist()
        buffer, calls = scratch(device, context, starts[-1]), device.library.calls
        for array, start in zip(inputs, starts[1:], strict=False):
            buffer.memory[start : start + array.nbytes] = _bytes(array)
        calls.glUseProgram(program(device, kernel, *defines))
        calls.glBindBufferRange(SHADER_STORAGE_BUFFER, 1, buffer.name, 0, out.nbytes)
        for index, array in enumerate(inputs[1:], 2):
            calls.glBindBufferRange(SHADER_STORAGE_BUFFER, index, buffer.name, starts[index], array.nbytes)
        if texture is not None:
            texture.order()
            calls.glBindTextureUnit(0, texture.name)
        for dispatch in dispatches:
            if texture is not None and dispatch.level is not None:
                calls.glBindImageTexture(0, texture.words, dispatch.level, False, 0, READ_ONLY, R32UI)
            size = inputs[0].nbytes - dispatch.start
            calls.glBindBufferRange(SHADER_STORAGE_BUFFER, 0, buffer.name, starts[1] + dispatch.start, size)
            calls.glDispatchCompute(dispatch.groups, 1, 1)
        calls.glMemoryBarrier(CLIENT_MAPPED_BUFFER_BARRIER)
        Fence(device).wait(f"running {kernel}")
        device.check(f"running {kernel}")
        _bytes(out)[:] = buffer.memory[: out.nbytes]


def _bytes(array: Array) -> Plane:
    return array.reshape(-1).view(np.uint8)
