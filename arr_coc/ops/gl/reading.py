"""What threads read from a texture: rectangles of its levels, and the pixels of regions."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.gl.compute import PLACES_ALIGNED, Dispatch, compute, scratch
from arr_coc.ops.gl.layout import TEXEL_BYTES
from arr_coc.ops.gl.names import PIXEL_PACK_BUFFER, RGBA, UNSIGNED_BYTE
from arr_coc.ops.gl.owned import Fence
from arr_coc.ops.gl.ring import aligned
from arr_coc.ops.gl.texture import TileTexture
from arr_coc.ops.planes import Plane, Rectangle
from arr_coc.types import TILE_PX

REGIONS_AT_ONCE = 8192
"""24 MB of pixels; and fewer workgroups than every device takes."""


def read_back(texture: TileTexture, rectangles: Sequence[Rectangle], levels: dict[int, Plane]) -> None:
    """Writes rectangles of tiles into host copies of levels, uint8 [rows * 32 >> level, cols * 32 >> level, 3] each.

    Raises DeviceLost where the device gave up.
    """
    device = texture.device
    with device.current() as context:
        parts = [(level, *_texel_box(rectangle, level)) for level in levels for rectangle in rectangles]
        sizes = [(bottom - top) * (right - left) * TEXEL_BYTES for _, top, left, bottom, right in parts]
        starts = np.cumsum([0, *map(aligned, sizes)]).tolist()
        buffer, calls = scratch(device, context, starts[-1]), device.library.calls
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
    """The pixels of regions [K, 3] (level, row, col) that exist: uint8 [K, 3, 32, 32], edge-clamped.

    A kernel run for each level, which it reads as an image: llvmpipe takes twice as long to fetch texels of a level
    that it learns from the region. Raises DeviceLost where the device gave up.
    """
    out = np.empty((len(regions), 3, TILE_PX, TILE_PX), np.uint8)
    for start in range(0, len(regions), REGIONS_AT_ONCE):
        part = slice(start, start + REGIONS_AT_ONCE)
        places, dispatches = by_level(regions[part])
        compute(texture.device, "gather_regions", [places], out[part], dispatches, texture)
    return out


def by_level(regions: npt.NDArray[np.integer]) -> tuple[npt.NDArray[np.uint32], list[Dispatch]]:
    """Places uint32 [n, 4] (row, col, slot, 0) of each level at an aligned start, and a workgroup for each."""
    groups, dispatches, start = [], [], 0
    for level in np.unique(regions[:, 0]).tolist():
        slots = np.flatnonzero(regions[:, 0] == level)
        places = np.zeros((-(-len(slots) // PLACES_ALIGNED) * PLACES_ALIGNED, 4), np.uint32)
        places[: len(slots), :2], places[: len(slots), 2] = regions[slots, 1:], slots
        dispatches.append(Dispatch(len(slots), start, level))
        groups.append(places)
        start += places.nbytes
    return np.concatenate(groups), dispatches


def _texel_box(rectangle: Rectangle, level: int) -> Rectangle:
    row0, col0, row1, col1 = (edge * (TILE_PX >> level) for edge in rectangle)
    return row0, col0, row1, col1
