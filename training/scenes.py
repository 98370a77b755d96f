"""Random clips with ground truth: one to four frames of things on grounds that look photographed.

Everything follows from the generator that is passed in. `clip_rng` makes generators of which none of training's is ever
one of the tests'.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from arr_coc.errors import OptionError
from stream.scenes.drawing import Image
from stream.scenes.textures import CALM_GROUNDS, GROUNDS, Light, Wear, clutter, grained, shadow
from training.cast import Player
from training.casting import ClipOptions, one, random_cast
from training.fonts import Split
from training.patterns import Void, pattern
from training.truth import Clip, Seen

SIZES_PX: tuple[tuple[int, int], ...] = (
    *((256, 256),) * 4,
    *((512, 512),) * 4,
    (512, 256),
    (384, 256),
    (640, 384),
    (768, 512),
    (1024, 1024),
)
"""Sizes to draw from: 256x256 and 512x512 mostly."""

MOST_FRAMES = 4
_STREAMS: dict[Split, int] = {"train": 1, "test": 2}
_DEFAULTS = ClipOptions()
_SHADOW_SHARE = 0.3
_DRIFT_PX = 5


def clip_rng(split: Split, number: int) -> np.random.Generator:
    """The generator of a split's clip of that number, from 0 up. No two of them are alike."""
    if number < 0:
        raise OptionError(f"clips are numbered from 0, got {number}")
    return np.random.default_rng([_STREAMS[split], number])


@dataclass(frozen=True)
class Plan:
    """A clip before it is drawn: what plays in it, and how its ground, light and camera are to be made."""

    size_px: tuple[int, int]
    times_s: tuple[float, ...]
    cast: tuple[Player, ...]
    options: ClipOptions
    void: Void | None
    """The pattern that fills it, where it shows nothing else."""
    drift_px: tuple[int, int]
    seed: int

    @property
    def things(self) -> tuple[tuple[Seen, ...], ...]:
        """What is to be seen in each frame."""
        return tuple(self._seen(frame) for frame in range(len(self.times_s)))

    def facts(self) -> Clip:
        """The clip with blank frames, which cost nothing: enough to ask about."""
        width, height = self.size_px
        blank = np.broadcast_to(np.uint8(0), (height, width, 3))
        return Clip((blank,) * len(self.times_s), self.times_s, self.things)

    def draw(self) -> Clip:
        """The clip."""
        rng = np.random.default_rng(self.seed)
        last = len(self.times_s) - 1
        around = abs(self.drift_px[0]) * last, abs(self.drift_px[1]) * last
        ground = self._ground(rng, around)
        light = Light.random(rng, last + 1) if self.options.worn else Light()
        wear = Wear.random(rng) if self.options.worn else Wear()
        shaded = rng.random() < _SHADOW_SHARE
        frames = []
        for frame in range(last + 1):
            image = self._frame(ground, frame, around, shaded)
            frames.append(wear.of(rng, light.on(image, frame)))
        return Clip(tuple(frames), self.times_s, self.things)

    def camera_px(self, frame: int) -> tuple[int, int]:
        """How far the camera has gone by a frame."""
        return self.drift_px[0] * frame, self.drift_px[1] * frame

    def _ground(self, rng: np.random.Generator, around: tuple[int, int]) -> Image:
        """What lies behind the players, with room around it for the camera's way."""
        width, height = self.size_px[0] + around[0], self.size_px[1] + around[1]
        if self.void is not None:
            return pattern(rng, self.void.name, self.void.rgb, (width, height))
        calm = any(player.backing == "faint" for player in self.cast)
        ground = one(rng, CALM_GROUNDS if calm else GROUNDS)(rng, width, height)
        ground = grained(rng, ground, float(rng.uniform(0, 2 if calm else 8)))
        if self.options.clutter:
            self._clutter(rng, ground, around)
        return ground

    def _seen(self, frame: int) -> tuple[Seen, ...]:
        if self.void is not None:
            width, height = self.size_px
            return (Seen(self.void.name, self.void.colour, (0.0, 0.0, float(width), float(height))),)
        seen = (player.seen(frame, self.size_px, self.camera_px(frame)) for player in self.cast)
        return tuple(thing for thing in seen if thing is not None)

    def _frame(self, ground: Image, frame: int, around: tuple[int, int], shaded: bool) -> Image:
        width, height = self.size_px
        camera = self.camera_px(frame)
        x, y = (c if step > 0 else room + c for c, step, room in zip(camera, self.drift_px, around, strict=True))
        image = ground[y : y + height, x : x + width].copy()
        for player in self.cast:
            if shaded and player.there(frame) and (not player.text or player.backing == "plate"):
                shadow(image, player.box_px(frame, camera))
        for player in self.cast:
            player.draw(image, frame, camera)
        return image

    def _clutter(self, rng: np.random.Generator, ground: Image, around: tuple[int, int]) -> None:
        """Bits of clutter where no player ever is. In the ground's pixels the scene begins at `around` or at 0."""
        shift = [0 if step > 0 else room for step, room in zip(self.drift_px, around, strict=True)]
        frames = len(self.times_s)
        taken = np.array([player.swept_px(frames, 4) for player in self.cast] or np.empty((0, 4)))
        most = self.options.clutter * ground.shape[0] * ground.shape[1] / 64**2
        clutter(rng, ground, int(rng.uniform(0, most)), taken + np.array([*shift, *shift]))


def random_plan(
    rng: np.random.Generator,
    size_px: tuple[int, int],
    frames: int = 1,
    split: Split = "train",
    options: ClipOptions = _DEFAULTS,
) -> Plan:
    """A random clip of (width, height) pixels, before it is drawn. Raises OptionError for more than four frames."""
    if not 1 <= frames <= MOST_FRAMES:
        raise OptionError(f"a clip has 1 to {MOST_FRAMES} frames, got {frames}")
    times_s = tuple(round(float(time), 1) for time in np.cumsum(rng.uniform(0.4, 0.7, frames)))
    drift = (0, 0)
    if frames > 1 and rng.random() < options.drift_share:
        drift = (int(rng.integers(-_DRIFT_PX, _DRIFT_PX + 1)), int(rng.integers(-_DRIFT_PX, _DRIFT_PX + 1)))
    around = [abs(step) * (frames - 1) for step in drift]
    if rng.random() < options.void_share:
        return Plan(size_px, times_s, (), options, Void.random(rng), drift, int(rng.integers(2**62)))
    cast = random_cast(rng, (size_px[0] - around[0], size_px[1] - around[1]), frames, split, options)
    corner = [max(0, step) * (frames - 1) for step in drift]
    cast = [player.placed(player.x_px + corner[0], player.y_px + corner[1]) for player in cast]
    return Plan(size_px, times_s, tuple(cast), options, None, drift, int(rng.integers(2**62)))


def random_clip(
    rng: np.random.Generator,
    size_px: tuple[int, int],
    frames: int = 1,
    split: Split = "train",
    options: ClipOptions = _DEFAULTS,
) -> Clip:
    """A random clip of (width, height) pixels, drawn. Fonts and words are the split's. Raises as `random_plan`."""
    return random_plan(rng, size_px, frames, split, options).draw()
