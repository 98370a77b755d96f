"""Grounds of clips, their light, and degradation by lens, sensor and compression."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from stream.scenes.drawing import Image
from stream.scenes.textures import (
    add_grain,
    clouds,
    fine_print,
    mix_colours,
    muted_colour,
    octaves,
    plain_surface,
    reduced_size,
    wall,
)


def haze(rng: np.random.Generator, width_px: int, height_px: int) -> Image:
    """As clouds, in two tones that hardly differ."""
    width, height = reduced_size(width_px, height_px)
    red, green, blue = muted_colour(rng)
    share = np.clip(0.5 + 0.28 * octaves(rng, width, height, int(rng.integers(2, 5))), 0, 1)
    return mix_colours(share, (red - 7, green - 7, blue - 7), (red + 7, green + 7, blue + 7), width_px, height_px)


def horizon(rng: np.random.Generator, width_px: int, height_px: int) -> Image:
    """Light above, dark below, parted by an uneven line."""
    width, height = reduced_size(width_px, height_px)
    line = height * rng.uniform(0.35, 0.7) + 0.06 * height * octaves(rng, width, 16, 1)[:1]
    above = np.arange(height, dtype=np.float32)[:, None] < line
    noise = 0.15 * octaves(rng, width, height, 3)
    shares = np.where(above, 0.15, 0.8).astype(np.float32) + noise
    return mix_colours(np.clip(shares, 0, 1), muted_colour(rng), muted_colour(rng), width_px, height_px)


def bokeh(rng: np.random.Generator, width_px: int, height_px: int) -> Image:
    """Large blurred disks, as lights out of focus."""
    width, height = reduced_size(width_px, height_px)
    small = np.empty((height, width, 3), np.uint8)
    small[:] = muted_colour(rng)
    for _ in range(int(rng.integers(6, 16))):
        centre = (int(rng.integers(width)), int(rng.integers(height)))
        cv2.circle(small, centre, int(rng.integers(5, 24)), muted_colour(rng), cv2.FILLED, cv2.LINE_AA)
    small = np.asarray(cv2.GaussianBlur(small, (0, 0), float(rng.uniform(1.5, 4))), np.uint8)
    return np.asarray(cv2.resize(small, (width_px, height_px), interpolation=cv2.INTER_LINEAR), np.uint8)


GROUNDS = (plain_surface, clouds, clouds, horizon, wall, bokeh, fine_print)
CALM_GROUNDS = (plain_surface, haze)
"""Those on which even faint text can be read."""

_UNIT = 128
"""A gain of 1 as it is written in 8 bits."""


@dataclass(frozen=True, slots=True)
class Lighting:
    """Lighting of a scene: its brightness, how much less reaches each corner, and how it grows from frame to frame."""

    level: float = 1.0
    corners: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    step: float = 0.0

    @classmethod
    def random(cls, rng: np.random.Generator, frames: int) -> Lighting:
        """Uneven light, which in some clips grows or falls by up to a quarter."""
        corners = rng.uniform(0.75, 1.1, 4)
        change = float(rng.uniform(-0.25, 0.25)) if frames > 1 and rng.random() < 0.4 else 0.0
        return cls(float(rng.uniform(0.85, 1.08)), tuple(corners.tolist()), change / max(1, frames - 1))

    def on(self, image: Image, frame: int) -> Image:
        """The picture in this light."""
        height, width = image.shape[:2]
        gain = np.asarray(self.corners, np.float32).reshape(2, 2) * (self.level * (1 + self.step * frame) * _UNIT)
        small = cv2.resize(np.clip(gain, 0, 255), (16, 16), interpolation=cv2.INTER_LINEAR).astype(np.uint8)
        spread = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
        return np.asarray(cv2.multiply(image, cv2.merge([spread] * 3), scale=1 / _UNIT), np.uint8)


@dataclass(frozen=True, slots=True)
class Degradation:
    """Degradation by lens, sensor and compression: blur (pixels), grain (levels), JPEG quality; 0 for none of it."""

    blur_px: float = 0.0
    grain: float = 0.0
    jpeg_quality: int = 0

    @classmethod
    def random(cls, rng: np.random.Generator) -> Degradation:
        """Grain more often than not, blur in a quarter of the clips, compression in a seventh."""
        blur_px = float(rng.uniform(0.4, 0.9)) if rng.random() < 0.25 else 0.0
        grain = float(rng.uniform(1, 6)) if rng.random() < 0.6 else 0.0
        return cls(blur_px, grain, int(rng.integers(45, 95)) if rng.random() < 0.15 else 0)

    def of(self, rng: np.random.Generator, image: Image) -> Image:
        """The picture as the camera hands it on; the grain differs from call to call."""
        if self.blur_px:
            image = np.asarray(cv2.GaussianBlur(image, (5, 5), self.blur_px), np.uint8)
        if self.grain:
            image = add_grain(rng, image, self.grain)
        if self.jpeg_quality:
            coded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, self.jpeg_quality])[1]
            image = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR), np.uint8)
        return image
