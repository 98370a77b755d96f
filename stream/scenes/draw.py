"""Drawing with OpenCV: backgrounds, things and their streaks, into uint8 RGB [H, W, 3]."""

from __future__ import annotations

import math

import cv2
import numpy as np

from stream.scenes.shapes import RGB as RGB
from stream.scenes.shapes import Image as Image
from stream.scenes.shapes import polygon
from stream.scenes.world import COLOURS, Movement, Thing

_SUBPIXEL_BITS = 4
_STREAK_OPACITY = 0.75
_STREAK_WIDTH = 0.7
_STREAK_START = 0.42
_DIRECTIONS: dict[Movement, tuple[int, int]] = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}


def gradient(width_px: int, height_px: int, first: RGB, second: RGB, angle_deg: float = 90.0) -> Image:
    """A linear gradient between two colours; 90 degrees runs from top to bottom. Equal colours give a plain one."""
    x = np.linspace(-0.5, 0.5, width_px, dtype=np.float32)[None, :] * math.cos(math.radians(angle_deg))
    y = np.linspace(-0.5, 0.5, height_px, dtype=np.float32)[:, None] * math.sin(math.radians(angle_deg))
    reach = abs(math.cos(math.radians(angle_deg))) + abs(math.sin(math.radians(angle_deg)))
    share = ((x + y) / reach + 0.5)[..., None]
    start, end = np.asarray(first, np.float32), np.asarray(second, np.float32)
    return np.asarray(start + share * (end - start) + 0.5, dtype=np.uint8)


def page(width_px: int, height_px: int, paper: RGB, ink: RGB, line_px: int, rng: np.random.Generator) -> Image:
    """A page of grey "words": short bars on ruled lines, as small print looks from afar."""
    image = np.empty((height_px, width_px, 3), dtype=np.uint8)
    image[:] = paper
    for top in range(line_px // 2, height_px, line_px):
        widths = rng.integers(line_px // 2, 3 * line_px, size=2 * width_px // line_px + 2)
        lefts = np.cumsum(widths + line_px // 2) - widths
        for left, width in zip(lefts.tolist(), widths.tolist(), strict=True):
            image[top : top + max(1, line_px // 3), left : left + width] = ink
    return image


def draw_thing(image: Image, thing: Thing) -> None:
    """Draws a thing, and behind it its streak, into `image`; what lies outside is cut off."""
    rgb = thing.rgb or COLOURS[thing.colour]
    if thing.movement != "still":
        _draw_streak(image, thing, rgb)
    if thing.shape == "number":
        _draw_number(image, thing, rgb)
    elif thing.shape in ("circle", "ring"):
        _draw_round(image, thing, rgb)
    else:
        points = np.asarray(polygon(thing.shape), dtype=np.float64) * (thing.size_px / 2)
        turn = math.radians(thing.angle_deg)
        rotation = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
        corners = points @ rotation + (thing.x_px, thing.y_px)
        fixed = np.round(corners * 2**_SUBPIXEL_BITS).astype(np.int32)
        cv2.fillPoly(image, [fixed], rgb, cv2.LINE_AA, _SUBPIXEL_BITS)


def _draw_streak(image: Image, thing: Thing, rgb: RGB) -> None:
    """A band that begins behind the thing and fades with distance."""
    dx, dy = _DIRECTIONS[thing.movement]
    half_px = _STREAK_WIDTH * thing.size_px / 2
    start_px = _STREAK_START * (thing.width_px if dx else thing.size_px)
    xs = (thing.x_px - dx * thing.streak_px, thing.x_px - dx * start_px)
    ys = (thing.y_px - dy * thing.streak_px, thing.y_px - dy * start_px)
    across_x, across_y = (0.0, half_px) if dx else (half_px, 0.0)
    x0, x1 = max(0, round(min(xs) - across_x)), min(image.shape[1], round(max(xs) + across_x))
    y0, y1 = max(0, round(min(ys) - across_y)), min(image.shape[0], round(max(ys) + across_y))
    if x0 >= x1 or y0 >= y1:
        return
    if dx:
        behind_px = np.abs(np.arange(x0, x1, dtype=np.float32) - thing.x_px)[None, :, None]
    else:
        behind_px = np.abs(np.arange(y0, y1, dtype=np.float32) - thing.y_px)[:, None, None]
    opacity = _STREAK_OPACITY * np.clip(1 - behind_px / thing.streak_px, 0, 1)
    below = image[y0:y1, x0:x1].astype(np.float32)
    image[y0:y1, x0:x1] = (below + opacity * (np.asarray(rgb, np.float32) - below) + 0.5).astype(np.uint8)


def _draw_number(image: Image, thing: Thing, rgb: RGB) -> None:
    font, text = cv2.FONT_HERSHEY_SIMPLEX, f"{thing.number:02d}"
    thickness = max(2, round(thing.size_px / 8))
    (width_px, height_px), _ = cv2.getTextSize(text, font, 1.0, 2)
    scale = min((thing.size_px - thickness) / height_px, (thing.width_px - thickness) / width_px)
    (width_px, height_px), _ = cv2.getTextSize(text, font, scale, thickness)
    origin = (round(thing.x_px - width_px / 2), round(thing.y_px + height_px / 2))
    cv2.putText(image, text, origin, font, scale, rgb, thickness, cv2.LINE_AA)


def _draw_round(image: Image, thing: Thing, rgb: RGB) -> None:
    unit = 2**_SUBPIXEL_BITS
    centre = (round(thing.x_px * unit), round(thing.y_px * unit))
    if thing.shape == "circle":
        cv2.circle(image, centre, round(thing.size_px / 2 * unit), rgb, cv2.FILLED, cv2.LINE_AA, _SUBPIXEL_BITS)
        return
    thickness = max(2, round(thing.size_px * 0.2))
    cv2.circle(
        image, centre, round((thing.size_px - thickness) / 2 * unit), rgb, thickness, cv2.LINE_AA, _SUBPIXEL_BITS
    )
