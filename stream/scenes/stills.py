"""Drawn pictures to compare answers about, each the same on every call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np

from stream.scenes.catalogue import MOSS, SAND, SLATE, street
from stream.scenes.drawing import (
    COLOURS,
    RGB,
    SHAPE_NAMES,
    Image,
    SceneObject,
    draw_object,
    fill,
    gradient,
    place_shape,
)
from stream.scenes.textures import add_grain, opencv_face, set_text, stamp

WIDTH_PX = 768
HEIGHT_PX = 512
"""Size of every picture: 24 × 16 tiles."""

_SEED = 11
_CHECK_PX = 16
_FUR: RGB = (196, 142, 88)
_DARK_FUR: RGB = (150, 98, 54)
_CUSHION: RGB = (70, 96, 132)
_SOFA: RGB = (96, 126, 160)
_WALL: tuple[RGB, RGB] = ((222, 214, 200), (196, 186, 170))
_FLOOR: RGB = (128, 100, 76)
_INK: RGB = (30, 30, 36)
_PAPER: RGB = (246, 244, 238)
_BODY_INK: RGB = (120, 120, 126)
_TITLE = "ANNUAL REPORT"
_WORD = "PARK"
_FACE = opencv_face(cv2.FONT_HERSHEY_DUPLEX)


@dataclass(frozen=True, slots=True)
class KnownAnswer:
    """Answer to a question about a still, and patterns that make another text right.

    A text is right if it has every one of `parts` and none of `denied`. Each is a run of words, without case and
    punctuation; a part may have alternatives, separated by `|`.
    """

    text: str
    parts: tuple[str, ...]
    denied: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Still:
    """A drawn picture and a question about it, with its answer if there is exactly one.

    `general`: only a model that knows more than drawn scenes can answer; the bundled one answers all others right.
    """

    name: str
    question: str
    draw: Callable[[], Image]
    answer: KnownAnswer | None = None
    general: bool = False


def draw_gradient() -> Image:
    """A gradient, in which nothing is more relevant than anything else; uint8 [H, W, 3]."""
    return gradient(WIDTH_PX, HEIGHT_PX, (66, 110, 170), (236, 206, 160), 60)


def draw_checks() -> Image:
    """Squares of 16 pixels, as busy everywhere; uint8 [H, W, 3]."""
    rows, cols = np.indices((HEIGHT_PX, WIDTH_PX)) // _CHECK_PX
    parity = ((rows + cols) % 2)[..., None]
    return np.where(parity, np.uint8(216), np.uint8(48)).repeat(3, axis=2).astype(np.uint8)


def draw_shapes() -> Image:
    """Three things on a calm ground; uint8 [H, W, 3]."""
    return _things(
        SLATE,
        SceneObject("circle", "red", 190.0, 160.0, 130.0),
        SceneObject("square", "blue", 540.0, 340.0, 120.0),
        SceneObject("star", "yellow", 610.0, 110.0, 100.0),
    )


def draw_row() -> Image:
    """Three things side by side; uint8 [H, W, 3]."""
    return _things(
        SAND,
        SceneObject("triangle", "yellow", 150.0, 260.0, 130.0),
        SceneObject("ring", "purple", 390.0, 250.0, 130.0),
        SceneObject("cross", "white", 630.0, 260.0, 130.0),
    )


def draw_corners() -> Image:
    """Things in two corners and in the middle; uint8 [H, W, 3]."""
    return _things(
        MOSS,
        SceneObject("star", "green", 130.0, 110.0, 110.0),
        SceneObject("square", "black", 620.0, 400.0, 110.0),
        SceneObject("ring", "purple", 384.0, 256.0, 110.0),
    )


def draw_number() -> Image:
    """A number of two digits; uint8 [H, W, 3]."""
    return _things(MOSS, SceneObject("number", "red", 384.0, 250.0, 110.0, number=64))


def draw_word() -> Image:
    """A word in small letters; uint8 [H, W, 3]."""
    image = _things(SLATE)
    word = set_text(_FACE, _WORD, 30, spacing_px=1)
    stamp(image, word.mask, (WIDTH_PX - word.size_px[0]) // 2, (HEIGHT_PX - word.size_px[1]) // 2, COLOURS["green"])
    return image


def draw_sleeping_cat() -> Image:
    """A cat asleep on a sofa; uint8 [H, W, 3]."""
    image = gradient(WIDTH_PX, HEIGHT_PX, *_WALL)
    image[430:] = _FLOOR
    cv2.rectangle(image, (70, 150), (700, 400), _SOFA, cv2.FILLED, cv2.LINE_AA)
    for left in (40, 640):
        cv2.rectangle(image, (left, 210), (left + 90, 450), _SOFA, cv2.FILLED, cv2.LINE_AA)
        cv2.rectangle(image, (left, 210), (left + 90, 450), _CUSHION, 3, cv2.LINE_AA)
    cv2.rectangle(image, (130, 330), (640, 430), _CUSHION, cv2.FILLED, cv2.LINE_AA)
    _ellipse(image, (420, 290), (150, 74), _FUR)
    cv2.ellipse(image, (470, 318), (130, 46), 0, 20, 165, _DARK_FUR, 22, cv2.LINE_AA)
    for turn in (-18, 2, 22):
        cv2.ellipse(image, (430 + turn * 4, 250), (14, 40), turn, 180, 330, _DARK_FUR, 9, cv2.LINE_AA)
    _ellipse(image, (275, 300), (66, 56), _FUR)
    for left in (228, 288):
        ear = np.array([(left, 268), (left + 18, 216), (left + 42, 258)], np.float64)
        fill(image, (ear,), _FUR)
        fill(image, ((ear - ear.mean(axis=0)) * 0.5 + ear.mean(axis=0),), (216, 150, 140))
    for middle in (250, 298):
        cv2.ellipse(image, (middle, 296), (13, 7), 0, 0, 180, _INK, 3, cv2.LINE_AA)
    _ellipse(image, (274, 318), (7, 5), (190, 90, 90))
    for side in (-1, 1):
        for rise in (-6, 3, 12):
            cv2.line(image, (274 + side * 22, 320), (274 + side * 78, 318 + rise), (236, 230, 220), 1, cv2.LINE_AA)
    for index, size in enumerate((18, 26, 34)):
        stamp(image, set_text(_FACE, "Z", size).mask, 330 + 34 * index, 186 - 38 * index, (84, 84, 110))
    return image


def draw_street() -> Image:
    """A part of the street of `scene:street`; uint8 [H, W, 3]."""
    panorama = street(3 * WIDTH_PX, HEIGHT_PX)
    image = np.ascontiguousarray(panorama[:, :WIDTH_PX])
    for left, colour in ((60, (190, 40, 40)), (420, (40, 90, 180))):
        _car(image, left, colour)
    return image


def draw_document() -> Image:
    """A page with a title over lines of text; uint8 [H, W, 3]."""
    rng = np.random.default_rng(_SEED)
    image = np.full((HEIGHT_PX, WIDTH_PX, 3), (172, 166, 158), np.uint8)
    cv2.rectangle(image, (128, 16), (640, 496), _PAPER, cv2.FILLED)
    title = set_text(_FACE, _TITLE, 30, spacing_px=1)
    stamp(image, title.mask, (WIDTH_PX - title.size_px[0]) // 2, 46, _INK)
    cv2.line(image, (176, 112), (592, 112), _INK, 2)
    for top in range(140, 470, 18):
        left = 176
        right = 592 if (top // 18) % 5 else 440
        while left < right:
            width = int(rng.integers(14, 60))
            cv2.rectangle(image, (left, top), (min(left + width, right), top + 6), _BODY_INK, cv2.FILLED)
            left += width + 8
    return add_grain(rng, image, 2.0)


def _things(ground: tuple[RGB, RGB], *things: SceneObject) -> Image:
    image = gradient(WIDTH_PX, HEIGHT_PX, *ground)
    for thing in things:
        draw_object(image, thing)
    return image


def _ellipse(image: Image, middle: tuple[int, int], axes: tuple[int, int], rgb: RGB) -> None:
    cv2.ellipse(image, middle, axes, 0, 0, 360, rgb, cv2.FILLED, cv2.LINE_AA)


def _car(image: Image, left: int, rgb: RGB) -> None:
    top = 400
    roof = np.array([(left + 40, top), (left + 70, top - 34), (left + 150, top - 34), (left + 186, top)], np.float64)
    fill(image, (roof,), (206, 222, 232))
    cv2.rectangle(image, (left, top), (left + 220, top + 46), rgb, cv2.FILLED, cv2.LINE_AA)
    for wheel in (left + 50, left + 172):
        _ellipse(image, (wheel, top + 46), (23, 23), _INK)
        _ellipse(image, (wheel, top + 46), (10, 10), (180, 180, 184))
    fill(image, place_shape("circle", left + 212, top + 14, 14), (250, 236, 170))


_SHAPES_ANSWER = KnownAnswer(
    "a red circle, a blue square and a yellow star",
    ("red circle", "blue square", "yellow star"),
    ("moves", *(shape for shape in SHAPE_NAMES if shape not in ("circle", "square", "star"))),
)

STILLS: tuple[Still, ...] = (
    Still("shapes", "What is in the picture?", draw_shapes, _SHAPES_ANSWER),
    Still("colour", "What colour is the cross?", draw_row, KnownAnswer("white", ("white",))),
    Still("place", "Where is the star?", draw_corners, KnownAnswer("top left", ("top left|upper left",))),
    Still("neighbour", "What is left of the ring?", draw_row, KnownAnswer("a yellow triangle", ("yellow triangle",))),
    Still("number", "What number is there?", draw_number, KnownAnswer("64", ("64|sixty four",))),
    Still("word", "What word is there?", draw_word, KnownAnswer(_WORD, (_WORD.lower(),))),
    Still(
        "sleeping cat",
        "Is the cat asleep or awake?",
        draw_sleeping_cat,
        KnownAnswer("asleep", ("asleep|sleeping",), ("not asleep", "not sleeping")),
        general=True,
    ),
    Still(
        "busy street",
        "What do the signs say?",
        draw_street,
        KnownAnswer("CAFE and BANK", ("cafe", "bank")),
        general=True,
    ),
    Still("document", "What is the title?", draw_document, KnownAnswer(_TITLE, ("annual report",)), general=True),
    Still("gradient", "What is in the picture?", draw_gradient, general=True),
    Still("checks", "What is in the picture?", draw_checks, general=True),
)
"""The examples that the bundled model answers right come first."""
