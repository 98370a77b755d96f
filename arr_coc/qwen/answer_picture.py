"""Picture of an answer: the frame with its heat map and shown tiles, and the text below it."""

from __future__ import annotations

import io
from collections.abc import Sequence

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from arr_coc.errors import counted
from arr_coc.texture.regions import shape_map, tile_boxes
from arr_coc.types import REGION_SHAPES

LONGEST_PX = 1024
"""Long side to which a larger picture is reduced."""

SMALLEST_PX = 640
"""Long side to which a smaller picture is enlarged, so that tiles and text can be read."""

TINT = 0.35
"""Opacity of the relevance colours at the highest relevance."""

LEVEL_BRIGHTNESS = (1.0, 0.78, 0.62, 0.54, 0.48, 0.44)
"""Brightness of a region, by the level of its longer side."""

UNSEEN_BRIGHTNESS = 0.3

OUTLINES = ((255, 226, 92), (150, 190, 255), (122, 150, 205), (110, 130, 170), (100, 115, 145), (95, 105, 130))
"""RGB of a region's outline, by the level of its longer side."""

LINE_PX = 20
MARGIN_PX = 10
MOST_LINES = 6
BACKGROUND = (14, 16, 22)
BRIGHT = "#ffffff"
MUTED = "#a8b0c0"

Rgb = npt.NDArray[np.uint8]
Map = npt.NDArray[np.float32]


def answer_picture(picture: Rgb, heatmap: Map, regions: npt.NDArray[np.integer], overview: int, text: str) -> Rgb:
    """Draw a picture with the regions that the model was shown, and the answer below it.

    Colours show relevance, lines the edges of regions. Tiles outside all regions are dark, and coarse regions are
    darker than fine ones. The long side is resized to 640 to 1024 pixels.

    Args:
        picture: The frame, uint8 [H, W, 3].
        heatmap: Relevance of each tile, float32 [gh, gw].
        regions: The shown regions, int [K, 3] (shape, row, col).
        overview: Number of regions at the beginning that cover the whole picture; they get no lines.
        text: The answer.

    Returns:
        The drawing, uint8 [h, w, 3].
    """
    shape = (heatmap.shape[0], heatmap.shape[1])
    fine_regions = regions[overview:].astype(np.int64)
    coarser = np.array([max(sides) for sides in REGION_SHAPES])
    image = _resized(picture, SMALLEST_PX, LONGEST_PX)
    height_px, width_px = image.shape[:2]
    brightness = np.array([*(LEVEL_BRIGHTNESS[level] for level in coarser), UNSEEN_BRIGHTNESS], np.float32)
    tiles = brightness[shape_map(fine_regions, shape)]  # a tile outside all regions has -1, the last entry
    light = cv2.resize(tiles, (width_px, height_px), interpolation=cv2.INTER_NEAREST)
    image = _tinted(image * light[..., None], heatmap)
    sheet = Image.fromarray(image)
    pen = ImageDraw.Draw(sheet)
    for (top, left, bottom, right), level in zip(
        tile_boxes(fine_regions, shape), coarser[fine_regions[:, 0]], strict=True
    ):
        first_y, end_y = (round(row * height_px / shape[0]) for row in (top, bottom))
        first_x, end_x = (round(col * width_px / shape[1]) for col in (left, right))
        corners = (first_x, first_y, max(end_x - 1, first_x), max(end_y - 1, first_y))
        pen.rectangle(corners, outline=OUTLINES[level])
    note = f"{counted(len(regions), 'visual token')} of {counted(shape[0] * shape[1], 'tile')}"
    return np.concatenate([np.asarray(sheet), _strip(width_px, text, note)])


def png(image: Rgb) -> bytes:
    """Encode an image uint8 [H, W, 3] as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def _resized(picture: Rgb, least_px: int, most_px: int) -> Rgb:
    """Resize the picture so that its long side is within the limits."""
    long_px = max(picture.shape[:2])
    scale = min(max(long_px, least_px), most_px) / long_px
    height_px, width_px = (max(1, round(side * scale)) for side in picture.shape[:2])
    return cv2.resize(picture, (width_px, height_px), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)


def _tinted(image: Map, heatmap: Map) -> Rgb:
    """Blend the image [H, W, 3] in 0..255 with the colours of the map, scaled to its largest value."""
    heat = (heatmap / max(float(heatmap.max()), 1e-6)).clip(0, 1).astype(np.float32)
    heat = cv2.resize(heat, (image.shape[1], image.shape[0]), interpolation=cv2.INTER_LINEAR)
    colours = cv2.applyColorMap(np.rint(heat * 255).astype(np.uint8), cv2.COLORMAP_TURBO)[..., ::-1]
    share = TINT * heat[..., None]
    return np.asarray(np.rint(image * (1 - share) + colours * share), np.uint8)


def _strip(width_px: int, text: str, note: str) -> Rgb:
    """Draw lines of text, and a note in grey below them: uint8 [h, width_px, 3]."""
    font = ImageFont.load_default(LINE_PX - 4)
    lines = _lines(text, font, width_px - 2 * MARGIN_PX)
    sheet = Image.new("RGB", (width_px, (len(lines) + 1) * LINE_PX + 2 * MARGIN_PX), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for index, (line, colour) in enumerate([*((line, BRIGHT) for line in lines), (note, MUTED)]):
        pen.text((MARGIN_PX, MARGIN_PX + index * LINE_PX), line, fill=colour, font=font)
    return np.asarray(sheet)


def _lines(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width_px: int) -> Sequence[str]:
    """Wrap text to lines of this width, splitting wider words; text after MOST_LINES lines is cut off."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".lstrip()
        if font.getlength(joined) <= width_px:
            lines[-1] = joined
            continue
        lines.append("")
        for letter in word:
            if lines[-1] and font.getlength(lines[-1] + letter) > width_px:
                lines.append("")
            lines[-1] += letter
    lines = [line for line in lines if line]
    if len(lines) > MOST_LINES:
        last = lines[MOST_LINES - 1]
        while font.getlength(f"{last}…") > width_px:
            last = last[:-1]
        lines = [*lines[: MOST_LINES - 1], f"{last}…"]
    return lines
