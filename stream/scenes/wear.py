"""What light, lens, sensor and compression do to a picture. Images are uint8 RGB [H, W, 3]."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from stream.scenes.shapes import Box, Image
from stream.scenes.textures import grained

_UNIT = 128
"""A gain of 1 as it is written in 8 bits."""


@dataclass(frozen=True, slots=True)
class Light:
    """Light on a scene: its brightness, how much less reaches each corner, and how it grows from frame to frame."""

    level: float = 1.0
    corners: tuple[float, float, float, float] = (1.0, 1.0, 1.0, 1.0)
    step: float = 0.0

    @classmethod
    def random(cls, rng: np.random.Generator, frames: int) -> Light:
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
class Wear:
    """What lens, sensor and compression add: blur (pixels), grain (levels), JPEG quality; 0 for none of it."""

    blur_px: float = 0.0
    grain: float = 0.0
    jpeg_quality: int = 0

    @classmethod
    def random(cls, rng: np.random.Generator) -> Wear:
        """Grain more often than not, blur in a quarter of the clips, compression in a seventh."""
        blur_px = float(rng.uniform(0.4, 0.9)) if rng.random() < 0.25 else 0.0
        grain = float(rng.uniform(1, 6)) if rng.random() < 0.6 else 0.0
        return cls(blur_px, grain, int(rng.integers(45, 95)) if rng.random() < 0.15 else 0)

    def of(self, rng: np.random.Generator, image: Image) -> Image:
        """The picture as the camera hands it on; the grain differs from call to call."""
        if self.blur_px:
            image = np.asarray(cv2.GaussianBlur(image, (5, 5), self.blur_px), np.uint8)
        if self.grain:
            image = grained(rng, image, self.grain)
        if self.jpeg_quality:
            coded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, self.jpeg_quality])[1]
            image = np.asarray(cv2.imdecode(coded, cv2.IMREAD_COLOR), np.uint8)
        return image


def shadow(image: Image, box_px: Box, depth: float = 0.35) -> None:
    """Darkens softly what lies under and to the lower right of a box."""
    left, top, right, bottom = box_px
    shift = 0.12 * (bottom - top)
    x0, y0 = max(0, round(left - shift)), max(0, round(top - shift))
    x1, y1 = min(image.shape[1], round(right + 3 * shift)), min(image.shape[0], round(bottom + 3 * shift))
    if x0 >= x1 or y0 >= y1:
        return
    below = image[y0:y1, x0:x1]
    across = _bump((np.arange(x0, x1) - (left + right) / 2 - shift) / (0.62 * (right - left)))
    down = _bump((np.arange(y0, y1) - (top + bottom) / 2 - shift) / (0.62 * (bottom - top)))
    share = 1 - depth * down[:, None, None] * across[None, :, None]
    image[y0:y1, x0:x1] = (below * share).astype(np.uint8)


def _bump(offset: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """1 in the middle, 0 from ±1 outwards."""
    return ((1 - np.clip(offset**2, 0, 1)) ** 2).astype(np.float32)
