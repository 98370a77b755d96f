"""Grounds, lettering, grain and shadows.

Everything large is drawn at a quarter of the size and enlarged; the grain comes out of one field made once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from stream.scenes.drawing import RGB, Box, Image

Mask = npt.NDArray[np.uint8]
"""Coverage, uint8 [height, width], 255 for ink."""

_CAPITALS_PX = 21
"""Height of capitals in OpenCV's fonts at scale 1: that of the grid on which Hershey's were drawn."""


@dataclass(frozen=True, slots=True)
class Glyph:
    """One character. Its mask's top left lies at (`left_px`, `top_px`) from the pen, which stands on the baseline."""

    mask: Mask
    left_px: int
    top_px: int
    advance_px: float


Face = Callable[[str, int], Glyph]
"""(character, height of capitals in pixels) → glyph."""


@dataclass(frozen=True, slots=True)
class TextMask:
    """A text as one mask, cut to its ink; `boxes` are those of its characters within the mask."""

    mask: Mask
    boxes: tuple[Box, ...]

    @property
    def size_px(self) -> tuple[int, int]:
        """(width, height)."""
        return self.mask.shape[1], self.mask.shape[0]


def set_text(face: Face, text: str, height_px: int, spacing_px: float = 0.0) -> TextMask:
    """Set a text in one line.

    Args:
        face: Typeface.
        text: Characters to set; not empty.
        height_px: Height of the capitals, in pixels.
        spacing_px: Space between characters beyond the face's own, in pixels.
    """
    pen_px = 0.0
    spots: list[tuple[Glyph, int]] = []
    for character in text:
        glyph = face(character, height_px)
        spots.append((glyph, round(pen_px) + glyph.left_px))
        pen_px += glyph.advance_px + spacing_px
    left = min(x for _, x in spots)
    right = max(x + glyph.mask.shape[1] for glyph, x in spots)
    top = min(glyph.top_px for glyph, _ in spots)
    bottom = max(glyph.top_px + glyph.mask.shape[0] for glyph, _ in spots)
    mask = np.zeros((bottom - top, right - left), np.uint8)
    boxes = []
    for glyph, x in spots:
        height, width = glyph.mask.shape
        x0 = x - left
        y0 = glyph.top_px - top
        window = mask[y0 : y0 + height, x0 : x0 + width]
        np.maximum(window, glyph.mask, out=window)
        boxes.append((float(x0), float(y0), float(x0 + width), float(y0 + height)))
    return TextMask(mask, tuple(boxes))


def stamp(image: Image, mask: Mask, left_px: int, top_px: int, rgb: RGB, opacity: float = 1.0) -> None:
    """Paint a colour through a mask.

    Args:
        image: uint8 RGB [H, W, 3], changed in place; what lies outside is cut off.
        mask: Coverage of each pixel, uint8 [h, w]: 255 is the full colour.
        left_px: Column of the mask's left edge in the image.
        top_px: Row of the mask's upper edge in the image.
        rgb: Colour.
        opacity: Share of the colour where the mask is 255.
    """
    height, width = mask.shape
    x0 = max(0, left_px)
    y0 = max(0, top_px)
    x1 = min(image.shape[1], left_px + width)
    y1 = min(image.shape[0], top_px + height)
    if x0 >= x1 or y0 >= y1:
        return
    share = mask[y0 - top_px : y1 - top_px, x0 - left_px : x1 - left_px, None] * np.float32(opacity / 255)
    below = image[y0:y1, x0:x1]
    image[y0:y1, x0:x1] = (below + share * (np.asarray(rgb, np.float32) - below) + 0.5).astype(np.uint8)


@functools.cache
def opencv_face(font: int, weight: float = 0.12) -> Face:
    """One of OpenCV's own fonts (cv2.FONT_HERSHEY_…) as a face, about `height_px` high.

    Its strokes are `weight` of the capitals' height thick if OpenCV draws strokes; version 5 has outlines instead.
    """

    @functools.lru_cache(maxsize=4096)
    def face(character: str, height_px: int) -> Glyph:
        scale = height_px / _CAPITALS_PX
        thickness = max(1, round(weight * height_px))
        (width_px, _), _ = cv2.getTextSize(character, font, scale, thickness)
        canvas = np.zeros((3 * height_px, width_px + 2 * height_px), np.uint8)
        pen = (height_px, 2 * height_px)
        cv2.putText(canvas, character, pen, font, scale, 255, thickness, cv2.LINE_AA)
        x, y, width, height = cv2.boundingRect(canvas)
        return Glyph(canvas[y : y + height, x : x + width].copy(), x - pen[0], y - pen[1], float(width_px))

    return face


_SHRINK = 4
_GRAIN_PX = 1088
"""Side of the field of grain; a picture takes a window of it."""

Field = npt.NDArray[np.float32]


def octaves(rng: np.random.Generator, width: int, height: int, coarsest: int = 2) -> Field:
    """Return value noise: four octaves of halving size and weight (Perlin's turbulence, with random values).

    Args:
        rng: Source of the noise.
        width: Width of the field.
        height: Height of the field.
        coarsest: Cells of the coarsest octave along the shorter side.

    Returns:
        float32 [height, width] with a standard deviation near 1.
    """
    total = np.zeros((height, width), np.float32)
    for octave in range(4):
        cells = coarsest << octave
        step = max(1.0, min(width, height) / cells)
        shape = (int(height / step) + 2, int(width / step) + 2)
        values = rng.standard_normal(shape, dtype=np.float32) * 0.6**octave
        total += cv2.resize(values, (width, height), interpolation=cv2.INTER_CUBIC)
    return total


def muted_colour(rng: np.random.Generator) -> RGB:
    """A dull colour of middle brightness, from which every named colour stands out."""
    level = rng.integers(78, 182)
    red, green, blue = (int(level + rng.integers(-20, 21)) for _ in range(3))
    return red, green, blue


def mix_colours(share: Field, first: RGB, second: RGB, width_px: int, height_px: int) -> Image:
    """Mix two colours by a field of shares, and enlarge the image.

    Args:
        share: Share of the second colour, float32 [h, w] in [0, 1].
        first: Colour for a share of 0.
        second: Colour for a share of 1.
        width_px: Width of the result, in pixels.
        height_px: Height of the result, in pixels.

    Returns:
        uint8 RGB [height_px, width_px, 3].
    """
    start = np.asarray(first, np.float32)
    end = np.asarray(second, np.float32)
    small = (start + share[..., None] * (end - start)).astype(np.uint8)
    return np.asarray(cv2.resize(small, (width_px, height_px), interpolation=cv2.INTER_LINEAR), np.uint8)


def clouds(rng: np.random.Generator, width_px: int, height_px: int) -> Image:
    """Noise between two dull colours, upon a slope of brightness."""
    width, height = reduced_size(width_px, height_px)
    noise = octaves(rng, width, height, int(rng.integers(2, 5)))
    share = 0.5 + 0.28 * noise + _slope(rng, width, height)
    return mix_colours(np.clip(share, 0, 1), muted_colour(rng), muted_colour(rng), width_px, height_px)


def wall(rng: np.random.Generator, width_px: int, height_px: int) -> Image:
    """Bricks or boards: uneven fields between thin darker joints."""
    image = clouds(rng, width_px, height_px)
    brick = (int(rng.integers(36, 90)), int(rng.integers(18, 44)))
    joint = muted_colour(rng)
    for row, top in enumerate(range(int(rng.integers(brick[1])), height_px, brick[1])):
        cv2.line(image, (0, top), (width_px, top), joint, 1)
        for left in range(row % 2 * brick[0] // 2, width_px, brick[0]):
            cv2.line(image, (left, top), (left, min(height_px, top + brick[1])), joint, 1)
    return image


def plain_surface(rng: np.random.Generator, width_px: int, height_px: int) -> Image:
    """One colour, or two along a slope."""
    width, height = reduced_size(width_px, height_px)
    share = np.clip(0.5 + 2 * _slope(rng, width, height), 0, 1)
    first = muted_colour(rng)
    return mix_colours(share, first, first if rng.random() < 0.3 else muted_colour(rng), width_px, height_px)


def fine_print(rng: np.random.Generator, width_px: int, height_px: int) -> Image:
    """Unreadably small print, on paper of uneven tone: short bars on ruled lines."""
    image = plain_surface(rng, width_px, height_px)
    line_px = int(rng.integers(8, 20))
    ink = muted_colour(rng)
    opacity = float(rng.uniform(0.2, 0.5))
    mask = np.zeros((height_px, width_px), np.uint8)
    for top in range(line_px // 2, height_px, line_px):
        ends = np.cumsum(rng.integers(line_px // 2, 3 * line_px, size=2 * width_px // line_px + 2))
        for left, right in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            mask[top : top + max(1, line_px // 3), left : right - line_px // 2] = 255
    stamp(image, mask, 0, 0, ink, opacity)
    return image


def add_grain(rng: np.random.Generator, image: Image, sigma: float) -> Image:
    """Add grain to an image.

    Args:
        rng: Chooses the part of the grain's field.
        image: uint8 RGB [H, W, 3].
        sigma: Standard deviation of the grain, in levels of 255; the nearest of `GRAINS` is used.

    Returns:
        A new image of the same shape; `image` itself if the nearest grain is 0.
    """
    height, width = image.shape[:2]
    level = min(GRAINS, key=lambda grain: abs(grain - sigma))
    if not level:
        return image
    field = _grain(level)
    if max(height, width) >= _GRAIN_PX:
        field = np.tile(field, (height // _GRAIN_PX + 2, width // _GRAIN_PX + 2, 1))
    y, x = (int(rng.integers(extent - side)) for extent, side in zip(field.shape, (height, width), strict=False))
    window = field[y : y + height, x : x + width]
    return np.asarray(cv2.add(image, window, dtype=cv2.CV_8U), np.uint8)


GRAINS = (0, 1, 2, 3, 4, 6, 8)


@functools.cache
def _grain(level: int) -> npt.NDArray[np.int8]:
    """Noise int8 [side, side, 3], half of its variance common to the three channels."""
    noise: npt.NDArray[np.int8] = np.clip(np.round(_unit_grain() * level), -127, 127).astype(np.int8)
    return noise


@functools.cache
def _unit_grain() -> Field:
    rng = np.random.default_rng(0)
    common = rng.standard_normal((_GRAIN_PX, _GRAIN_PX, 1), dtype=np.float32)
    single = rng.standard_normal((_GRAIN_PX, _GRAIN_PX, 3), dtype=np.float32)
    return (common + single) * np.float32(0.5**0.5)


def clutter(rng: np.random.Generator, image: Image, count: int, boxes: npt.NDArray[np.float64]) -> None:
    """Draw strokes, bars and specks in dull colours, none of which is a thing.

    Args:
        rng: Source of the shapes.
        image: uint8 RGB [H, W, 3], changed in place.
        count: Number of attempts; those that meet a box draw nothing.
        boxes: Boxes to leave free, float64 [N, 4]: left, top, right and bottom, in pixels.
    """
    height, width = image.shape[:2]
    for _ in range(count):
        x = int(rng.integers(width))
        y = int(rng.integers(height))
        dx = int(rng.integers(-26, 27))
        dy = int(rng.integers(-26, 27))
        left = min(x, x + dx) - 4
        top = min(y, y + dy) - 4
        right = max(x, x + dx) + 4
        bottom = max(y, y + dy) + 4
        meets = (boxes[:, 0] < right) & (boxes[:, 2] > left) & (boxes[:, 1] < bottom) & (boxes[:, 3] > top)
        if meets.any():
            continue
        kind = rng.random()
        if kind < 0.45:
            cv2.line(image, (x, y), (x + dx, y + dy), muted_colour(rng), int(rng.integers(1, 4)), cv2.LINE_AA)
        elif kind < 0.7:
            cv2.ellipse(
                image, (x, y), (abs(dx) // 2 + 2, 2), dx * 3, 0, 360, muted_colour(rng), cv2.FILLED, cv2.LINE_AA
            )
        else:
            centre = (x + dx // 2, y + dy // 2)
            cv2.ellipse(
                image, centre, (abs(dx) // 2, abs(dy) // 2), 0, 20, 20 + 6 * abs(dx), muted_colour(rng), 1, cv2.LINE_AA
            )


def reduced_size(width_px: int, height_px: int) -> tuple[int, int]:
    """(width, height) at which grounds are drawn."""
    return -(-width_px // _SHRINK), -(-height_px // _SHRINK)


def _slope(rng: np.random.Generator, width: int, height: int) -> Field:
    """A plane through 0 that rises by up to half across the picture."""
    across, down = rng.uniform(-0.25, 0.25, 2)
    x = np.linspace(-across, across, width, dtype=np.float32)
    y = np.linspace(-down, down, height, dtype=np.float32)
    return x[None, :] + y[:, None]


def shadow(image: Image, box_px: Box, depth: float = 0.35) -> None:
    """Darken softly what lies under and to the lower right of a box.

    Args:
        image: uint8 RGB [H, W, 3], changed in place.
        box_px: Left, top, right and bottom, in pixels.
        depth: Share of the brightness that is lost at the darkest place.
    """
    left, top, right, bottom = box_px
    shift = 0.12 * (bottom - top)
    x0 = max(0, round(left - shift))
    y0 = max(0, round(top - shift))
    x1 = min(image.shape[1], round(right + 3 * shift))
    y1 = min(image.shape[0], round(bottom + 3 * shift))
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
