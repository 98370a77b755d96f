"""Abstract pictures: nothing but a pattern in one colour."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from stream.scenes.drawing import COLOURS, RGB, Image
from stream.scenes.textures import Field, mixed, octaves
from training.casting import one, tinted

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
    """A picture of (width, height) pixels filled with one of `PATTERNS`, from a dark to the full tone of a colour."""
    share = _share(rng, name, *size_px)
    dark = tuple(round(0.45 * level + 0.1 * 128) for level in rgb)
    return mixed(share, (dark[0], dark[1], dark[2]), rgb, *size_px)


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
