"""Global shift by phase correlation, on thumbnails.

It is made from the planes, without converting them, and only for frames that differ much from the texture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import NO_SHIFT, FramePlanes, Shift

Floats = npt.NDArray[np.float32]

LUMA_WIDTH_PX = 320
"""Luma is halved until it is at most this wide: level 3 at 1920×1080, level 2 at 1280×720."""

DOWNSCALED_SHAPE = (36, 64)
"""Rows and columns of the glance: about level 5 of 1920×1080, and the same for every frame size."""


@dataclass(frozen=True)
class Thumbnail:
    """`luma` uint8 [h, w], each texel a box mean of `texel_px` × `texel_px` pixels; `chroma` its u and v, where it
    has any.

    `downscaled` uint8 [3, 36, 64] (y, u, v) shows the whole frame.
    """

    luma: npt.NDArray[np.uint8]
    texel_px: int
    chroma: tuple[npt.NDArray[np.uint8], ...]

    @classmethod
    def of(cls, planes: FramePlanes) -> Thumbnail:
        """Halves the planes with the box filter; an RGB picture is halved first and then turned to Y'CbCr."""
        texel_px = 1
        while planes.width_px // texel_px > LUMA_WIDTH_PX and planes.height_px // texel_px > 1:
            texel_px *= 2
        first = _halved(planes.planes[0], texel_px)
        if planes.layout == "rgb":
            luma, v, u = cv2.split(cv2.cvtColor(first, cv2.COLOR_RGB2YCrCb))
            return cls(luma, texel_px, (u, v))
        return cls(first, texel_px, tuple(_halved(plane, texel_px // 2) for plane in planes.planes[1:]))

    @cached_property
    def downscaled(self) -> npt.NDArray[np.uint8]:
        downscaled = np.full((3, *DOWNSCALED_SHAPE), 128, np.uint8)
        for channel, plane in zip(downscaled, (self.luma, *self.chroma), strict=False):
            cv2.resize(plane, DOWNSCALED_SHAPE[::-1], dst=channel, interpolation=cv2.INTER_AREA)
        return downscaled


def _halved(plane: npt.NDArray[np.uint8], factor: int) -> npt.NDArray[np.uint8]:
    while factor > 1 and min(plane.shape[:2]) > 1:
        height, width = plane.shape[0] // 2, plane.shape[1] // 2
        plane = cv2.resize(plane[: height * 2, : width * 2], (width, height), interpolation=cv2.INTER_AREA)
        factor //= 2
    return plane


RESPONSE = 0.08
"""Least share of the correlation's energy in its peak. Unrelated pictures stay about there, and are refused by what
follows."""

BLOCK_TEXELS = 8
"""Side of the blocks in which the shift must prove itself: 64 px at 1920×1080."""

BLOCK_CHANGE = 2.0
"""By how much, of 255, the shift must change a block's picture for the block to have a say: flat ones have none."""

BLOCK_GAIN = 0.85
"""A block is explained where moving the picture brings its mean difference to this share or less."""

EXPLAINED_SHARE = 0.6
"""Least share of the telling blocks that the shift must explain: most of the picture moves, not one thing in it."""

TELLING_SHARE = 0.1
"""Least share of blocks that must have a say: one thing before a blank wall is not the camera's motion."""

LEAST_TEXELS = 0.05
"""Shifts below the precision of the estimate are none."""


def estimate_shift(before: Thumbnail, after: Thumbnail) -> Shift:
    """Phase correlation (Kuglin and Hines, 1975) of the two luma pictures under a Hann window.

    NO_SHIFT where their sizes differ, where the peak is weak, or where moving `before` does not make most of
    it more alike.
    """
    if before.luma.shape != after.luma.shape or min(before.luma.shape) < 2 * BLOCK_TEXELS:
        return NO_SHIFT
    first, second = before.luma.astype(np.float32), after.luma.astype(np.float32)
    dy, dx, response = correlate(first, second)
    if response < RESPONSE or max(abs(dy), abs(dx)) < LEAST_TEXELS or not _explains(first, second, dy, dx):
        return NO_SHIFT
    return Shift(dy * after.texel_px, dx * after.texel_px, min(1.0, float(response)))


@lru_cache(maxsize=4)
def _hann_window(rows: int, cols: int) -> Floats:
    return np.asarray(cv2.createHanningWindow((cols, rows), cv2.CV_32F), np.float32)


def _explains(first: Floats, second: Floats, dy: float, dx: float) -> bool:
    """Whether most blocks that tell are closer to `first` moved by (dy, dx) than to `first`, where both overlap."""
    rows, cols = first.shape
    if abs(dy) > rows / 2 or abs(dx) > cols / 2:
        return False
    moved, overlap = shifted(first, dy, dx)
    still = block_means(cv2.absdiff(first[overlap], second[overlap]), BLOCK_TEXELS)
    aligned = block_means(cv2.absdiff(moved[overlap], second[overlap]), BLOCK_TEXELS)
    telling = block_means(cv2.absdiff(moved[overlap], first[overlap]), BLOCK_TEXELS) > BLOCK_CHANGE
    explained = telling & (aligned <= BLOCK_GAIN * still)
    return bool(telling.mean() >= TELLING_SHARE and explained.sum() >= EXPLAINED_SHARE * telling.sum())


def correlate(first: Floats, second: Floats) -> tuple[float, float, float]:
    """Phase correlation of two pictures [h, w] under a Hann window: (dy, dx) in texels, and the peak's share."""
    # cv2 multiplies its arguments by the window in place.
    (dx, dy), response = cv2.phaseCorrelate(first.copy(), second.copy(), _hann_window(*first.shape))
    return dy, dx, response


def shifted(picture: Floats, dy: float, dx: float) -> tuple[Floats, tuple[slice, slice]]:
    """The picture [h, w] moved by (dy, dx), and the part of it that lies inside."""
    rows, cols = picture.shape
    moved = cv2.warpAffine(picture, np.array([[1, 0, dx], [0, 1, dy]], np.float32), (cols, rows))
    return np.asarray(moved, np.float32), (
        slice(max(0, math.ceil(dy)), rows + min(0, math.floor(dy))),
        slice(max(0, math.ceil(dx)), cols + min(0, math.floor(dx))),
    )


def block_means(values: Floats, side: int) -> Floats:
    """Means over whole blocks: float32 [h // side, w // side]."""
    rows, cols = (size // side for size in values.shape)
    whole = values[: rows * side, : cols * side]
    return np.asarray(cv2.resize(whole, (cols, rows), interpolation=cv2.INTER_AREA), np.float32)
