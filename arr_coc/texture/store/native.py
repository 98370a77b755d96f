"""The compiled kernel of textures in host memory, `kernels/tiles.cpp`: loading, and a texture that works with it.

Without the kernel, textures are those of the reference, with the same bytes.
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from arr_coc.errors import BackendMissing
from arr_coc.texture.kernels import SETTING, library_or_none, load_library
from arr_coc.texture.regions import FOOTPRINTS
from arr_coc.texture.store.planes import Mask, Plane, PlaneFormat, Thresholds
from arr_coc.texture.store.raster import HostTexture, ReferenceTexture, fixed_point
from arr_coc.types import LEVELS, TILE_PX, FramePlanes

VERSION = 4
"""Of the kernel's interface, as `tiles_version` of kernels/tiles.cpp has it."""


class KernelPlane(ctypes.Structure):
    """`Plane` of kernels/tiles.cpp."""

    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64))


class KernelKept(ctypes.Structure):
    """`Kept` of kernels/tiles.cpp."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("height", "width", "tile_height", "tile_width")),
    )


class KernelTexture(ctypes.Structure):
    """`Texture` of kernels/tiles.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "cols", "planes", "channels", "level_count", "threads")),
        ("scale", ctypes.c_int16 * 5),
        ("offset", ctypes.c_int16 * 3),
        ("kept", KernelKept * 3),
        ("levels", ctypes.c_void_p * LEVELS),
        ("known", ctypes.c_void_p),
        ("rest", ctypes.c_void_p),
    )


_FOOTPRINTS = np.array([[footprint.level, footprint.down, footprint.across] for footprint in FOOTPRINTS], np.int32)


def kernel_path() -> Path:
    """Return the path of the compiled kernel, which may not exist."""
    return Path(__file__).with_name("tiles.abi3.so")


@cache
def load_kernel(path: Path) -> ctypes.CDLL:
    """Return the compiled kernel. Raises as `load_library`."""
    kernel = load_library(path, "the texture's compiled kernel", "tiles", VERSION)
    pointer = ctypes.c_void_p
    number = ctypes.c_int32
    kernel.tiles_compare.argtypes = (pointer, pointer, number, number, pointer)
    kernel.tiles_update.argtypes = (pointer, pointer, pointer)
    kernel.tiles_finest.argtypes = (pointer, pointer)
    kernel.tiles_gather.argtypes = (pointer, pointer, ctypes.c_int64, pointer, pointer)
    for function in (kernel.tiles_compare, kernel.tiles_update, kernel.tiles_finest, kernel.tiles_gather):
        function.restype = None
    return kernel


def kernel_or_none() -> ctypes.CDLL | None:
    """Return the compiled kernel that textures use, None if they use the reference. Raises as `library_or_none`."""
    return library_or_none(load_kernel, kernel_path())


def kernel_threads() -> int:
    """Return the number of threads that share the tiles of a frame: half of the cores, because others decode and
    choose."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min(cores // 2, 4))  # more add little: memory is what the kernel waits for


def kernel_in_use() -> str:
    """Return the instruction set that textures in host memory use, "reference" if it is not the compiled kernel."""
    kernel = kernel_or_none()
    if kernel is None:
        return "reference"
    return kernel.tiles_set().decode()


def kernel_remedy() -> str | None:
    """Return the remedy if the compiled kernel cannot be used, though the reference was not requested; else None."""
    try:
        load_kernel(kernel_path())
    except BackendMissing as error:
        return None if os.environ.get(SETTING) else error.remedy
    return None


def host_texture(fmt: PlaneFormat, thresholds: Thresholds, levels: int = LEVELS) -> HostTexture:
    """Return a texture of `levels` levels in host memory. Raises what `kernel_or_none` raises."""
    kernel = kernel_or_none()
    if kernel is None:
        return ReferenceTexture(fmt, thresholds, levels)
    return CompiledTexture(kernel, fmt, thresholds, levels)


class CompiledTexture(HostTexture):
    """By the compiled kernel, tile by tile, without the interpreter's lock. Bytes are the reference's.

    Level 0 is made when it is read, of the tiles that changed since: few frames are looked at whole, and regions of it
    are converted from the planes.
    """

    def __init__(self, kernel: ctypes.CDLL, fmt: PlaneFormat, thresholds: Thresholds, levels: int = LEVELS) -> None:
        super().__init__(fmt, thresholds, levels)
        self._kernel = kernel
        self.name = f"compiled for {kernel.tiles_set().decode()}"
        self._limits = [math.floor(min(max(limit, 0), 255)) for limit in (thresholds.mean, thresholds.largest)]
        self._frame = (KernelPlane * 3)()
        self._texture = texture = KernelTexture(
            *fmt.grid.shape, len(self.planes), self.planes[0][0, 0].size, levels, kernel_threads()
        )
        self._hashes = np.zeros((*fmt.grid.shape, 2), np.uint64)
        self._rest = np.zeros(fmt.grid.shape[0], np.uint8)
        texture.known = self._hashes.ctypes.data
        texture.rest = self._rest.ctypes.data
        self._stale = np.zeros(fmt.grid.shape, bool)
        self._level0_lock = threading.Lock()
        for index, level in enumerate(self._levels):
            texture.levels[index] = level.ctypes.data
        for index, (plane, (down, across)) in enumerate(zip(self.planes, fmt.steps(), strict=True)):
            tile = TILE_PX // down, TILE_PX // across
            texture.kept[index] = KernelKept(plane.ctypes.data, plane.strides[0], *plane.shape[:2], *tile)
        if fmt.layout == "yuv":
            texture.scale[:], texture.offset[:] = fixed_point(fmt.colour)

    def compare(self, planes: FramePlanes) -> Mask:
        dirty = np.empty(self._format.grid.shape, bool)
        keep = self._point_at(planes.planes)
        self._kernel.tiles_compare(ctypes.byref(self._texture), self._frame, *self._limits, dirty.ctypes.data)
        del keep
        return dirty

    def update(self, planes: FramePlanes, dirty: Mask) -> None:
        keep = self._point_at(planes.planes)
        tiles = np.ascontiguousarray(dirty)
        self._kernel.tiles_update(ctypes.byref(self._texture), self._frame, tiles.ctypes.data)
        del keep
        if self._format.layout != "rgb":
            self._stale |= tiles

    def read(self, level: int) -> Plane:
        if level == 0:
            with self._level0_lock:
                if self._stale.any():
                    self._kernel.tiles_finest(ctypes.byref(self._texture), self._stale.ctypes.data)
                    self._stale[:] = False
        return super().read(level)

    def gather(self, regions: npt.NDArray[np.int64]) -> Plane:
        out = np.empty((len(regions), 3, TILE_PX, TILE_PX), np.uint8)
        codes = np.ascontiguousarray(regions)
        self._kernel.tiles_gather(
            ctypes.byref(self._texture), codes.ctypes.data, len(codes), _FOOTPRINTS.ctypes.data, out.ctypes.data
        )
        return out

    def _point_at(self, planes: Sequence[Plane]) -> list[Plane]:
        """Pass the addresses of the planes to the kernel; returns the objects that must live while it works."""
        keep = [plane if plane[0].flags.c_contiguous else np.ascontiguousarray(plane) for plane in planes]
        for slot, plane in zip(self._frame, keep, strict=False):
            slot.data = plane.ctypes.data
            slot.stride = plane.strides[0]
        return keep
