"""What threads read from a texture: rectangles of its levels, and the pixels of regions.

Results come through memory that the device writes and the thread sees; each thread has its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.gl.device import Context, Device
from arr_coc.ops.gl.layout import TEXEL_BYTES
from arr_coc.ops.gl.names import (
    CLIENT_MAPPED_BUFFER_BARRIER,
    PIXEL_PACK_BUFFER,
    RGBA,
    SHADER_STORAGE_BUFFER,
    UNSIGNED_BYTE,
)
from arr_coc.ops.gl.owned import Fence, MappedBuffer
from arr_coc.ops.gl.programs import program
from arr_coc.ops.gl.ring import aligned
from arr_coc.ops.gl.texture import TileTexture
from arr_coc.ops.planes import Plane, Rectangle
from arr_coc.types import TILE_PX

REGION_BYTES = 3 * TILE_PX * TILE_PX
REGIONS_AT_ONCE = 8192
"""24 MB of pixels; and fewer workgroups than every device takes."""

SMALLEST_SCRATCH = 1 << 20


def scratch(device: Device, context: Context, nbytes: int) -> MappedBuffer:
    """This thread's memory for results, of `nbytes` or more."""
    buffer: MappedBuffer | None = context.scratch.get("results")
    if buffer is None or len(buffer.memory) < nbytes:
        if buffer is not None:
            buffer.release()
        size = max(SMALLEST_SCRATCH, 1 << (nbytes - 1).bit_length())
        buffer = context.scratch["results"] = MappedBuffer(device, size, "read")
    return buffer


def read_back(texture: TileTexture, layer: int, rectangles: Sequence[Rectangle], levels: dict[int, Plane]) -> None:
    """Writes rectangles of tiles into host copies of levels, uint8 [rows * 32 >> level, cols * 32 >> level, 3] each.

    Raises DeviceLost where the device gave up.
    """
    device = texture.device
    with device.current() as context:
        parts = [(level, *_texel_box(rectangle, level)) for level in levels for rectangle in rectangles]
        sizes = [aligned((bottom - top) * (right - left) * TEXEL_BYTES) for _, top, left, bottom, right in parts]
        buffer, calls = scratch(device, context, sum(sizes)), device.library.calls
        texture.order()
        calls.glBindBuffer(PIXEL_PACK_BUFFER, buffer.name)
        offsets = np.cumsum([0, *sizes]).tolist()
        for (level, top, left, bottom, right), offset, size in zip(parts, offsets, sizes, strict=False):
            box = (left, top, layer, right - left, bottom - top, 1)
            calls.glGetTextureSubImage(texture.name, level, *box, RGBA, UNSIGNED_BYTE, size, offset)
        calls.glBindBuffer(PIXEL_PACK_BUFFER, 0)
        Fence(device).wait("reading the texture")
        device.check("reading the texture")
        for (level, top, left, bottom, right), offset in zip(parts, offsets, strict=False):
            shape = (bottom - top, right - left, TEXEL_BYTES)
            texels = buffer.memory[offset : offset + shape[0] * shape[1] * TEXEL_BYTES].reshape(shape)
            cv2.cvtColor(texels, cv2.COLOR_RGBA2RGB, dst=levels[level][top:bottom, left:right])


def _texel_box(rectangle: Rectangle, level: int) -> Rectangle:
    row0, col0, row1, col1 = (edge * (TILE_PX >> level) for edge in rectangle)
    return row0, col0, row1, col1


def gather(texture: TileTexture, regions: npt.NDArray[np.integer]) -> Plane:
    """The pixels of regions [K, 4] (level, row, col, layer) that exist: uint8 [K, 3, 32, 32], edge-clamped.

    Raises DeviceLost where the device gave up.
    """
    out = np.empty((len(regions), 3, TILE_PX, TILE_PX), np.uint8)
    for start in range(0, len(regions), REGIONS_AT_ONCE):
        part = slice(start, start + REGIONS_AT_ONCE)
        inputs = np.ascontiguousarray(regions[part], np.uint32)
        run(texture, "gather_regions", inputs, out[part])
    return out


def run(texture: TileTexture, kernel: str, inputs: npt.NDArray[np.generic], out: npt.NDArray[np.generic]) -> None:
    """One workgroup of `kernel` for each of the inputs [K, …], reading the texture's words; fills `out` [K, …].

    Inputs are the storage buffer 0, results 1. Raises DeviceLost where the device gave up.
    """
    device = texture.device
    with device.current() as context:
        begin = aligned(inputs.nbytes)
        buffer, calls = scratch(device, context, begin + out.nbytes), device.library.calls
        buffer.memory[: inputs.nbytes] = inputs.view(np.uint8).ravel()
        texture.order()
        calls.glUseProgram(program(device, kernel))
        calls.glBindTextureUnit(0, texture.words)
        calls.glBindBufferRange(SHADER_STORAGE_BUFFER, 0, buffer.name, 0, inputs.nbytes)
        calls.glBindBufferRange(SHADER_STORAGE_BUFFER, 1, buffer.name, begin, out.nbytes)
        calls.glDispatchCompute(len(inputs), 1, 1)
        calls.glMemoryBarrier(CLIENT_MAPPED_BUFFER_BARRIER)
        Fence(device).wait(f"running {kernel}")
        device.check(f"running {kernel}")
        out.view(np.uint8).reshape(-1)[:] = buffer.memory[begin : begin + out.nbytes]
