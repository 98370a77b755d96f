"""`CompiledChannels`: channels of `core13` by the compiled kernel, tile by tile as they change."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.ops.kernels import ArrayPool
from arr_coc.relevance.profiles import CLUSTER_START, CLUSTER_STEPS, CORE, LUMA_SIDE

LEVELS = 1, 2, 4, 5
"""Mipmap levels that the kernel reads."""

WIDE = 8
"""Colours that the kernel takes together, as kernels/scores.h has it."""

Map = npt.NDArray[np.float32]


class KernelPicture(ctypes.Structure):
    """`Picture` of kernels/scores.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "cols", "steps")),
        *((name, ctypes.c_void_p) for name in ("level1", "level2", "level4", "level5", "stale")),
        *((name, ctypes.c_void_p) for name in ("luma", "sums", "lines", "colours", "channels", "entropy")),
        *((name, ctypes.c_void_p) for name in ("count_log", "centres")),
        ("entropy_scale", ctypes.c_double),
        *((name, ctypes.c_float) for name in ("variance_scale", "magnitude_scale", "diagonal")),
    )


@dataclass(frozen=True, slots=True)
class ChannelScales:
    """Constants of `arr_coc.relevance.channels`: n·log n by n, and what channels are divided by or multiplied with."""

    count_log: npt.NDArray[np.int64]
    entropy: float
    variance: float
    magnitude: float
    diagonal: float


class CompiledChannels:
    """Channels of one grid's pictures, brought up to date tile by tile.

    They are those of `arr_coc.relevance.channels`: bit for bit, but for saliency, which rounding may move by 1e-6.
    """

    def __init__(self, kernel: ctypes.CDLL, coordinates: Map, scales: ChannelScales, arrays: ArrayPool) -> None:
        """`coordinates` [2, gh, gw]."""
        self.shape = rows, cols = coordinates.shape[1:]
        self._kernel, self._arrays = kernel, arrays
        self._planes = np.zeros((CORE + 1, rows, cols), np.float32)
        self._planes[3:5] = coordinates
        buffers: dict[str, npt.NDArray[Any]] = {
            "luma": np.zeros((rows * LUMA_SIDE + 2, cols * LUMA_SIDE + 2), np.uint8),
            "sums": np.zeros((9, rows, cols), np.int32),
            "lines": np.zeros((18, cols), np.float32),
            "colours": np.zeros((3, -(-rows * cols // WIDE) * WIDE)),
            "channels": self._planes,
            "entropy": self._planes[CORE],
            "count_log": scales.count_log,
            "centres": CLUSTER_START,
        }
        self._buffers = buffers
        self._picture = KernelPicture(rows, cols, CLUSTER_STEPS)
        for name, buffer in buffers.items():
            setattr(self._picture, name, buffer.ctypes.data)
        self._picture.entropy_scale = scales.entropy
        self._picture.variance_scale, self._picture.magnitude_scale = scales.variance, scales.magnitude
        self._picture.diagonal = scales.diagonal

    def update(self, levels: Sequence[npt.NDArray[np.uint8]], stale: npt.NDArray[np.bool_]) -> Map:
        """The channels of a picture, and behind them its entropy: float32 [14, gh, gw]; from its `LEVELS`, which differ
        from the picture before where `stale` bool [gh, gw]."""
        keep = [np.ascontiguousarray(level) for level in levels]
        keep.append(np.ascontiguousarray(stale))
        for name, array in zip(("level1", "level2", "level4", "level5", "stale"), keep, strict=True):
            setattr(self._picture, name, array.ctypes.data)
        self._kernel.scores_channels(ctypes.byref(self._picture))
        return self._arrays.copy(self._planes)
