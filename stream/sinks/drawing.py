"""Draws an allocation over its frame: what the model sees sharp, what it sees coarsely, what it does not see."""

from __future__ import annotations

import math

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.regions import level_map
from arr_coc.types import TILE_PX
from stream.overlay import Overlay
from stream.sinks.strip import BACKGROUND, LEAST_WIDTH_PX, KeyItem, strip

Picture = npt.NDArray[np.uint8]

LONG_SIDE_PX = (640, 1280)
"""The long side of what is drawn: small frames are enlarged, so that text can be read, and large ones reduced."""

BRIGHTNESS = (1.0, 0.8, 0.66, 0.56, 0.5, 0.45)
"""Of a region, by level."""
UNSEEN_BRIGHTNESS = 0.3
TINT = 0.35
"""Opacity of the relevance colours where relevance is highest."""
OUTLINES = ((255, 226, 92), (150, 190, 255), (122, 150, 205), (110, 130, 170), (100, 115, 145), (95, 105, 130))
"""RGB, by level: the inner line of a region's outline. The outer one is dark, so one of them shows on any picture."""
DARK = (24, 24, 40)
OUTLINE_OPACITY = 0.65

KEY = (
    KeyItem("sharp", (255, 255, 255), OUTLINES[0]),
    KeyItem("coarser", (168, 168, 168), OUTLINES[1]),
    KeyItem("not seen", (76, 76, 76)),
)


def draw(overlay: Overlay, caption: str, note: str) -> Picture:
    """The frame with its allocation, and below it a strip with a key, `note` and `caption`: uint8 RGB, even sides."""
    picture = draw_allocation(overlay)
    beside = max(0, LEAST_WIDTH_PX - picture.shape[1])
    if beside:
        left = beside // 2
        picture = cv2.copyMakeBorder(picture, 0, 0, left, beside - left, cv2.BORDER_CONSTANT, value=BACKGROUND)
    return np.concatenate([picture, strip(picture.shape[1], caption, note, KEY)])


def draw_allocation(overlay: Overlay) -> Picture:
    """The frame with its allocation: uint8 RGB, of `drawn_size`."""
    size = drawn_size(overlay.image.shape[1], overlay.image.shape[0])
    rows, cols = overlay.relevance.shape
    levels = level_map(overlay.regions, (rows, cols))
    scale = size[0] / overlay.image.shape[1]
    picture = _at_levels(_padded(overlay.image, rows, cols), levels)
    if scale > 1:
        picture = _within_frame(picture, overlay.image.shape[0], overlay.image.shape[1])
    padded_size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
    picture = cv2.resize(picture, padded_size, interpolation=cv2.INTER_NEAREST if scale > 1 else cv2.INTER_AREA)
    picture = _lit(picture, levels)
    picture = _tinted(picture, overlay.relevance)
    _outline(picture, overlay.regions, scale)
    picture = np.ascontiguousarray(picture[: size[1], : size[0]])
    return cv2.copyMakeBorder(
        picture, 0, size[1] - picture.shape[0], 0, size[0] - picture.shape[1], cv2.BORDER_REPLICATE
    )


def drawn_size(width_px: int, height_px: int) -> tuple[int, int]:
    """(width, height) of the drawing of a frame of this size, without the strip: its shape, even sides, as H.264's
    4:2:0 wants them."""
    low, high = LONG_SIDE_PX
    long_side = max(width_px, height_px)
    scale = high / long_side if long_side > high else max(1, math.ceil(low / long_side))
    return max(2, round(width_px * scale / 2) * 2), max(2, round(height_px * scale / 2) * 2)


def _padded(image: Picture, rows: int, cols: int) -> Picture:
    bottom, right = rows * TILE_PX - image.shape[0], cols * TILE_PX - image.shape[1]
    if bottom <= 0 and right <= 0:
        return image[: rows * TILE_PX, : cols * TILE_PX]
    return cv2.copyMakeBorder(image, 0, max(0, bottom), 0, max(0, right), cv2.BORDER_REPLICATE)


def _within_frame(picture: Picture, height_px: int, width_px: int) -> Picture:
    """The padded picture without its padding in a direction in which there is one tile only.

    All that lies in that direction belongs to the tile, so nothing moves. Enlarged as the frame is, the padding of a
    frame of 1x1 pixel would take 20,480x20,480.
    """
    height, width = picture.shape[:2]
    return picture[: height_px if height == TILE_PX else height, : width_px if width == TILE_PX else width]


def _at_levels(image: Picture, levels: npt.NDArray[np.int8]) -> Picture:
    """Each tile at the resolution of its level, as the model is shown it."""
    shown = image.copy()
    height, width = image.shape[:2]
    for level in np.unique(levels[levels > 0]).tolist():
        small = cv2.resize(image, (width >> level, height >> level), interpolation=cv2.INTER_AREA)
        coarse = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
        mask = _over_tiles((levels == level).astype(np.uint8), width, height)
        cv2.copyTo(coarse, mask, shown)
    return shown


def _lit(picture: Picture, levels: npt.NDArray[np.int8]) -> Picture:
    brightness = np.array([*BRIGHTNESS, UNSEEN_BRIGHTNESS], dtype=np.float32)[levels]
    full = _over_tiles((brightness * 255).astype(np.uint8), picture.shape[1], picture.shape[0])
    return cv2.multiply(picture, cv2.merge([full, full, full]), scale=1 / 255)


def _tinted(picture: Picture, relevance: npt.NDArray[np.floating]) -> Picture:
    peak = max(float(relevance.max(initial=0.0)), 1e-6)
    heat = (np.clip(relevance / peak, 0, 1) * 255).astype(np.uint8)
    heat = cv2.resize(heat, (picture.shape[1], picture.shape[0]), interpolation=cv2.INTER_LINEAR)
    colours = cv2.cvtColor(cv2.applyColorMap(heat, cv2.COLORMAP_INFERNO), cv2.COLOR_BGR2RGB)
    squared = cv2.multiply(heat, heat, scale=1 / 255)
    weight = cv2.merge([squared, squared, squared])
    tint = cv2.multiply(colours, weight, scale=TINT / 255)
    rest = cv2.multiply(picture, cv2.subtract(255, cv2.multiply(weight, TINT)), scale=1 / 255)
    return cv2.add(tint, rest)


def _outline(picture: Picture, regions: npt.NDArray[np.integer], scale: float) -> None:
    """A double line around each region: dark outside, light inside."""
    lines = picture.copy()
    for level, row, col in sorted(map(tuple, regions.tolist()), reverse=True):
        side = TILE_PX * scale * (1 << level)
        left, top = round(col * side), round(row * side)
        right, bottom = round((col + 1) * side) - 1, round((row + 1) * side) - 1
        cv2.rectangle(lines, (left, top), (right, bottom), DARK, 1)
        cv2.rectangle(lines, (left + 1, top + 1), (right - 1, bottom - 1), OUTLINES[level], 1)
    cv2.addWeighted(lines, OUTLINE_OPACITY, picture, 1 - OUTLINE_OPACITY, 0, dst=picture)


def _over_tiles(values: Picture, width: int, height: int) -> Picture:
    return cv2.resize(values, (width, height), interpolation=cv2.INTER_NEAREST)
