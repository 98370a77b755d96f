"""Dispatch of compute kernels whose results a thread waits for: read-back, gathering, sampling.

An isotropic sample blends the eight texels around a point and its level (`textureLod`). An anisotropic one averages
along a line, such as a line of text, and leaves out what lies above and below. A GPU has a filter for it
(`textureGrad`, EXT_texture_filter_anisotropic); in software the kernel averages isotropic samples along the line, as in
McCormack et al., "Feline: fast elliptical lines for anisotropic texture mapping", SIGGRAPH 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.backends.gl.buffers import ALIGNMENT, Fence, MappedBuffer, align
from arr_coc.backends.gl.device import GlContext, GlDevice
from arr_coc.backends.gl.library import (
    CLIENT_MAPPED_BUFFER_BARRIER,
    PIXEL_PACK_BUFFER,
    R32UI,
    READ_ONLY,
    RGBA,
    SHADER_STORAGE_BUFFER,
    UNSIGNED_BYTE,
)
from arr_coc.backends.gl.texture import TileTexture, program
from arr_coc.backends.gl.upload import TEXEL_BYTES
from arr_coc.errors import BackendMissing, NonFiniteError, OptionError, ShapeError
from arr_coc.texture.packing import Rectangle
from arr_coc.texture.regions import FOOTPRINTS
from arr_coc.texture.store.planes import Plane
from arr_coc.types import TILE_PX

PLACE_BYTES = 16
PLACES_ALIGNED = ALIGNMENT // PLACE_BYTES

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """`groups` workgroups of a kernel compiled with `defines`, which see the first input from byte `start` on.

    `level`: of the texture, as an image.
    """

    groups: int
    start: int = 0
    level: int | None = None
    defines: tuple[str, ...] = ()


def scratch(device: GlDevice, context: GlContext, nbytes: int) -> MappedBuffer:
    """This thread's memory for results, of `nbytes` or more."""
    buffer: MappedBuffer | None = context.scratch.get("results")
    if buffer is None or len(buffer.memory) < nbytes:
        if buffer is not None:
            buffer.release()
        size = max(1 << 20, 1 << (nbytes - 1).bit_length())
        buffer = context.scratch["results"] = MappedBuffer(device, size, "read")
    return buffer


def compute(
    device: GlDevice,
    kernel: str,
    inputs: Sequence[Array],
    out: Array,
    dispatches: Sequence[Dispatch],
    texture: TileTexture | None = None,
) -> None:
    """Fill an array by a kernel.

    Args:
        device: The device.
        kernel: Name of the kernel's source.
        inputs: The first one is storage buffer 0, further ones 2 and on.
        out: The array for the results, which are storage buffer 1.
        dispatches: Work groups, one dispatch after the other.
        texture: A texture that the kernel reads, if any.

    Raises:
        DeviceLost: The device failed.
    """
    with device.current() as context:
        starts = np.cumsum([0, align(out.nbytes), *(align(array.nbytes) for array in inputs)]).tolist()
        buffer = scratch(device, context, starts[-1])
        calls = device.library.calls
        for array, start in zip(inputs, starts[1:], strict=False):
            buffer.memory[start : start + array.nbytes] = _bytes(array)
        calls.glBindBufferRange(SHADER_STORAGE_BUFFER, 1, buffer.name, 0, out.nbytes)
        for index, array in enumerate(inputs[1:], 2):
            calls.glBindBufferRange(SHADER_STORAGE_BUFFER, index, buffer.name, starts[index], array.nbytes)
        if texture is not None:
            texture.order()
            calls.glBindTextureUnit(0, texture.name)
        for dispatch in dispatches:
            calls.glUseProgram(program(device, kernel, *dispatch.defines))
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


REGIONS_AT_ONCE = 8192
"""24 MB of pixels; and fewer workgroups than every device takes."""


def read_back(texture: TileTexture, rectangles: Sequence[Rectangle], levels: dict[int, Plane]) -> None:
    """Write rectangles of tiles into host copies of levels.

    Args:
        texture: The texture to read.
        rectangles: Rectangles of tiles.
        levels: Copies by level, uint8 [rows * 32 >> level, cols * 32 >> level, 3] each.

    Raises:
        DeviceLost: The device failed.
    """
    device = texture.device
    with device.current() as context:
        parts = [(level, *_texel_box(rectangle, level)) for level in levels for rectangle in rectangles]
        sizes = [(bottom - top) * (right - left) * TEXEL_BYTES for _, top, left, bottom, right in parts]
        starts = np.cumsum([0, *map(align, sizes)]).tolist()
        buffer = scratch(device, context, starts[-1])
        calls = device.library.calls
        texture.order()
        calls.glBindBuffer(PIXEL_PACK_BUFFER, buffer.name)
        for (level, top, left, bottom, right), start, size in zip(parts, starts, sizes, strict=False):
            box = (left, top, 0, right - left, bottom - top, 1)
            calls.glGetTextureSubImage(texture.name, level, *box, RGBA, UNSIGNED_BYTE, size, start)
        calls.glBindBuffer(PIXEL_PACK_BUFFER, 0)
        Fence(device).wait("reading the texture")
        device.check("reading the texture")
        for (level, top, left, bottom, right), start, size in zip(parts, starts, sizes, strict=False):
            texels = buffer.memory[start : start + size].reshape(bottom - top, right - left, TEXEL_BYTES)
            cv2.cvtColor(texels, cv2.COLOR_RGBA2RGB, dst=levels[level][top:bottom, left:right])


def gather(texture: TileTexture, regions: npt.NDArray[np.integer]) -> Plane:
    """Return the pixels of regions [K, 3] (shape, row, col) that exist: uint8 [K, 3, 32, 32], edge-clamped.

    A kernel run for each shape, whose level it reads as an image: llvmpipe takes twice as long to fetch texels of a
    level that it learns from the region. Raises DeviceLost if the device failed.
    """
    out = np.empty((len(regions), 3, TILE_PX, TILE_PX), np.uint8)
    for start in range(0, len(regions), REGIONS_AT_ONCE):
        part = slice(start, start + REGIONS_AT_ONCE)
        places, dispatches = by_shape(regions[part])
        compute(texture.device, "gather_regions", [places], out[part], dispatches, texture)
    return out


def by_shape(regions: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.uint32], list[Dispatch]]:
    """Return the places uint32 [n, 4] (row, col, slot, 0) of each shape at an aligned start, and a workgroup for
    each."""
    groups = []
    dispatches = []
    start = 0
    for code in np.unique(regions[:, 0]).tolist():
        footprint = FOOTPRINTS[code]
        slots = np.flatnonzero(regions[:, 0] == code)
        defines = (f"DOWN {footprint.down}", f"ACROSS {footprint.across}") if footprint.texels > 1 else ()
        places = np.zeros((-(-len(slots) // PLACES_ALIGNED) * PLACES_ALIGNED, 4), np.uint32)
        places[: len(slots), :2], places[: len(slots), 2] = regions[slots, 1:], slots
        dispatches.append(Dispatch(len(slots), start, footprint.level, defines))
        groups.append(places)
        start += places.nbytes
    return np.concatenate(groups), dispatches


def _texel_box(rectangle: Rectangle, level: int) -> Rectangle:
    row0, col0, row1, col1 = (edge * (TILE_PX >> level) for edge in rectangle)
    return row0, col0, row1, col1


Floats = npt.NDArray[np.floating]


def sample(texture: TileTexture, points: Floats) -> npt.NDArray[np.float32]:
    """Return the colours at `points` [n, 3] (x, y, level): float32 [n, 3], RGB of 0..1.

    x and y are in texels of level 0, whose centres lie at 0.5, 1.5…; beyond the edge its texels go on. Devices weigh
    texels with 8 bits: results lie within 2/255 of exact trilinear interpolation. Raises ShapeError for another shape,
    NonFiniteError for NaN and infinity, DeviceLost if the device failed.
    """
    _check("points", points, 3)
    records = np.zeros((len(points), 8), np.float32)
    records[:, :2], records[:, 5] = points[:, :2], points[:, 2]
    return _sampled(texture, records)


def sample_along(
    texture: TileTexture, points: Floats, footprints: Floats, width_px: float = 1.0
) -> npt.NDArray[np.float32]:
    """Return the colours averaged over elongated footprints: float32 [n, 3], RGB of 0..1.

    The device chooses the texels and their weights: a smooth picture's results lie within 4/255 of the mean along the
    line.

    Args:
        texture: The texture to sample.
        points: Centres, [n, 2] (x, y), in texels of level 0.
        footprints: Directions and lengths, [n, 2] (dx, dy), in texels of level 0.
        width_px: Width across the line.

    Raises:
        ShapeError: Another shape, or a footprint without length.
        OptionError: A width that is not positive.
        NonFiniteError: NaN or infinity.
        BackendMissing: The device has no anisotropic filter.
        DeviceLost: The device failed.
    """
    _check("points", points, 2)
    _check("footprints", footprints, 2)
    if len(points) != len(footprints):
        raise ShapeError(f"a footprint for each point: got {len(points)} points and {len(footprints)} footprints")
    if not 0 < width_px < np.inf:
        raise OptionError(f"a footprint's width is a positive number of texels, got {width_px}")
    if not (np.abs(footprints).max(axis=1, initial=0) > 0).all():
        raise ShapeError("a footprint needs a direction and a length, got (0, 0); use `sample` for points")
    # how many times longer than wide a footprint may be; a longer one is blurred as if it were wider
    if not texture.device.software and texture.anisotropy < 16:
        raise BackendMissing(
            f"{texture.device.renderer} filters {texture.anisotropy:g}:1 at most, and footprints need 16:1",
            "update its driver",
        )
    records = np.zeros((len(points), 8), np.float32)
    records[:, :2], records[:, 2:4], records[:, 4] = points, footprints, width_px
    return _sampled(texture, records, *(["PROBES"] if texture.device.software else []))


def _check(name: str, array: Floats, columns: int) -> None:
    if array.ndim != 2 or array.shape[1] != columns or not np.issubdtype(array.dtype, np.floating):
        raise ShapeError(f"{name} are floats [n, {columns}], got {array.dtype} {array.shape}")
    if not np.isfinite(array).all():
        raise NonFiniteError(f"{name} hold NaN or infinity; they must be finite")


def _sampled(texture: TileTexture, records: npt.NDArray[np.float32], *defines: str) -> npt.NDArray[np.float32]:
    colours = np.empty((len(records), 3), np.float32)
    if len(records):
        groups = -(-len(records) // 64)  # invocations of a workgroup of `sample_points.comp`
        compute(texture.device, "sample_points", [records], colours, [Dispatch(groups, defines=defines)], texture)
    return colours
