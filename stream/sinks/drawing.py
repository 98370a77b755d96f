"""Draws an allocation over its frame: what the model sees sharp, what it sees coarsely, what it does not see."""

from __future__ import annotations

import math
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from arr_coc.types import TILE_PX
from stream.overlay import Overlay

Picture = npt.NDArray[np.uint8]

LONG_SIDE_PX = (640, 1280)
"""The long side of what is drawn: small frames are enlarged, so that text can be read, and large ones reduced."""

BRIGHTNESS = (1.0, 0.8, 0.66, 0.56, 0.5, 0.45)
"""Of a region, by level."""
UNSEEN_BRIGHTNESS = 0.3
TINT = 0.35
"""Opacity of the relevance colours where relevance is highest."""
OUTLINES = ((255, 226, 92), (150, 190, 255), (122, 150, 205), (110, 130, 170), (100, 115, 145), (95, 105, 130))
"""RGB, by level."""


def draw(overlay: Overlay, caption: str, note: str) -> Picture:
    """The frame with its allocation, `caption` at the bottom and `note` in the corner: uint8 RGB, even sides."""
    size = drawn_size(overlay.image.shape[1], overlay.image.shape[0])
    rows, cols = overlay.relevance.shape
    levels = level_map(overlay.regions, rows, cols)
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
    picture = cv2.copyMakeBorder(
        picture, 0, size[1] - picture.shape[0], 0, size[0] - picture.shape[1], cv2.BORDER_REPLICATE
    )
    _stamp(picture, _text_image(note, size[0] // 2, max(12, size[0] // 64), size[1]), top=True)
    _stamp(picture, _text_image(caption, size[0] - size[0] // 8, max(20, size[0] // 40), size[1]), top=False)
    return picture


def drawn_size(width_px: int, height_px: int) -> tuple[int, int]:
    """(width, height) of the drawing of a frame of this size: its shape, even sides, H.264's 4:2:0 wants them."""
    low, high = LONG_SIDE_PX
    long_side = max(width_px, height_px)
    scale = high / long_side if long_side > high else max(1, math.ceil(low / long_side))
    return max(2, round(width_px * scale / 2) * 2), max(2, round(height_px * scale / 2) * 2)


def level_map(regions: npt.NDArray[np.integer], rows: int, cols: int) -> npt.NDArray[np.int8]:
    """Each tile's level, −1 where no region covers it: int8 [rows, cols]. The finest wins."""
    levels = np.full((rows, cols), -1, dtype=np.int8)
    for level, row, col in sorted(map(tuple, regions.tolist()), reverse=True):
        side = 1 << level
        levels[row * side : (row + 1) * side, col * side : (col + 1) * side] = level
    return levels


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
    lines = picture.copy()
    for level, row, col in sorted(map(tuple, regions.tolist()), reverse=True):
        side = TILE_PX * scale * (1 << level)
        corner = (round(col * side), round(row * side))
        opposite = (round((col + 1) * side) - 1, round((row + 1) * side) - 1)
        cv2.rectangle(lines, corner, opposite, OUTLINES[level], 1)
    cv2.addWeighted(lines, 0.5, picture, 0.5, 0, dst=picture)


def _over_tiles(values: Picture, width: int, height: int) -> Picture:
    return cv2.resize(values, (width, height), interpolation=cv2.INTER_NEAREST)


@lru_cache(maxsize=8)
def _text_image(text: str, width_px: int, height_px: int, room_px: int) -> Picture | None:
    """White text on a dark, translucent plate: uint8 RGBA. None for no text; lines that `room_px` cannot hold go."""
    font, pad, step = _font(height_px), height_px // 2, round(height_px * 1.3)
    lines = _wrapped(text, font, width_px, max(1, (room_px - pad) // step))
    if not lines:
        return None
    width = max(round(font.getlength(line)) for line in lines) + 2 * pad
    plate = Image.new("RGBA", (width, step * len(lines) + pad), (8, 10, 16, 190))
    pen = ImageDraw.Draw(plate)
    for number, line in enumerate(lines):
        pen.text((width / 2, pad / 2 + step * (number + 0.5)), line, font=font, fill=(255, 255, 255, 255), anchor="mm")
    return np.asarray(plate)


@lru_cache(maxsize=8)
def _font(height_px: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(height_px)


def _wrapped(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width_px: int, most: int) -> list[str]:
    """The words in at most so many lines, none wider than `width_px`; a word that is wider alone is broken."""
    lines: list[str] = []
    for word in text.split():
        if len(lines) > most:
            break
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= width_px:
            lines[-1] = longer
            continue
        lines.append("")
        for character in word:
            if lines[-1] and font.getlength(lines[-1] + character) > width_px:
                lines.append("")
            if len(lines) > most:
                break
            lines[-1] += character
    return lines[:most]


def _stamp(picture: Picture, plate: Picture | None, *, top: bool) -> None:
    """Lays the plate over the picture: in the top left corner, or in the middle near the bottom."""
    if plate is None:
        return
    height, width = min(plate.shape[0], picture.shape[0]), min(plate.shape[1], picture.shape[1])
    margin = min(picture.shape[1] // 80, picture.shape[0] - height, picture.shape[1] - width)
    y = margin if top else picture.shape[0] - height - margin
    x = margin if top else (picture.shape[1] - width) // 2
    under = picture[y : y + height, x : x + width]
    opacity = plate[:height, :width, 3:].astype(np.uint16)
    under[:] = (plate[:height, :width, :3] * opacity + under * (255 - opacity)) // 255
