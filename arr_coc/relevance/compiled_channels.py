"""`CompiledChannels`: channels of `core13` by the compiled kernel, tile by tile as they change."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.relevance.profiles import CORE, LUMA_SIDE

LEVELS = 1, 2, 4, 5
"""Mipmap levels that the kernel reads."""

Map = npt.NDArray[np.float32]


class KernelPicture(ctypes.Structure):
    """`Picture` of kernels/scores.cpp."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("rows", "cols")),
        *((name, ctypes.c_void_p) for name in ("level1", "level2", "level4", "level5", "stale")),
        *((name, ctypes.c_void_p) for name in ("luma", "sums", "channels", "entropy", "count_log")),
        ("entropy_scale", ctypes.c_double),
        *((name, ctypes.c_float) for name in ("variance_scale", "magnitude_scale")),
    )


class CompiledChannels:
    """Channels of one grid's pictures but the clusters', brought up to date tile by tile.

    `channels` float32 [13, gh, gw] and `entropy` float32 [gh, gw] are those of `arr_coc.relevance.channels`: bit for
    bit, but for saliency, which rounding may move by 1e-6.
    """

    def __init__(self, kernel: ctypes.CDLL, coordinates: Map, scales: tuple[Any, float, float, float]) -> None:
        """`coordinates` [2, gh, gw], and the table and scales of entropy, variance and edge magnitude."""
        rows, cols = coordinates.shape[1:]
        self._kernel = kernel
        self.channels, self.entropy = np.zeros((CORE, rows, cols), np.float32), np.zeros((rows, cols), np.float32)
        self.channels[3:5] = coordinates
        count_log, entropy_scale, variance_scale, magnitude_scale = scales
        self._buffers = [
            np.zeros((rows * LUMA_SIDE + 2, cols * LUMA_SIDE + 2), np.uint8),
            np.zeros((9, rows, cols), np.int32),
            self.channels,
            self.entropy,
            np.ascontiguousarray(count_log, np.int64),
        ]
        self._picture = KernelPicture(rows, cols)
        for name, buffer in zip(("luma", "sums", "channels", "entropy", "count_log"), self._buffers, strict=True):
            setattr(self._picture, name, buffer.ctypes.data)
        self._picture.entropy_scale = entropy_scale
        self._picture.variance_scale, self._picture.magnitude_scale = variance_scale, magnitude_scale

    def update(self, levels: Sequence[npt.NDArray[np.uint8]], stale: npt.NDArray[np.bool_]) -> None:
        """Bring the channels up to date where `stale` bool [gh, gw], and saliency everywhere, from the `LEVELS` of the
        picture."""
        keep = [np.ascontiguousarray(level) for level in levels]
        keep.append(np.ascontiguousarray(stale).view(np.uint8))
        for name, array in zip(("level1", "level2", "level4", "level5", "stale"), keep, strict=True):
            setattr(self._picture, name, array.ctypes.data)
        self._kernel.scores_channels(ctypes.byref(self._picture))
        del keep
