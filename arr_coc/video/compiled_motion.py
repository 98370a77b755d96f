"""The compiled kernel of motion, `kernels/motion.cpp`: loading, and an estimator that works with it.

Without the kernel, motion is estimated by the reference, with the same results.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.texture.kernels import library_or_none, load_library
from arr_coc.types import LEAST_CONFIDENCE, LEAST_MOTION_PX, CodedMotion, FramePlanes, Layout, TileGrid, TileMotion
from arr_coc.video import camera_motion, motion_search, tile_motion, tile_patches
from arr_coc.video.motion_search import Box, FlowSearch, one_shift, texels_in
from arr_coc.video.tile_motion import MOVING_SHARE, MotionEstimate, ReferenceMotion, TileMotionEstimator

VERSION = 2
"""Of the kernel's interface, as `motion_version` of kernels/motion.cpp has it."""

VECTORS = 1
SHIFT = 2
FLOW = 3
"""Requests of the kernel, as `Wants` of kernels/motion.cpp."""

Luma = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_CONSTANTS: dict[str, Any] = {
    name.lower(): getattr(module, name)
    for module, names in (
        (tile_motion, "CODED_SHARE SHIFT_SHARE GUESS_LEAVES SAME_PX BETTER EXPLAINS FILLED LEAST_TOGETHER"),
        (tile_motion, "CODED_FRAMES CODED_SAMPLES"),
        (tile_patches, "STRUCTURE FITS MISFITS EXPLAINED EXPLAINED_OF_CHANGE NOISE REST_TEXELS LEAST_SLOPE"),
        (
            camera_motion,
            "START_SCALE_PX END_SCALE_PX SCALE_STEP INLIER_PX INLIER_SHARE LEAST_SUPPORT RIDGE LEAST_TILES",
        ),
        (camera_motion, "AFFINE_TILES AFFINE_SPREAD_TILES TILES_USED LEAST_BEND_TEXELS"),
        (motion_search, "WHOLE_SHARE REACH_TILES BOXES_MAX"),
    )
    for name in names.split()
}


class KernelRules(ctypes.Structure):
    """`Rules` of kernels/motion.cpp."""

    _fields_ = (
        *((name, ctypes.c_double) for name in ("least_motion_px", "least_confidence", "coded_share", "shift_share")),
        *((name, ctypes.c_double) for name in ("guess_leaves", "same_px", "better", "explains", "filled")),
        *((name, ctypes.c_double) for name in ("structure", "fits", "misfits", "explained", "explained_of_change")),
        *((name, ctypes.c_double) for name in ("noise", "rest_texels", "least_slope", "start_scale_px")),
        *((name, ctypes.c_double) for name in ("end_scale_px", "scale_step", "inlier_px", "inlier_share")),
        *((name, ctypes.c_double) for name in ("least_support", "affine_spread_tiles", "ridge", "least_bend_texels")),
        ("whole_share", ctypes.c_double),
        ("least_together", ctypes.c_int32),
        ("coded_frames", ctypes.c_int32 * 3),
        *((name, ctypes.c_int32) for name in ("coded_samples", "least_tiles", "affine_tiles", "tiles_used")),
        *((name, ctypes.c_int32) for name in ("reach_tiles", "boxes_max")),
    )


class KernelFrame(ctypes.Structure):
    """`Frame` of kernels/motion.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "cols", "texels", "texel_px", "channels", "height", "width")),
        ("box", ctypes.c_int32 * 4),
        *((name, ctypes.c_int32) for name in ("moving", "has_camera")),
        *((name, ctypes.c_void_p) for name in ("old", "now", "wanted")),
        ("given", ctypes.c_void_p * 2),
        ("motion", ctypes.c_void_p * 3),
    )


def kernel_path() -> Path:
    """Return the path of the compiled kernel, which may not exist."""
    return Path(__file__).with_name("motion_kernel.abi3.so")


@cache
def load_kernel(path: Path) -> ctypes.CDLL:
    """Return the compiled kernel. Raises as `load_library`."""
    kernel = load_library(path, "the compiled kernel of motion", "motion", VERSION)
    pointer = ctypes.c_void_p
    number = ctypes.c_int32
    stride = ctypes.c_int64
    kernel.motion_open.argtypes = (pointer, pointer)
    kernel.motion_open.restype = pointer
    kernel.motion_begin.argtypes = (pointer, pointer, stride, pointer, stride, pointer)
    kernel.motion_next.argtypes = (pointer, number)
    kernel.motion_moved.argtypes = (pointer, number, number, number, number, pointer)
    kernel.motion_close.argtypes = kernel.motion_keep.argtypes = (pointer,)
    for function in (kernel.motion_close, kernel.motion_begin, kernel.motion_moved, kernel.motion_keep):
        function.restype = None
    return kernel


def kernel_or_none() -> ctypes.CDLL | None:
    """Return the compiled kernel, None if the reference is used. Raises as `library_or_none`."""
    return library_or_none(load_kernel, kernel_path())


def motion_estimator(grid: TileGrid, layout: Layout, masked: Mask | None = None) -> TileMotionEstimator:
    """Return an estimator for frames of one grid and layout, of which tiles are `masked`. Raises what `kernel_or_none`
    raises."""
    kernel = kernel_or_none()
    if kernel is None:
        return ReferenceMotion(grid, layout, masked)
    return CompiledMotion(kernel, grid, layout, masked)


class CompiledMotion(TileMotionEstimator):
    """By the compiled kernel, without the interpreter's lock. It asks for the few searches that OpenCV does."""

    def __init__(self, kernel: ctypes.CDLL, grid: TileGrid, layout: Layout, masked: Mask | None = None) -> None:
        super().__init__(grid, layout, masked)
        self._kernel = kernel
        self._old, self._new = np.zeros((2, grid.rows * self.texels, grid.cols * self.texels), np.uint8)
        self._flow_mask = np.zeros(grid.shape, bool)
        self._vectors = np.zeros((2, *grid.shape), np.float32)
        self._frame = KernelFrame(*grid.shape, self.texels, self.texel_px, 3 if layout == "rgb" else 1)
        self._frame.height, self._frame.width = (size // self.texel_px for size in (grid.height_px, grid.width_px))
        self._frame.old, self._frame.now = self._old.ctypes.data, self._new.ctypes.data
        self._frame.wanted = self._flow_mask.ctypes.data
        self._frame.given[:] = [way.ctypes.data for way in self._vectors]
        rules = KernelRules(LEAST_MOTION_PX, LEAST_CONFIDENCE, **_CONSTANTS)
        self._motion = kernel.motion_open(ctypes.byref(self._frame), ctypes.byref(rules))
        weakref.finalize(self, kernel.motion_close, self._motion)
        self._has_previous = False
        self._flow = FlowSearch(self.texels)

    def keep(self, has_estimate: bool) -> None:
        if has_estimate:
            self._kernel.motion_keep(self._motion)
        self._has_previous = has_estimate

    def estimate(self, old_planes: FramePlanes, planes: FramePlanes, dirty: Mask) -> MotionEstimate:
        motion = np.empty((3, *self.grid.shape), np.float32)
        start = motion.ctypes.data
        step = motion.strides[0]
        self._frame.motion[:] = (start, start + step, start + 2 * step)
        before = None if self._has_previous else _rows(old_planes)
        after = _rows(planes)
        self._kernel.motion_begin(
            self._motion,
            None if before is None else before.ctypes.data,
            0 if before is None else before.strides[0],
            after.ctypes.data,
            after.strides[0],
            np.ascontiguousarray(dirty).ctypes.data,
        )
        request = self._kernel.motion_next(self._motion, 0)
        while request:
            request = self._kernel.motion_next(self._motion, self._answer(request, planes.coded_motion))
        estimate = TileMotion(*motion)
        moving = self._frame.moving
        visible = self.grid.tiles
        if self._masked is not None:
            estimate, moving, visible = self._without_masked(estimate, self._masked)
        camera_moved = bool(self._frame.has_camera) and moving >= MOVING_SHARE * visible
        return MotionEstimate(estimate if moving else None, camera_moved)

    def _answer(self, request: int, coded: CodedMotion | None) -> bool:
        """Answer the kernel's request; returns whether there is an answer."""
        if request == VECTORS:
            vectors = None if coded is None else coded.over(self.grid)
            if vectors is not None:
                self._vectors[:] = vectors
            return vectors is not None
        if request == SHIFT:
            top, left, bottom, right = self._frame.box
            window = texels_in((slice(top, bottom), slice(left, right)), self.texels)
            shift = one_shift(self._old[window], self._new[window])
            if shift is not None:
                self._vectors[:, 0, 0] = [self.texel_px * way for way in shift]
            return shift is not None
        self._flow.add(self._flow_mask, self._new, self._moved, *self._vectors)
        return True

    def _moved(self, box: Box) -> Luma:
        """Return a box of the old picture, moved as the kernel guesses."""
        rows, cols = texels_in(box, self.texels)
        texels = np.empty((rows.stop - rows.start, cols.stop - cols.start), np.uint8)
        self._kernel.motion_moved(self._motion, rows.start, cols.start, *texels.shape, texels.ctypes.data)
        return texels


def _rows(planes: FramePlanes) -> Luma:
    """Return the first plane, its samples next to each other."""
    plane = planes.planes[0]
    if plane[0].flags.c_contiguous:
        return plane
    return np.ascontiguousarray(plane)
