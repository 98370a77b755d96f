"""Random clips, crowds, patterns.

Everything follows from the generator that is passed in. `clip_rng` makes generators of which none of training's is ever
one of the tests'.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from arr_coc.errors import OptionError
from stream.scenes.drawing import COLOURS, RGB, SHAPE_NAMES, Image
from stream.scenes.textures import (
    Field,
    add_grain,
    clutter,
    mix_colours,
    octaves,
    shadow,
)
from training.clips.cast import (
    COLOUR_NAMES,
    ClipOptions,
    Player,
    faint,
    one,
    random_cast,
    shape_player,
    text_player,
    tinted,
)
from training.clips.fonts import Split, random_number, random_word
from training.clips.grounds import CALM_GROUNDS, GROUNDS, Degradation, Lighting
from training.clips.truth import Clip, Seen

PATTERNS: tuple[str, ...] = ("noise", "marble", "stripes", "checks", "waves")


COLOURS_OF_PATTERNS: tuple[str, ...] = tuple(name for name in COLOURS if name not in ("white", "black"))
"""Those that have darker tones of the same name."""


@dataclass(frozen=True, slots=True)
class Void:
    """A picture of nothing but a pattern."""

    name: str
    colour: str
    rgb: RGB

    @classmethod
    def random(cls, rng: np.random.Generator) -> Void:
        colour = one(rng, COLOURS_OF_PATTERNS)
        return cls(one(rng, PATTERNS), colour, tinted(rng, colour))


def pattern(rng: np.random.Generator, name: str, rgb: RGB, size_px: tuple[int, int]) -> Image:
    """Return a picture filled with a pattern, from a dark to the full tone of a colour.

    Args:
        rng: Source of chance.
        name: One of `PATTERNS`.
        rgb: The colour.
        size_px: (width, height) of the picture.
    """
    share = _share(rng, name, *size_px)
    dark = tuple(round(0.45 * level + 0.1 * 128) for level in rgb)
    return mix_colours(share, (dark[0], dark[1], dark[2]), rgb, *size_px)


def _share(rng: np.random.Generator, name: str, width: int, height: int) -> Field:
    if name == "noise":
        small = rng.random((height // 3 + 1, width // 3 + 1), dtype=np.float32)
        return np.asarray(cv2.resize(small, (width, height), interpolation=cv2.INTER_NEAREST), np.float32)
    turn, period = rng.uniform(0, np.pi), rng.uniform(18, 44)
    x, y = np.arange(width, dtype=np.float32)[None], np.arange(height, dtype=np.float32)[:, None]
    along = (x * np.cos(turn) + y * np.sin(turn)) * np.float32(2 * np.pi / period)
    across = (y * np.cos(turn) - x * np.sin(turn)) * np.float32(2 * np.pi / period)
    if name == "stripes":
        return np.clip(0.5 + 2 * np.sin(along), 0, 1)
    if name == "checks":
        return np.clip(0.5 + 3 * np.sin(along) * np.sin(across), 0, 1)
    if name == "waves":
        return np.clip(0.5 + 2 * np.sin(along + 1.6 * np.sin(across * 0.7)), 0, 1)
    return 0.5 + 0.5 * np.sin(along * 0.4 + 3 * octaves(rng, width, height, 3))


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
_PAN_STEPS_PX = (8, 16)


def clip_rng(split: Split, number: int) -> np.random.Generator:
    """The generator of a split's clip of a number, from 0 up. No two of them are alike."""
    if number < 0:
        raise OptionError(f"clips are numbered from 0, got {number}")
    return np.random.default_rng([_STREAMS[split], number])


@dataclass(frozen=True)
class ClipPlan:
    """A clip before it is drawn: what plays in it, and how its ground, light and camera are to be made."""

    size_px: tuple[int, int]
    times_s: tuple[float, ...]
    cast: tuple[Player, ...]
    options: ClipOptions
    void: Void | None
    """The pattern that fills it, if it shows nothing else."""
    drift_px: tuple[int, int]
    seed: int

    @property
    def things(self) -> tuple[tuple[Seen, ...], ...]:
        """Visible things in each frame."""
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
        light = Lighting.random(rng, last + 1) if self.options.worn else Lighting()
        wear = Degradation.random(rng) if self.options.worn else Degradation()
        shaded = rng.random() < _SHADOW_SHARE
        frames = []
        for frame in range(last + 1):
            image = self._frame(ground, frame, around, shaded)
            frames.append(wear.of(rng, light.on(image, frame)))
        return Clip(tuple(frames), self.times_s, self.things)

    def camera_px(self, frame: int) -> tuple[int, int]:
        """Way of the camera up to a frame."""
        return self.drift_px[0] * frame, self.drift_px[1] * frame

    def _ground(self, rng: np.random.Generator, around: tuple[int, int]) -> Image:
        """The ground behind the players, with room around it for the camera's way."""
        width, height = self.size_px[0] + around[0], self.size_px[1] + around[1]
        if self.void is not None:
            return pattern(rng, self.void.name, self.void.rgb, (width, height))
        calm = any(player.backing == "faint" for player in self.cast)
        ground = one(rng, CALM_GROUNDS if calm else GROUNDS)(rng, width, height)
        ground = add_grain(rng, ground, float(rng.uniform(0, 2 if calm else 8)))
        if self.options.clutter:
            self._clutter(rng, ground, around)
        return ground

    def _seen(self, frame: int) -> tuple[Seen, ...]:
        if self.void is not None:
            width, height = self.size_px
            return (Seen(self.void.name, self.void.colour, (0.0, 0.0, float(width), float(height))),)
        things = (player.seen(frame, self.size_px, self.camera_px(frame)) for player in self.cast)
        return tuple(thing for thing in things if thing is not None)

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
        """Bits of clutter, never behind a player. In the ground's pixels the scene begins at `around` or at 0."""
        shift = [0 if step > 0 else room for step, room in zip(self.drift_px, around, strict=True)]
        frames = len(self.times_s)
        obstacles = np.array([player.swept_px(frames, 4) for player in self.cast] or np.empty((0, 4)))
        most = self.options.clutter * ground.shape[0] * ground.shape[1] / 64**2
        clutter(rng, ground, int(rng.uniform(0, most)), obstacles + np.array([*shift, *shift]))


def random_plan(
    rng: np.random.Generator,
    size_px: tuple[int, int],
    frames: int = 1,
    split: Split = "train",
    options: ClipOptions = _DEFAULTS,
) -> ClipPlan:
    """Return a random clip before it is drawn.

    Args:
        rng: Source of chance.
        size_px: (width, height) of the frames.
        frames: Number of frames, one to four.
        split: Split of fonts and words.
        options: Shares of kinds, events and movement.

    Raises:
        OptionError: There are more than four frames.
    """
    if not 1 <= frames <= MOST_FRAMES:
        raise OptionError(f"a clip has 1 to {MOST_FRAMES} frames, got {frames}")
    times_s = tuple(round(float(time), 1) for time in np.cumsum(rng.uniform(0.4, 0.7, frames)))
    drift = (0, 0)
    if frames > 1 and rng.random() < options.drift_share:
        drift = (int(rng.integers(-_DRIFT_PX, _DRIFT_PX + 1)), int(rng.integers(-_DRIFT_PX, _DRIFT_PX + 1)))
    around = [abs(step) * (frames - 1) for step in drift]
    if rng.random() < options.void_share:
        return ClipPlan(size_px, times_s, (), options, Void.random(rng), drift, int(rng.integers(2**62)))
    cast = random_cast(rng, (size_px[0] - around[0], size_px[1] - around[1]), frames, split, options)
    corner = [max(0, step) * (frames - 1) for step in drift]
    cast = [player.placed(player.x_px + corner[0], player.y_px + corner[1]) for player in cast]
    return ClipPlan(size_px, times_s, tuple(cast), options, None, drift, int(rng.integers(2**62)))


def page(
    rng: np.random.Generator, size_px: tuple[int, int], frames: int, options: ClipOptions, split: Split
) -> ClipPlan:
    """Things all over what the camera sees while it goes left, right, up or down.

    Args:
        rng: Source of the draws.
        size_px: (width, height) of a frame.
        frames: Number of frames.
        options: Number and kinds of things.
        split: Split of fonts and words.
    """
    step = int(rng.integers(_PAN_STEPS_PX[0], _PAN_STEPS_PX[1] + 1)) * one(rng, (-1, 1))
    drift = (step, 0) if rng.random() < 0.7 else (0, step)
    way = [part * (frames - 1) for part in drift]
    page_px = (size_px[0] + abs(way[0]), size_px[1] + abs(way[1]))
    cast = random_cast(rng, page_px, 1, split, options)
    cast = [player.placed(player.x_px + min(0, way[0]), player.y_px + min(0, way[1])) for player in cast]
    times = tuple(round(0.1 * frame, 1) for frame in range(frames))
    return ClipPlan(size_px, times, tuple(cast), options, None, drift, int(rng.integers(2**62)))


def random_clip(
    rng: np.random.Generator,
    size_px: tuple[int, int],
    frames: int = 1,
    split: Split = "train",
    options: ClipOptions = _DEFAULTS,
) -> Clip:
    """Return a random clip, drawn.

    Args:
        rng: Source of chance.
        size_px: (width, height) of the frames.
        frames: Number of frames, one to four.
        split: Split of fonts and words.
        options: Shares of kinds, events and movement.

    Raises:
        OptionError: There are more than four frames.
    """
    return random_plan(rng, size_px, frames, split, options).draw()


_OPTIONS = ClipOptions(clutter=0.0)
_TEXT_ROWS = 0.6
_FAINT_SHARE = 0.1
_GAPS_PX = (2.0, 14.0)
_WORD_SHARE = 0.7


def random_crowd(rng: np.random.Generator, size_px: tuple[int, int]) -> ClipPlan:
    """Rows of words and numbers, and rows of shapes, in training's fonts, over a picture of (width, height) pixels."""
    width_px, height_px = size_px
    cast: list[Player] = []
    top = float(rng.uniform(*_GAPS_PX))
    while top < height_px:
        text = rng.random() < _TEXT_ROWS
        row: list[Player] = []
        left = float(rng.uniform(*_GAPS_PX))
        while left < width_px:
            player = _text(rng) if text else shape_player(rng, one(rng, SHAPE_NAMES), one(rng, COLOUR_NAMES), _OPTIONS)
            x0, y0, x1, _ = player.box_px(0)
            row.append(player.placed(left - x0, top - y0))
            left += x1 - x0 + float(rng.uniform(*_GAPS_PX))
        bottom = max(player.box_px(0)[3] for player in row)
        cast += row
        top = bottom + float(rng.uniform(*_GAPS_PX))
    return ClipPlan(size_px, (0.0,), tuple(cast), _OPTIONS, None, (0, 0), int(rng.integers(2**62)))


def _text(rng: np.random.Generator) -> Player:
    text = random_word(rng, "train") if rng.random() < _WORD_SHARE else random_number(rng, "train")
    player = text_player(rng, text, one(rng, COLOUR_NAMES), "train", _OPTIONS)
    return faint(rng, player) if rng.random() < _FAINT_SHARE else player
