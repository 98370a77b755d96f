"""A street to pan along: houses with windows, signs with words, and litter, under an uneven sky."""

from __future__ import annotations

import cv2
import numpy as np

from stream.scenes.lettering import Lettering, opencv_face, set_text, stamp
from stream.scenes.shapes import RGB, Box, Image, fill, placed
from stream.scenes.textures import clouds, clutter, grained, muted
from stream.scenes.wear import shadow

SIGNS: tuple[tuple[str, float, RGB], ...] = (
    ("CAFE", 0.09, (214, 32, 38)),
    ("BANK", 0.27, (30, 74, 214)),
    ("TAXI", 0.47, (14, 14, 16)),
    ("HOTEL", 0.66, (138, 38, 176)),
    ("PARK", 0.88, (26, 150, 52)),
)
"""Word, the middle of its sign as a share of the street's width, ink."""

_SEED = 4
_ROOFS, _PAVEMENT, _SIGN_HEIGHT = 0.16, 0.80, 0.46
_HOUSES = 5
_CAPITALS = 0.058
_PLATE: RGB = (214, 208, 196)
_FONTS = (cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX, cv2.FONT_HERSHEY_TRIPLEX)
_ARROWS = (0.375, 0.77)
_ASPHALT: RGB = (112, 112, 116)
_PAINT: RGB = (176, 174, 168)
_GRAIN = 3.0
_PIXELS_A_BIT = 5000
"""Of the picture, for every bit of litter."""


def street(width_px: int, height_px: int) -> Image:
    """The whole street, uint8 RGB [height, width, 3]; the same on every call. Each of `SIGNS` is on it once."""
    rng = np.random.default_rng(_SEED)
    image = clouds(rng, width_px, height_px)
    pavement = round(height_px * _PAVEMENT)
    for house in range(_HOUSES):
        left, right = (round(width_px * edge / _HOUSES) for edge in (house, house + 1))
        _house(rng, image[round(height_px * (_ROOFS + rng.uniform(-0.06, 0.06))) : pavement, left:right])
    image[pavement:] = _ASPHALT
    for share in _ARROWS:
        fill(image, placed("arrow", share * width_px, 0.9 * height_px, 0.1 * height_px), _PAINT)
    boxes = [sign_box_px(word, width_px, height_px) for word, _, _ in SIGNS]
    clutter(rng, image, width_px * height_px // _PIXELS_A_BIT, np.array(boxes))
    image = grained(rng, image, _GRAIN)
    for word, _, ink in SIGNS:
        _sign(image, word, ink)
    return image


def sign_box_px(word: str, width_px: int, height_px: int) -> Box:
    """The box around a word of `SIGNS` on a street of that size. Raises KeyError for other words."""
    shares = {sign[0]: sign[1] for sign in SIGNS}
    width, height = _lettering(word, height_px).size_px
    left, top = round(shares[word] * width_px - width / 2), round(_SIGN_HEIGHT * height_px - height / 2)
    return float(left), float(top), float(left + width), float(top + height)


def _house(rng: np.random.Generator, front: Image) -> None:
    """A front of one colour with rows of windows, drawn into the part of the picture that it fills."""
    height, width = front.shape[:2]
    front[:] = muted(rng)
    glass, cols = muted(rng), int(rng.integers(3, 6))
    for row in (0.08, 0.66):
        for col in range(cols):
            left, top = round(width * (col + 0.25) / cols), round(height * row)
            front[top : top + round(0.22 * height), left : left + round(0.5 * width / cols)] = glass


def _sign(image: Image, word: str, ink: RGB) -> None:
    """A word on its plate."""
    height_px, width_px = image.shape[:2]
    left, top, right, bottom = sign_box_px(word, width_px, height_px)
    edge = round(0.02 * height_px)
    plate = (left - edge, top - edge, right + edge, bottom + edge)
    shadow(image, plate)
    cv2.rectangle(image, (int(plate[0]), int(plate[1])), (int(plate[2]), int(plate[3])), _PLATE, cv2.FILLED)
    stamp(image, _lettering(word, height_px).mask, int(left), int(top), ink)


def _lettering(word: str, height_px: int) -> Lettering:
    font = _FONTS[len(word) % len(_FONTS)]
    return set_text(opencv_face(font), word, round(_CAPITALS * height_px), spacing_px=1)
