"""A source of a steady pace: a still picture through which one thing moves, drawn once and cheap to give.

What a frame costs to make is a copy of the picture, the same for every frame, so that jitter that is measured behind it
is not its own. Planes are 4:2:0, as a decoder of real video gives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import Colour, FramePlanes
from stream.scenes.draw import RGB, Image, draw_thing, gradient
from stream.scenes.world import Thing

HEIGHTS_PX = (720, 1080, 2160)
RATES = (30, 60)
HOUR_S = 3600

GROUND: tuple[RGB, RGB] = ((150, 160, 172), (110, 122, 138))
SPEED = 0.1
"""Of the picture's width, a second."""

_COLOUR = Colour("bt601")
"""As cv2 converts to I420: BT.601, limited range."""

Plane = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class PacedScene:
    """An hour of 16:9 video. The same frames every time; every frame owns its planes."""

    name: str
    height_px: int
    fps: int

    @property
    def width_px(self) -> int:
        return self.height_px * 16 // 9

    @property
    def frames(self) -> int:
        return HOUR_S * self.fps

    @property
    def pixel_format(self) -> str:
        return "yuv420p"

    def planes(self, frame_index: int) -> FramePlanes:
        """The frame's planes: y, u, v. Raises IndexError outside the scene."""
        if not 0 <= frame_index < self.frames:
            raise IndexError(f"scene {self.name} has frames 0..{self.frames - 1}, got {frame_index}")
        planes = []
        for subsampling, still, mover in zip((1, 2, 2), self._still, self._mover, strict=True):
            plane = still.copy()
            left, top = self._left_px(frame_index) // subsampling, self._top_px // subsampling
            plane[top : top + mover.shape[0], left : left + mover.shape[1]] = mover
            planes.append(plane)
        return FramePlanes("yuv", tuple(planes), _COLOUR)

    def render(self, frame_index: int) -> Image:
        """The frame as uint8 RGB [height_px, width_px, 3]. Raises IndexError outside the scene."""
        y, u, v = self.planes(frame_index).planes
        packed = np.concatenate([plane.reshape(-1) for plane in (y, u, v)]).reshape(-1, self.width_px)
        return np.asarray(cv2.cvtColor(packed, cv2.COLOR_YUV2RGB_I420), np.uint8)

    @cached_property
    def _still(self) -> tuple[Plane, Plane, Plane]:
        picture = self._ground()
        size_px = 0.18 * self.height_px
        draw_thing(picture, Thing("square", "blue", 0.76 * self.width_px, 0.78 * self.height_px, size_px))
        return _i420(picture)

    @cached_property
    def _mover(self) -> tuple[Plane, Plane, Plane]:
        """The circle with its streak, on the ground of the rows that it moves along; those are even from end to end."""
        picture = self._ground()
        size_px = 0.24 * self.height_px
        centre_y = self._top_px + self._box_px[0] / 2
        draw_thing(picture, Thing("circle", "red", self._box_px[1] - 0.55 * size_px, centre_y, size_px, "right"))
        rows, cols = slice(self._top_px, self._top_px + self._box_px[0]), slice(0, self._box_px[1])
        return _i420(np.ascontiguousarray(picture[rows, cols]))

    def _ground(self) -> Image:
        return gradient(self.width_px, self.height_px, *GROUND)

    @property
    def _top_px(self) -> int:
        return _even(0.15 * self.height_px)

    @property
    def _box_px(self) -> tuple[int, int]:
        """Height and width of what moves."""
        return _even(0.28 * self.height_px), _even(0.55 * self.height_px)

    def _left_px(self, frame_index: int) -> int:
        """From the left edge to the right one, and again."""
        way_px = self.width_px - self._box_px[1]
        return _even(SPEED * self.width_px * frame_index / self.fps % way_px)


def _even(value: float) -> int:
    """Rounded down to where chroma samples lie."""
    return int(value) // 2 * 2


def _i420(picture: Image) -> tuple[Plane, Plane, Plane]:
    height, width = picture.shape[:2]
    packed = np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2YUV_I420), np.uint8)
    chroma = packed[height:].reshape(2, height // 2, width // 2)
    return packed[:height].copy(), chroma[0].copy(), chroma[1].copy()


PACED_SCENES: dict[str, tuple[int, int]] = {
    f"paced-{height_px}p{fps}": (height_px, fps) for height_px in HEIGHTS_PX for fps in RATES
}
"""Name → height in pixels, frames a second."""
