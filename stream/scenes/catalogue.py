"""The named scenes, the street among them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

import cv2
import numpy as np

from stream.errors import SourceNotFound
from stream.scenes.drawing import RGB, Box, Image, fill, gradient, page, place_shape
from stream.scenes.scene import PACED_SCENES, Actor, Backdrop, PacedScene, Scene, Shot
from stream.scenes.textures import (
    TextMask,
    add_grain,
    clouds,
    clutter,
    muted_colour,
    opencv_face,
    set_text,
    shadow,
    stamp,
)

SIGNS: tuple[tuple[str, float, RGB], ...] = (
    ("CAFE", 0.09, (214, 32, 38)),
    ("BANK", 0.27, (30, 74, 214)),
    ("TAXI", 0.47, (14, 14, 16)),
    ("HOTEL", 0.66, (138, 38, 176)),
    ("PARK", 0.88, (26, 150, 52)),
)
"""Word, the middle of its sign as a share of the street's width, ink."""

_SEED = 4
_ROOFS = 0.16
_PAVEMENT = 0.80
_SIGN_HEIGHT = 0.46
_HOUSES = 5
_CAPITALS = 0.058
_PLATE: RGB = (214, 208, 196)
_FONTS = (cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX, cv2.FONT_HERSHEY_TRIPLEX)
_ARROWS = (0.375, 0.77)
_ASPHALT: RGB = (112, 112, 116)
_PAINT: RGB = (176, 174, 168)
_GRAIN = 3.0


def street(width_px: int, height_px: int) -> Image:
    """The whole street, uint8 RGB [height, width, 3]; the same on every call. Each of `SIGNS` is on it once."""
    rng = np.random.default_rng(_SEED)
    image = clouds(rng, width_px, height_px)
    pavement = round(height_px * _PAVEMENT)
    for house in range(_HOUSES):
        left, right = (round(width_px * edge / _HOUSES) for edge in (house, house + 1))
        front = image[round(height_px * (_ROOFS + rng.uniform(-0.06, 0.06))) : pavement, left:right]
        height, width = front.shape[:2]
        front[:] = muted_colour(rng)
        glass = muted_colour(rng)
        cols = int(rng.integers(3, 6))
        for row in (0.08, 0.66):
            for col in range(cols):
                window_left = round(width * (col + 0.25) / cols)
                top = round(height * row)
                front[top : top + round(0.22 * height), window_left : window_left + round(0.5 * width / cols)] = glass
    image[pavement:] = _ASPHALT
    for share in _ARROWS:
        fill(image, place_shape("arrow", share * width_px, 0.9 * height_px, 0.1 * height_px), _PAINT)
    boxes = [box for _, box in sign_boxes_px(width_px, height_px)]
    clutter(rng, image, width_px * height_px // 5000, np.array(boxes))  # of the picture, for every bit of litter
    image = add_grain(rng, image, _GRAIN)
    for word, _, ink in SIGNS:
        _sign(image, word, ink)
    return image


def sign_box_px(word: str, width_px: int, height_px: int) -> Box:
    """The box around a word of `SIGNS` on a street of that size. Raises KeyError for other words."""
    shares = {sign[0]: sign[1] for sign in SIGNS}
    width, height = _lettering(word, height_px).size_px
    left = round(shares[word] * width_px - width / 2)
    top = round(_SIGN_HEIGHT * height_px - height / 2)
    return float(left), float(top), float(left + width), float(top + height)


def sign_boxes_px(width_px: int, height_px: int) -> list[tuple[str, Box]]:
    """Each word of `SIGNS` and the box around it, on a street of that size."""
    return [(word, sign_box_px(word, width_px, height_px)) for word, _, _ in SIGNS]


def _sign(image: Image, word: str, ink: RGB) -> None:
    """A word on its plate."""
    height_px, width_px = image.shape[:2]
    left, top, right, bottom = sign_box_px(word, width_px, height_px)
    edge = round(0.02 * height_px)
    plate = (left - edge, top - edge, right + edge, bottom + edge)
    shadow(image, plate)
    cv2.rectangle(image, (int(plate[0]), int(plate[1])), (int(plate[2]), int(plate[3])), _PLATE, cv2.FILLED)
    stamp(image, _lettering(word, height_px).mask, int(left), int(top), ink)


def _lettering(word: str, height_px: int) -> TextMask:
    font = _FONTS[len(word) % len(_FONTS)]
    return set_text(opencv_face(font), word, round(_CAPITALS * height_px), spacing_px=1)


SLATE: tuple[RGB, RGB] = ((150, 160, 172), (110, 122, 138))
SAND: tuple[RGB, RGB] = ((188, 176, 154), (150, 138, 118))
MOSS: tuple[RGB, RGB] = ((128, 142, 126), (164, 174, 160))


def _backdrop(colours: tuple[RGB, RGB]) -> Backdrop:
    return lambda width_px, height_px: gradient(width_px, height_px, *colours)


def _page(width_px: int, height_px: int) -> Image:
    return page(width_px, height_px, (172, 168, 160), (138, 134, 128), 12, np.random.default_rng(1))


def _demo_shots() -> tuple[Shot, ...]:
    return (
        Shot(
            4.5,
            _backdrop(SLATE),
            (
                Actor("circle", "red", 0.20, ((0.0, 0.16, 0.30), (3.5, 0.44, 0.30))),
                Actor("square", "blue", 0.18, ((0.0, 0.76, 0.68),)),
            ),
        ),
        Shot(
            4.0,
            _backdrop(SAND),
            (
                Actor("star", "green", 0.24, ((0.0, 0.30, 0.96), (2.8, 0.30, 0.26))),
                Actor("square", "black", 0.20, ((0.0, 0.72, 0.50),)),
            ),
        ),
        Shot(
            3.5,
            _backdrop(MOSS),
            (
                Actor("triangle", "yellow", 0.22, ((0.0, 0.20, 0.72),)),
                Actor("ring", "purple", 0.22, ((0.0, 0.52, 0.22), (3.5, 0.52, 0.78))),
                Actor("cross", "white", 0.20, ((1.0, 1.10, 0.40), (2.3, 0.80, 0.40))),
            ),
        ),
    )


def _demo(name: str) -> Scene:
    return Scene(name, 640, 384, 24, _demo_shots())


def _hd(name: str) -> Scene:
    return Scene(name, 1920, 1080, 30, _demo_shots())


def _static(name: str) -> Scene:
    actors = (
        Actor("circle", "red", 0.20, ((0.0, 0.25, 0.35),)),
        Actor("square", "blue", 0.20, ((0.0, 0.72, 0.62),)),
    )
    return Scene(name, 640, 384, 30, (Shot(4.0, _backdrop(SLATE), actors),))


def _noise(name: str) -> Scene:
    return Scene(name, 640, 384, 30, _static(name).shots, noise_sigma=2.0)


def _pan(name: str) -> Scene:
    actors = (
        Actor("star", "green", 0.22, ((0.0, 0.40, 0.30),)),
        Actor("circle", "orange", 0.20, ((0.0, 0.85, 0.70),)),
    )
    return Scene(name, 640, 384, 30, (Shot(3.0, _page, actors, pan_px=(2, 0)),))


def _cuts(name: str) -> Scene:
    casts = (
        (SLATE, Actor("circle", "red", 0.24, ((0.0, 0.30, 0.40),))),
        (SAND, Actor("square", "blue", 0.24, ((0.0, 0.60, 0.60),))),
        (MOSS, Actor("star", "yellow", 0.26, ((0.0, 0.40, 0.70),))),
        (SLATE, Actor("triangle", "green", 0.24, ((0.0, 0.75, 0.30),))),
        (SAND, Actor("ring", "purple", 0.24, ((0.0, 0.50, 0.50),))),
    )
    return Scene(name, 640, 384, 30, tuple(Shot(1.2, _backdrop(colours), (actor,)) for colours, actor in casts))


def _moving(name: str) -> Scene:
    actors = (
        Actor("circle", "red", 0.22, ((0.0, 0.15, 0.25), (6.0, 0.48, 0.25))),
        Actor("square", "blue", 0.20, ((0.0, 0.62, 0.85), (6.0, 0.62, 0.35))),
        Actor("star", "yellow", 0.22, ((0.0, 0.84, 0.25), (6.0, 0.84, 0.75))),
    )
    return Scene(name, 640, 384, 30, (Shot(6.0, _backdrop(SLATE), actors),))


def _street(name: str) -> Scene:
    actors = (
        Actor("circle", "red", 0.12, ((0.0, 0.55, 0.90), (6.0, 1.45, 0.90))),
        Actor("star", "yellow", 0.14, ((0.0, 1.10, 0.10),)),
    )
    return Scene(name, 640, 384, 30, (Shot(6.0, street, actors, (3, 0), sign_boxes_px),), noise_sigma=2.0)


_MAKERS: dict[str, Callable[[str], Scene]] = {
    "demo": _demo,
    "static": _static,
    "noise": _noise,
    "pan": _pan,
    "cuts": _cuts,
    "moving": _moving,
    "hd": _hd,
    "street": _street,
}

SCENE_NAMES: tuple[str, ...] = tuple(_MAKERS)


def load_scene(name: str) -> Scene:
    """The scene of that name, without the `scene:` prefix.

    `demo`: three shots of things that move, enter and stop; `hd` the same at 1920x1080. `static`, and `noise`
    with sensor noise of sigma 2. `pan`: a camera moving over a page. `cuts`: five short shots. `moving`: three things
    that never stop. `street`: a camera that pans past houses, litter and signs with words, with sensor noise.
    Raises SourceNotFound for a name not in `SCENE_NAMES`.
    """
    if name not in _MAKERS:
        raise _unknown(name, SCENE_NAMES)
    return _MAKERS[name](name)


def open_scene(name: str) -> Scene | PacedScene:
    """Return the scene of `scene:NAME`: one of `SCENE_NAMES` or `PACED_SCENES`. Raises SourceNotFound for other
    names."""
    if name in PACED_SCENES:
        return PacedScene(name, *PACED_SCENES[name])
    if name not in _MAKERS:
        raise _unknown(name, (*SCENE_NAMES, *PACED_SCENES))
    return load_scene(name)


def _unknown(name: str, names: Sequence[str]) -> SourceNotFound:
    nearest = difflib.get_close_matches(name, names, n=1)
    if nearest:
        hint = f"did you mean scene:{nearest[0]}?"
    else:
        hint = f"there are {', '.join(names)}"
    return SourceNotFound(f"no scene is called {name!r}; {hint}")
