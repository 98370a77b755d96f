"""Outlines of named shapes, and filling them in."""

from __future__ import annotations

import functools
import math

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


def placed(shape: str, x_px: float, y_px: float, size_px: float, angle_deg: float = 0.0) -> tuple[Contour, ...]:
    """The contours of a shape about `size_px` high, its middle at (x, y), turned by an angle (anticlockwise)."""
    turn = math.radians(angle_deg)
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]) * (size_px / 2)
    return tuple(points @ rotation + (x_px, y_px) for points in outline(shape))


def box_of(contours: tuple[Contour, ...]) -> Box:
    """The box around all contours."""
    low, high = contours[0].min(axis=0), contours[0].max(axis=0)
    return float(low[0]), float(low[1]), float(high[0]), float(high[1])


def fill(image: Image, contours: tuple[Contour, ...], rgb: RGB) -> None:
    """Fills what lies inside an odd number of contours, with smooth edges; what lies outside the image is cut off.

    (0, 0) is the image's corner, where for OpenCV it is the middle of the first pixel.
    """
    fixed = [np.round((points - 0.5) * 2**_SUBPIXEL_BITS).astype(np.int32) for points in contours]
    cv2.fillPoly(image, fixed, rgb, cv2.LINE_AA, _SUBPIXEL_BITS)


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
    middle, radius = 0.48, 0.82
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
