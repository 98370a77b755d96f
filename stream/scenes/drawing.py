"""Objects of drawn scenes, their outlines, and drawing them.

A world is one to three things on a background. A thing has a shape (or is a two-digit number), a colour, a place and
a movement, and all four can be seen in a single frame: what moves draws a fading streak behind it, as a long
exposure would show it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import cv2
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
RGB = tuple[int, int, int]
Box = tuple[float, float, float, float]
"""(left, top, right, bottom) in pixels."""

Contour = npt.NDArray[np.float64]
"""Corners (x, y) of a closed line, float64 [N, 2], y down."""

SHAPE_NAMES: tuple[str, ...] = (
    *("circle", "square", "triangle", "star", "cross", "ring"),
    *("heart", "crescent", "diamond", "arrow", "hexagon"),
)

_SUBPIXEL_BITS = 4
_ROUND_CORNERS = 48


def polygon(shape: str) -> list[tuple[float, float]]:
    """Corners of a square, triangle, cross or (any other name) star in [-1, 1]², y down."""
    if shape == "square":
        return [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]
    if shape == "triangle":
        return [(0.0, -0.95), (1.0, 0.85), (-1.0, 0.85)]
    if shape == "cross":
        arm = 0.3
        quarter = [(arm, -1.0), (arm, -arm), (1.0, -arm)]
        return [(x, y) for k in range(4) for x, y in (_turned(point, k) for point in quarter)]
    radii = (1.0, 0.42)
    angles = [math.pi * k / 5 - math.pi / 2 for k in range(10)]
    return [(radii[k % 2] * math.cos(a), radii[k % 2] * math.sin(a)) for k, a in enumerate(angles)]


@functools.cache
def outline(shape: str) -> tuple[Contour, ...]:
    """The contours of one of `SHAPE_NAMES` in [-1, 1]², an arrow pointing right; a second one is a hole.

    Raises KeyError for other names.
    """
    if shape in ("square", "triangle", "cross", "star"):
        return (np.array(polygon(shape)),)
    return _CURVED[shape]


def place_shape(shape: str, x_px: float, y_px: float, size_px: float, angle_deg: float = 0.0) -> tuple[Contour, ...]:
    """Return the contours of a shape at a place in an image.

    Args:
        shape: One of `SHAPE_NAMES`.
        x_px: Column of the middle, in pixels.
        y_px: Row of the middle, in pixels.
        size_px: Height of the shape before it is turned, roughly, in pixels.
        angle_deg: Anticlockwise turn, in degrees.

    Returns:
        Contours, each float [n, 2]: x and y of its points, in pixels.

    Raises:
        KeyError: The shape is unknown.
    """
    turn = math.radians(angle_deg)
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]) * (size_px / 2)
    return tuple(points @ rotation + (x_px, y_px) for points in outline(shape))


def fill(image: Image, contours: tuple[Contour, ...], rgb: RGB) -> None:
    """Fill what lies inside an odd number of contours, with smooth edges.

    Args:
        image: uint8 RGB [H, W, 3], changed in place; what lies outside is cut off.
        contours: Contours, each float [n, 2]: x and y of its points, in pixels. (0, 0) is the image's corner; for
            OpenCV it is the middle of the first pixel.
        rgb: Colour of the area.
    """
    fixed_points = [np.round((points - 0.5) * 2**_SUBPIXEL_BITS).astype(np.int32) for points in contours]
    cv2.fillPoly(image, fixed_points, rgb, cv2.LINE_AA, _SUBPIXEL_BITS)


def _turned(point: tuple[float, float], quarters: int) -> tuple[float, float]:
    """A point turned clockwise (y down) by quarter turns."""
    x, y = point
    for _ in range(quarters):
        x, y = -y, x
    return x, y


def _arc(radius: float, start_deg: float, end_deg: float, x: float = 0.0) -> Contour:
    angles = np.radians(np.linspace(start_deg, end_deg, _ROUND_CORNERS, endpoint=False))
    return np.stack([x + radius * np.cos(angles), radius * np.sin(angles)], axis=1)


def _heart() -> Contour:
    """The well-known curve x = 16 sin³t, y = 13 cos t − 5 cos 2t − 2 cos 3t − cos 4t."""
    t = np.linspace(0, 2 * math.pi, _ROUND_CORNERS, endpoint=False)
    x = 16 * np.sin(t) ** 3
    y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
    return np.stack([x / 16.5, (-y - 2.5) / 15.5], axis=1)


def _crescent() -> Contour:
    """A disk less a smaller one that lies to its right; the two circles meet at ±54 degrees of the first."""
    middle = 0.48
    radius = 0.82
    meet = math.degrees(math.acos((1 - radius**2 + middle**2) / (2 * middle)))
    y = math.sin(math.radians(meet))
    inner = math.degrees(math.atan2(y, math.cos(math.radians(meet)) - middle))
    points = np.concatenate([_arc(1.0, meet, 360 - meet), _arc(radius, 360 - inner, inner, middle)])
    return points + np.array([0.2, 0.0])


_CURVED: dict[str, tuple[Contour, ...]] = {
    "circle": (_arc(1.0, 0, 360),),
    "ring": (_arc(1.0, 0, 360), _arc(0.58, 0, 360)),
    "heart": (_heart(),),
    "crescent": (_crescent(),),
    "diamond": (np.array([(0.0, -1.0), (0.68, 0.0), (0.0, 1.0), (-0.68, 0.0)]),),
    "arrow": (np.array([(1.0, 0.0), (0.1, 0.8), (0.1, 0.3), (-1.0, 0.3), (-1.0, -0.3), (0.1, -0.3), (0.1, -0.8)]),),
    "hexagon": (_arc(1.0, 0, 360)[:: _ROUND_CORNERS // 6],),
}


Shape = Literal["circle", "square", "triangle", "star", "cross", "ring", "number"]
Movement = Literal["still", "left", "right", "up", "down"]

SHAPES: tuple[Shape, ...] = ("circle", "square", "triangle", "star", "cross", "ring", "number")
MOVEMENTS: tuple[Movement, ...] = ("still", "left", "right", "up", "down")
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 32, 38),
    "green": (26, 150, 52),
    "blue": (30, 74, 214),
    "yellow": (246, 222, 30),
    "orange": (248, 134, 16),
    "purple": (138, 38, 176),
    "white": (250, 250, 250),
    "black": (14, 14, 16),
}
"""Name of a colour → its RGB, 8 bits a channel."""

PLACES: tuple[str, ...] = (
    *("top left", "top", "top right"),
    *("left", "centre", "right"),
    *("bottom left", "bottom", "bottom right"),
)
"""The nine thirds-by-thirds places of the picture, row by row."""


@dataclass(frozen=True, slots=True)
class SceneObject:
    """One thing as it stands in one frame: centre, size (its height) and streak in pixels of that frame."""

    shape: Shape
    colour: str
    x_px: float
    y_px: float
    size_px: float
    movement: Movement = "still"
    number: int | None = None
    angle_deg: float = 0.0
    rgb: tuple[int, int, int] | None = None
    """Its exact colour; that of `COLOURS` when absent."""

    @property
    def width_px(self) -> float:
        """A number is wider than high; everything else fits a square."""
        return self.size_px * (1.5 if self.shape == "number" else 1.0)

    @property
    def streak_px(self) -> float:
        """Length of its streak behind the centre; 0 when still."""
        if self.movement == "still":
            return 0.0
        if self.movement in ("left", "right"):
            along_px = self.width_px
        else:
            along_px = self.size_px
        return 0.5 * along_px + 1.1 * self.size_px

    @property
    def noun(self) -> str:
        """A circle's is "circle", a number's "number 42"."""
        if self.number is None:
            return self.shape
        return f"number {self.number}"

    @property
    def phrase(self) -> str:
        """ "red circle moves right", without an article."""
        if self.movement == "still":
            verb = "stays still"
        else:
            verb = f"moves {self.movement}"
        return f"{self.colour} {self.noun} {verb}"

    def shift(self, dx_px: float, dy_px: float) -> SceneObject:
        return replace(self, x_px=self.x_px + dx_px, y_px=self.y_px + dy_px)

    def box_px(self, streak: bool = False) -> tuple[float, float, float, float]:
        """(left, top, right, bottom) around the thing, with its streak if asked."""
        half_width = self.width_px / 2
        half_height = self.size_px / 2
        left = self.x_px - half_width
        right = self.x_px + half_width
        top = self.y_px - half_height
        bottom = self.y_px + half_height
        if streak:
            if self.movement == "right":
                left = min(left, self.x_px - self.streak_px)
            if self.movement == "left":
                right = max(right, self.x_px + self.streak_px)
            if self.movement == "down":
                top = min(top, self.y_px - self.streak_px)
            if self.movement == "up":
                bottom = max(bottom, self.y_px + self.streak_px)
        return left, top, right, bottom

    def visible_share(self, width_px: int, height_px: int) -> float:
        """Share of the thing's box that lies inside a picture of the given size."""
        return visible_share(self.box_px(), width_px, height_px)

    def place(self, width_px: int, height_px: int) -> str:
        """Place of its centre, one of `PLACES`."""
        col = min(2, max(0, int(3 * self.x_px / width_px)))
        row = min(2, max(0, int(3 * self.y_px / height_px)))
        return PLACES[3 * row + col]


LEAST_VISIBLE = 0.5
"""Share of a thing's box that a frame has to show, or the thing is not in it."""


def visible_share(box: Box, width_px: int, height_px: int) -> float:
    """Share of a box that lies inside a picture of the given size."""
    left, top, right, bottom = box
    inside_width = max(0.0, min(right, width_px) - max(left, 0.0))
    inside_height = max(0.0, min(bottom, height_px) - max(top, 0.0))
    return inside_width * inside_height / ((right - left) * (bottom - top))


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """Ground truth of one frame: its size, the things in it, from left to right, and the words on its ground."""

    width_px: int
    height_px: int
    things: tuple[SceneObject, ...]
    words: tuple[tuple[str, Box], ...] = ()

    @classmethod
    def of(
        cls, width_px: int, height_px: int, things: list[SceneObject], words: Sequence[tuple[str, Box]] = ()
    ) -> GroundTruth:
        """Return the facts about a frame.

        Args:
            width_px: Width of the frame, in pixels.
            height_px: Height of the frame, in pixels.
            things: Objects of the frame; those visible by less than `LEAST_VISIBLE` are left out.
            words: Words with their boxes, in pixels; left out likewise.
        """
        visible_things = [thing for thing in things if thing.visible_share(width_px, height_px) >= LEAST_VISIBLE]
        visible_words = [(word, box) for word, box in words if visible_share(box, width_px, height_px) >= LEAST_VISIBLE]
        return cls(
            width_px,
            height_px,
            tuple(sorted(visible_things, key=lambda thing: (thing.x_px, thing.y_px))),
            tuple(visible_words),
        )

    @property
    def labels(self) -> tuple[tuple[str, Box], ...]:
        """Name and box of each thing and word."""
        return *((thing.phrase, thing.box_px()) for thing in self.things), *self.words

    @property
    def caption(self) -> str:
        """One sentence about the movements and things, from left to right."""
        phrases = [f"{'an' if thing.colour[0] in 'aeiou' else 'a'} {thing.phrase}" for thing in self.things]
        if not phrases:
            return "nothing is there."
        *first, last = phrases
        return (f"{', '.join(first)} and {last}" if first else last) + "."


_STREAK_OPACITY = 0.75
_STREAK_WIDTH = 0.7
_STREAK_START = 0.42
DIRECTIONS: dict[Movement, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
"""Movement → step (x, y), y down; a still thing has none."""


def gradient(width_px: int, height_px: int, first: RGB, second: RGB, angle_deg: float = 90.0) -> Image:
    """Return a linear gradient between two colours.

    Args:
        width_px: Width of the image, in pixels.
        height_px: Height of the image, in pixels.
        first: Colour at the beginning.
        second: Colour at the end; the same as `first` for a plain image.
        angle_deg: Direction: 0 runs from left to right, 90 from top to bottom.

    Returns:
        uint8 RGB [height_px, width_px, 3].
    """
    x = np.linspace(-0.5, 0.5, width_px, dtype=np.float32)[None, :] * math.cos(math.radians(angle_deg))
    y = np.linspace(-0.5, 0.5, height_px, dtype=np.float32)[:, None] * math.sin(math.radians(angle_deg))
    reach = abs(math.cos(math.radians(angle_deg))) + abs(math.sin(math.radians(angle_deg)))
    share = ((x + y) / reach + 0.5)[..., None]
    start = np.asarray(first, np.float32)
    end = np.asarray(second, np.float32)
    return np.asarray(start + share * (end - start) + 0.5, dtype=np.uint8)


def page(width_px: int, height_px: int, paper: RGB, ink: RGB, line_px: int, rng: np.random.Generator) -> Image:
    """Return a page of grey "words": short bars on ruled lines, as small print looks from afar.

    Args:
        width_px: Width of the image, in pixels.
        height_px: Height of the image, in pixels.
        paper: Colour of the ground.
        ink: Colour of the bars.
        line_px: Distance of the lines, in pixels.
        rng: Source of the lengths of the bars.

    Returns:
        uint8 RGB [height_px, width_px, 3].
    """
    image = np.empty((height_px, width_px, 3), dtype=np.uint8)
    image[:] = paper
    for top in range(line_px // 2, height_px, line_px):
        widths = rng.integers(line_px // 2, 3 * line_px, size=2 * width_px // line_px + 2)
        lefts = np.cumsum(widths + line_px // 2) - widths
        for left, width in zip(lefts.tolist(), widths.tolist(), strict=True):
            image[top : top + max(1, line_px // 3), left : left + width] = ink
    return image


def draw_object(image: Image, thing: SceneObject) -> None:
    """Draws a thing, and behind it its streak, into `image`; what lies outside is cut off."""
    rgb = thing.rgb or COLOURS[thing.colour]
    if thing.movement != "still":
        _draw_streak(image, thing, rgb)
    if thing.shape == "number":
        font = cv2.FONT_HERSHEY_SIMPLEX
        text = f"{thing.number:02d}"
        thickness = max(2, round(thing.size_px / 8))
        (width_px, height_px), _ = cv2.getTextSize(text, font, 1.0, 2)
        scale = min((thing.size_px - thickness) / height_px, (thing.width_px - thickness) / width_px)
        (width_px, height_px), _ = cv2.getTextSize(text, font, scale, thickness)
        origin = (round(thing.x_px - width_px / 2), round(thing.y_px + height_px / 2))
        cv2.putText(image, text, origin, font, scale, rgb, thickness, cv2.LINE_AA)
    elif thing.shape in ("circle", "ring"):
        unit = 2**_SUBPIXEL_BITS
        centre = (round(thing.x_px * unit), round(thing.y_px * unit))
        if thing.shape == "circle":
            thickness = cv2.FILLED
            radius_px = thing.size_px / 2
        else:
            thickness = max(2, round(thing.size_px * 0.2))
            radius_px = (thing.size_px - thickness) / 2
        cv2.circle(image, centre, round(radius_px * unit), rgb, thickness, cv2.LINE_AA, _SUBPIXEL_BITS)
    else:
        points = np.asarray(polygon(thing.shape), dtype=np.float64) * (thing.size_px / 2)
        turn = math.radians(thing.angle_deg)
        rotation = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
        corners = points @ rotation + (thing.x_px, thing.y_px)
        fixed = np.round(corners * 2**_SUBPIXEL_BITS).astype(np.int32)
        cv2.fillPoly(image, [fixed], rgb, cv2.LINE_AA, _SUBPIXEL_BITS)


def _draw_streak(image: Image, thing: SceneObject, rgb: RGB) -> None:
    """A band that begins behind the thing and fades with distance."""
    dx, dy = DIRECTIONS[thing.movement]
    half_px = _STREAK_WIDTH * thing.size_px / 2
    start_px = _STREAK_START * (thing.width_px if dx else thing.size_px)
    xs = (thing.x_px - dx * thing.streak_px, thing.x_px - dx * start_px)
    ys = (thing.y_px - dy * thing.streak_px, thing.y_px - dy * start_px)
    across_x, across_y = (0.0, half_px) if dx else (half_px, 0.0)
    x0 = max(0, round(min(xs) - across_x))
    x1 = min(image.shape[1], round(max(xs) + across_x))
    y0 = max(0, round(min(ys) - across_y))
    y1 = min(image.shape[0], round(max(ys) + across_y))
    if x0 >= x1 or y0 >= y1:
        return
    if dx:
        behind_px = np.abs(np.arange(x0, x1, dtype=np.float32) - thing.x_px)[None, :, None]
    else:
        behind_px = np.abs(np.arange(y0, y1, dtype=np.float32) - thing.y_px)[:, None, None]
    opacity = _STREAK_OPACITY * np.clip(1 - behind_px / thing.streak_px, 0, 1)
    below = image[y0:y1, x0:x1].astype(np.float32)
    image[y0:y1, x0:x1] = (below + opacity * (np.asarray(rgb, np.float32) - below) + 0.5).astype(np.uint8)
