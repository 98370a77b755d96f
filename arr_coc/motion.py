"""The camera's motion between two frames, as one global shift."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.thumbnail import Thumbnail

RESPONSE = 0.08
"""Least share of the correlation's energy in its peak. Unrelated pictures stay below."""

GAIN = 0.85
"""The shift must bring the mean absolute difference to this share or less of what it is without a shift."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Content moved by (`dy_px`, `dx_px`), down and right positive, since the frame before. `response` in [0, 1]."""

    dy_px: float = 0.0
    dx_px: float = 0.0
    response: float = 0.0

    def __bool__(self) -> bool:
        return self.dy_px != 0 or self.dx_px != 0


NO_SHIFT = Shift()


def estimate_shift(before: Thumbnail, after: Thumbnail) -> Shift:
    """Phase correlation (Kuglin and Hines, 1975) of the two luma pictures under a Hann window.

    NO_SHIFT where their sizes differ, where the peak is weak, or where moving `before` does not make it more alike.
    """
    if before.luma.shape != after.luma.shape or min(before.luma.shape) < 8:
        return NO_SHIFT
    first, second = before.luma.astype(np.float32), after.luma.astype(np.float32)
    (dx, dy), response = cv2.phaseCorrelate(first, second, _window(*first.shape))
    if response < RESPONSE or not _explains(first, second, dy, dx):
        return NO_SHIFT
    return Shift(dy * after.texel_px, dx * after.texel_px, min(1.0, float(response)))


@lru_cache(maxsize=4)
def _window(rows: int, cols: int) -> npt.NDArray[np.float32]:
    return cv2.createHanningWindow((cols, rows), cv2.CV_32F)


def _explains(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32], dy: float, dx: float) -> bool:
    """Whether `first` moved by (dy, dx) is closer to `second` than `first` itself, where both have content."""
    rows, cols = first.shape
    if abs(dy) > rows / 2 or abs(dx) > cols / 2:
        return False
    moved = cv2.warpAffine(first, np.array([[1, 0, dx], [0, 1, dy]], np.float32), (cols, rows))
    top, bottom = max(0, int(np.ceil(dy))), rows + min(0, int(np.floor(dy)))
    left, right = max(0, int(np.ceil(dx))), cols + min(0, int(np.floor(dx)))
    part = (slice(top, bottom), slice(left, right))
    still = cv2.norm(first[part], second[part], cv2.NORM_L1)
    return cv2.norm(moved[part], second[part], cv2.NORM_L1) <= GAIN * still
