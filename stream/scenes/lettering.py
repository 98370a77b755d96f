"""Setting short texts: glyphs side by side in one mask, with the box of every character."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from stream.scenes.shapes import RGB, Box, Image

Mask = npt.NDArray[np.uint8]
"""Coverage, uint8 [height, width], 255 where ink is."""

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
class Lettering:
    """A text as one mask, cut to its ink; `boxes` are those of its characters within the mask."""

    mask: Mask
    boxes: tuple[Box, ...]

    @property
    def size_px(self) -> tuple[int, int]:
        """(width, height)."""
        return self.mask.shape[1], self.mask.shape[0]


def set_text(face: Face, text: str, height_px: int, spacing_px: float = 0.0) -> Lettering:
    """The text in one line, capitals `height_px` high, `spacing_px` between characters beyond the face's own."""
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
        x0, y0 = x - left, glyph.top_px - top
        window = mask[y0 : y0 + height, x0 : x0 + width]
        np.maximum(window, glyph.mask, out=window)
        boxes.append((float(x0), float(y0), float(x0 + width), float(y0 + height)))
    return Lettering(mask, tuple(boxes))


def stamp(image: Image, mask: Mask, left_px: int, top_px: int, rgb: RGB, opacity: float = 1.0) -> None:
    """Paints a colour through a mask whose top left lies at the given pixel; what lies outside is cut off."""
    height, width = mask.shape
    x0, y0 = max(0, left_px), max(0, top_px)
    x1, y1 = min(image.shape[1], left_px + width), min(image.shape[0], top_px + height)
    if x0 >= x1 or y0 >= y1:
        return
    share = mask[y0 - top_px : y1 - top_px, x0 - left_px : x1 - left_px, None] * np.float32(opacity / 255)
    below = image[y0:y1, x0:x1]
    image[y0:y1, x0:x1] = (below + share * (np.asarray(rgb, np.float32) - below) + 0.5).astype(np.uint8)


@functools.cache
def opencv_face(font: int, weight: float = 0.12) -> Face:
    """One of OpenCV's own fonts (cv2.FONT_HERSHEY_…) as a face, about `height_px` high.

    Its strokes are `weight` of the capitals' height thick where OpenCV draws strokes; version 5 has outlines instead.
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
