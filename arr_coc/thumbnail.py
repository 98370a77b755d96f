"""A small picture of a frame, by which cuts and camera motion are judged.

It is made from the planes, without converting them, and only for frames that differ much from the texture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import FramePlanes

LUMA_WIDTH_PX = 320
"""Luma is halved until it is at most this wide: level 3 at 1920×1080, level 2 at 1280×720."""

GLANCE_SHAPE = (36, 64)
"""Rows and columns of the glance: about level 5 of 1920×1080, and the same for every frame size."""


@dataclass(frozen=True)
class Thumbnail:
    """`luma` uint8 [h, w], each texel a box mean of `texel_px` × `texel_px` pixels; `chroma` its u and v, where it
    has any.

    `glance` uint8 [3, 36, 64] (y, u, v) shows the whole frame.
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
    def glance(self) -> npt.NDArray[np.uint8]:
        glance = np.full((3, *GLANCE_SHAPE), 128, np.uint8)
        for channel, plane in zip(glance, (self.luma, *self.chroma), strict=False):
            cv2.resize(plane, GLANCE_SHAPE[::-1], dst=channel, interpolation=cv2.INTER_AREA)
        return glance


def _halved(plane: npt.NDArray[np.uint8], factor: int) -> npt.NDArray[np.uint8]:
    while factor > 1 and min(plane.shape[:2]) > 1:
        height, width = plane.shape[0] // 2, plane.shape[1] // 2
        plane = cv2.resize(plane[: height * 2, : width * 2], (width, height), interpolation=cv2.INTER_AREA)
        factor //= 2
    return plane
