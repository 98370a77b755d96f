"""Generated clips: a scene of shots with actors, and a scene that costs the same for every frame.

Making a frame costs a copy of the picture, the same for every frame, so that jitter measured behind it is not the
scene's. Planes are 4:2:0, as a decoder of real video gives them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.types import Colour, FramePlanes
from stream.scenes.drawing import RGB, Box, GroundTruth, Image, Movement, SceneObject, Shape, draw_object, gradient

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

    def facts(self, frame_index: int) -> GroundTruth:
        """Return the ground truth of a frame. Raises IndexError outside the scene."""
        self._check(frame_index)
        circle = self._circle.shift(self._left_px(frame_index), self._top_px)
        return GroundTruth.of(self.width_px, self.height_px, [circle, self._square])

    def planes(self, frame_index: int) -> FramePlanes:
        """The frame's planes: y, u, v. Raises IndexError outside the scene."""
        self._check(frame_index)
        planes = []
        for subsampling, background, mover in zip((1, 2, 2), self._background, self._mover, strict=True):
            plane = background.copy()
            left = self._left_px(frame_index) // subsampling
            top = self._top_px // subsampling
            plane[top : top + mover.shape[0], left : left + mover.shape[1]] = mover
            planes.append(plane)
        return FramePlanes("yuv", tuple(planes), _COLOUR)

    def render(self, frame_index: int) -> Image:
        """The frame as uint8 RGB [height_px, width_px, 3]. Raises IndexError outside the scene."""
        y, u, v = self.planes(frame_index).planes
        packed = np.concatenate([plane.reshape(-1) for plane in (y, u, v)]).reshape(-1, self.width_px)
        return np.asarray(cv2.cvtColor(packed, cv2.COLOR_YUV2RGB_I420), np.uint8)

    @cached_property
    def _background(self) -> tuple[Plane, Plane, Plane]:
        picture = self._ground()
        draw_object(picture, self._square)
        return _i420(picture)

    @cached_property
    def _mover(self) -> tuple[Plane, Plane, Plane]:
        """The circle with its streak, on the ground of the rows that it moves along; those are even from end to end."""
        picture = self._ground()
        draw_object(picture, self._circle.shift(0, self._top_px))
        rows = slice(self._top_px, self._top_px + self._box_px[0])
        cols = slice(0, self._box_px[1])
        return _i420(np.ascontiguousarray(picture[rows, cols]))

    @property
    def _square(self) -> SceneObject:
        size_px = 0.18 * self.height_px
        return SceneObject("square", "blue", 0.76 * self.width_px, 0.78 * self.height_px, size_px)

    @property
    def _circle(self) -> SceneObject:
        """The moving circle, in its own box."""
        size_px = 0.24 * self.height_px
        return SceneObject("circle", "red", self._box_px[1] - 0.55 * size_px, self._box_px[0] / 2, size_px, "right")

    def _check(self, frame_index: int) -> None:
        if not 0 <= frame_index < self.frames:
            raise IndexError(f"scene {self.name} has frames 0..{self.frames - 1}, got {frame_index}")

    def _ground(self) -> Image:
        return gradient(self.width_px, self.height_px, *GROUND)

    @property
    def _top_px(self) -> int:
        return _even(0.15 * self.height_px)

    @property
    def _box_px(self) -> tuple[int, int]:
        """Height and width of the moving circle."""
        return _even(0.28 * self.height_px), _even(0.55 * self.height_px)

    def _left_px(self, frame_index: int) -> int:
        """From the left edge to the right one, and again."""
        way_px = self.width_px - self._box_px[1]
        return _even(SPEED * self.width_px * frame_index / self.fps % way_px)


def _even(value: float) -> int:
    """Rounded down to a position with a chroma sample."""
    return int(value) // 2 * 2


def _i420(picture: Image) -> tuple[Plane, Plane, Plane]:
    height, width = picture.shape[:2]
    planes = np.asarray(cv2.cvtColor(picture, cv2.COLOR_RGB2YUV_I420), np.uint8)
    chroma = planes[height:].reshape(2, height // 2, width // 2)
    return planes[:height].copy(), chroma[0].copy(), chroma[1].copy()


PACED_SCENES: dict[str, tuple[int, int]] = {
    f"paced-{height_px}p{fps}": (height_px, fps) for height_px in HEIGHTS_PX for fps in RATES
}
"""Name → height in pixels, frames a second."""


_NOISE_PLAY_PX = 128

Backdrop = Callable[[int, int], Image]
"""(width_px, height_px) → uint8 RGB [height_px, width_px, 3]."""

Words = Callable[[int, int], Sequence[tuple[str, Box]]]
"""(width_px, height_px) of a backdrop → each word on it, and its box."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A thing and its path: `path` holds (seconds into the shot, x, y), x and y as shares of width and height.

    Between two entries it moves straight and evenly; before the first and after the last it stands still.
    `size` is a share of the picture's height.
    """

    shape: Shape
    colour: str
    size: float
    path: tuple[tuple[float, float, float], ...]
    number: int | None = None

    def thing(self, seconds: float, width_px: int, height_px: int) -> SceneObject:
        """The thing as it stands `seconds` into the shot."""
        times = [entry[0] for entry in self.path]
        after = bisect.bisect_right(times, seconds)
        _, x, y = self.path[max(0, after - 1)]
        movement: Movement = "still"
        if 0 < after < len(self.path):
            start_s = times[after - 1]
            end_s = times[after]
            _, next_x, next_y = self.path[after]
            dx = next_x - x
            dy = next_y - y
            if dx != 0 and abs(dx) >= abs(dy):
                movement = "right" if dx > 0 else "left"
            elif dy != 0:
                movement = "down" if dy > 0 else "up"
            share = (seconds - start_s) / (end_s - start_s)
            x = x + share * dx
            y = y + share * dy
        size_px = self.size * height_px
        return SceneObject(self.shape, self.colour, x * width_px, y * height_px, size_px, movement, self.number)


@dataclass(frozen=True, slots=True)
class Shot:
    """Picture between two cuts. `pan_px` is the camera's way over the backdrop, pixels a frame; `words` stand on it."""

    seconds: float
    backdrop: Backdrop
    actors: tuple[Actor, ...] = ()
    pan_px: tuple[int, int] = (0, 0)
    words: Words | None = None


@dataclass(frozen=True)
class Scene:
    """A generated clip. The same name gives the same frames, bit for bit."""

    name: str
    width_px: int
    height_px: int
    fps: int
    shots: tuple[Shot, ...]
    noise_sigma: float = 0.0
    """Standard deviation of the sensor noise, of 255."""
    _backdrops: dict[int, Image] = field(default_factory=dict, repr=False, compare=False)
    _fields: list[npt.NDArray[np.int16]] = field(default_factory=list, repr=False, compare=False)

    @property
    def frames(self) -> int:
        return sum(round(shot.seconds * self.fps) for shot in self.shots)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Index of the first frame of every shot but the first."""
        starts = np.cumsum([round(shot.seconds * self.fps) for shot in self.shots])
        return tuple(int(start) for start in starts[:-1])

    @property
    def pixel_format(self) -> str:
        return "rgb24"

    def planes(self, frame_index: int) -> FramePlanes:
        """The frame's picture as a source gives it: new RGB planes. Raises IndexError outside the scene."""
        return FramePlanes("rgb", (self.render(frame_index),))

    def facts(self, frame_index: int) -> GroundTruth:
        """Return the ground truth of a frame. Raises IndexError outside the scene."""
        shot_index, frame_of_shot, things = self._things(frame_index)
        return GroundTruth.of(self.width_px, self.height_px, things, self._words(shot_index, frame_of_shot))

    def render(self, frame_index: int) -> Image:
        """The frame's picture: a new uint8 RGB [height_px, width_px, 3]. Raises IndexError outside the scene."""
        shot_index, frame_of_shot, things = self._things(frame_index)
        shot = self.shots[shot_index]
        if shot_index not in self._backdrops:
            self._backdrops[shot_index] = shot.backdrop(*self._backdrop_size_px(shot))
        backdrop = self._backdrops[shot_index]
        x0 = shot.pan_px[0] * frame_of_shot
        y0 = shot.pan_px[1] * frame_of_shot
        image = backdrop[y0 : y0 + self.height_px, x0 : x0 + self.width_px].copy()
        for thing in things:
            draw_object(image, thing)
        if self.noise_sigma:
            image = self._noisy(image, frame_index)
        return image

    def _noisy(self, image: Image, frame_index: int) -> Image:
        """The picture with sensor noise: a window, elsewhere in every frame, on one larger field of noise."""
        field_px = (self.height_px + _NOISE_PLAY_PX, self.width_px + _NOISE_PLAY_PX, 3)
        if not self._fields:
            noise = np.random.default_rng(0).normal(0, self.noise_sigma, field_px)
            self._fields.append(np.round(noise).astype(np.int16))
        y0, x0 = np.random.default_rng(frame_index).integers(0, _NOISE_PLAY_PX, 2)
        window = self._fields[0][y0 : y0 + self.height_px, x0 : x0 + self.width_px]
        return cv2.add(image, window, dtype=cv2.CV_8U)

    def _things(self, frame_index: int) -> tuple[int, int, list[SceneObject]]:
        if not 0 <= frame_index < self.frames:
            raise IndexError(f"scene {self.name} has frames 0..{self.frames - 1}, got {frame_index}")
        starts = (0, *self.cuts)
        shot_index = bisect.bisect_right(starts, frame_index) - 1
        shot = self.shots[shot_index]
        frame_of_shot = frame_index - starts[shot_index]
        drift_x = shot.pan_px[0] * frame_of_shot
        drift_y = shot.pan_px[1] * frame_of_shot
        things = []
        for actor in shot.actors:
            thing = actor.thing(frame_of_shot / self.fps, self.width_px, self.height_px)
            things.append(thing.shift(-drift_x, -drift_y))
        return shot_index, frame_of_shot, things

    def _words(self, shot_index: int, frame_of_shot: int) -> list[tuple[str, Box]]:
        shot = self.shots[shot_index]
        if shot.words is None:
            return []
        dx = shot.pan_px[0] * frame_of_shot
        dy = shot.pan_px[1] * frame_of_shot
        boxes = shot.words(*self._backdrop_size_px(shot))
        return [(word, (left - dx, top - dy, right - dx, bottom - dy)) for word, (left, top, right, bottom) in boxes]

    def _backdrop_size_px(self, shot: Shot) -> tuple[int, int]:
        last_frame = round(shot.seconds * self.fps) - 1
        return self.width_px + abs(shot.pan_px[0]) * last_frame, self.height_px + abs(shot.pan_px[1]) * last_frame
