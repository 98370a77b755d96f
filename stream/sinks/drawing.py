"""Drawing an allocation over its frame, with a key and the newest answer below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from arr_coc.texture.regions import first_tiles, region_sides, shape_map
from arr_coc.types import LEVELS, REGION_SHAPES, TILE_PX
from stream.media import AllocationOverlay, LabelledBox, MapLayer
from stream.sinks.fonts import TextRenderer
from stream.untrusted import printable

Picture = npt.NDArray[np.uint8]

LEVEL_BRIGHTNESS = (1.0, 0.8, 0.66, 0.56, 0.5, 0.45)
BRIGHTNESS = tuple(float(np.interp((a + b) / 2, range(LEVELS), LEVEL_BRIGHTNESS)) for a, b in REGION_SHAPES)
"""Brightness of a region, by shape."""
UNSEEN_BRIGHTNESS = 0.3
TINT = 0.35
"""Opacity of the relevance colours at the highest relevance."""
OUTLINES = ((255, 226, 92), (150, 190, 255), (122, 150, 205), (110, 130, 170), (100, 115, 145), (95, 105, 130))
"""RGB of the inner line of a region's outline, by the level of the longer side. The outer line is dark, so that one of
the two is visible on any picture."""
DARK = (24, 24, 40)
NEW = (255, 130, 240)
SUPERSEDED = (255, 96, 64)
"""RGB of the inner line if the model has a visual memory: of a new token, and of one that shows an earlier picture."""
OUTLINE_OPACITY = 0.65

LEAST_WIDTH_PX = 320
"""Least width of a strip; a narrower one has no room for its key."""

BACKGROUND = (14, 16, 22)
BRIGHT = "#ffffff"
MUTED = "#a8b0c0"

LAYERS_A_ROW = 4
GAP_PX = 4
"""Between the pictures of two maps."""
GROUND = 0.3
"""Weight of the frame in the picture of a map."""
POINT_PX = 6
"""Radius of a point."""


@dataclass(frozen=True, slots=True)
class BoxStyle:
    """Style of boxes: RGB of their lines, the same as the colour of their text, and the `legend` in the corner of a
    picture with such boxes, in this row, so that the truth is not read as the model's detections."""

    line: tuple[int, int, int]
    text: str
    legend: str
    row: int


TRUTH = BoxStyle((72, 230, 120), "#48e678", "ground truth", 0)
FOUND = BoxStyle((255, 158, 66), "#ff9e42", "the answer's boxes", 1)


@dataclass(frozen=True, slots=True)
class KeyItem:
    """Entry of the key: name, fill of its square (RGB), and colour of its outline, if any."""

    name: str
    fill: tuple[int, int, int]
    outline: tuple[int, int, int] | None = None


KEY = (
    KeyItem("sharp", (255, 255, 255), OUTLINES[0]),
    KeyItem("coarser", (168, 168, 168), OUTLINES[1]),
    KeyItem("not seen", (76, 76, 76)),
)

OUTLINE_KEY = (KeyItem("shown in most detail", (255, 255, 255), OUTLINES[0]),)
"""Key of a picture with outlines alone."""

MEMORY_KEY = (
    KeyItem("new", (255, 255, 255), NEW),
    KeyItem("kept", (255, 255, 255), OUTLINES[0]),
    KeyItem("old", (76, 76, 76), SUPERSEDED),
    KeyItem("unseen", (76, 76, 76)),
)
"""Key if the model has a visual memory: "old" tokens show an earlier picture."""


def draw(overlay: AllocationOverlay, caption: str, note: str, *, dim: bool = True) -> Picture:
    """Draw the frame with its allocation; below it its layers, and a strip with a key.

    Args:
        overlay: The frame and its allocation.
        caption: Newest answer, below the key.
        note: Text beside the key, such as the number of tokens and the time.
        dim: Brightness shows the resolution, as the model receives the frame; otherwise it is drawn as the camera saw
            it, with outlines alone.

    Returns:
        uint8 RGB [H, W, 3], with even sides.
    """
    if dim:
        picture = draw_allocation(overlay)
    else:
        picture = draw_outlines(overlay)
    if overlay.boxes:
        picture = draw_boxes(picture, overlay.boxes, TRUTH)
    if overlay.detections:
        picture = draw_boxes(picture, overlay.detections, FOUND)
    if overlay.layers:
        picture = np.concatenate([picture, draw_layers(overlay.image, overlay.layers, picture.shape[1])])
    beside = max(0, LEAST_WIDTH_PX - picture.shape[1])
    if beside:
        left = beside // 2
        picture = cv2.copyMakeBorder(picture, 0, 0, left, beside - left, cv2.BORDER_CONSTANT, value=BACKGROUND)
    key = OUTLINE_KEY if not dim else KEY if overlay.states is None else MEMORY_KEY
    return np.concatenate([picture, draw_strip(picture.shape[1], caption, note, key)])


def draw_allocation(overlay: AllocationOverlay) -> Picture:
    """Draw the frame with its allocation: uint8 RGB, of `drawn_size`.

    An overview covers the whole frame, so its regions have no outlines. Of superseded tokens of a visual memory only
    the outline is drawn.
    """
    states = np.array(overlay.states or ["shown"] * len(overlay.regions), dtype="U10")
    size = drawn_size(overlay.image.shape[1], overlay.image.shape[0])
    rows, cols = overlay.relevance.shape
    shapes = shape_map(overlay.regions[states != "superseded"], (rows, cols))
    scale = size[0] / overlay.image.shape[1]
    picture = _coarsen(_pad(overlay.image, rows, cols), shapes)
    if scale > 1:
        picture = _within_frame(picture, overlay.image.shape[0], overlay.image.shape[1])
    padded_size = (round(picture.shape[1] * scale), round(picture.shape[0] * scale))
    picture = cv2.resize(picture, padded_size, interpolation=cv2.INTER_NEAREST if scale > 1 else cv2.INTER_AREA)
    brightness = np.array([*BRIGHTNESS, UNSEEN_BRIGHTNESS], dtype=np.float32)[shapes]
    full = _over_tiles((brightness * 255).astype(np.uint8), picture.shape[1], picture.shape[0])
    picture = cv2.multiply(picture, cv2.merge([full, full, full]), scale=1 / 255)
    picture = _tint(picture, overlay.relevance)
    has_outline = ~overlay.is_overview
    for state, colour in (("superseded", SUPERSEDED), ("shown", None), ("new", NEW if overlay.states else None)):
        if (mask := has_outline & (states == state)).any():
            _outline(picture, overlay.regions[mask], scale, colour)
    picture = np.ascontiguousarray(picture[: size[1], : size[0]])
    return cv2.copyMakeBorder(
        picture, 0, size[1] - picture.shape[0], 0, size[0] - picture.shape[1], cv2.BORDER_REPLICATE
    )


def draw_outlines(overlay: AllocationOverlay) -> Picture:
    """Draw the frame with the outlines of its regions of the finest level, without those of an overview: uint8 RGB, of
    `drawn_size`. The coarser regions cover the rest of most frames, and would hide it."""
    size = drawn_size(overlay.image.shape[1], overlay.image.shape[0])
    picture = np.ascontiguousarray(cv2.resize(overlay.image, size, interpolation=cv2.INTER_AREA), np.uint8)
    regions = overlay.regions[~overlay.is_overview]
    levels = np.array([max(shape) for shape in REGION_SHAPES])[regions[:, 0]]
    if len(finest := regions[levels == levels.min(initial=LEVELS)]):
        _outline(picture, finest, size[0] / overlay.image.shape[1], OUTLINES[0])
    return picture


def draw_boxes(picture: Picture, boxes: Sequence[LabelledBox], style: BoxStyle) -> Picture:
    """Draw the outline and the name of each box, and the legend of their style.

    Args:
        picture: uint8 RGB [H, W, 3].
        boxes: Boxes with edges as shares of the picture's sides; a box without an area is drawn as a point.
        style: Colours, and the legend in the corner.

    Returns:
        A new picture, uint8 RGB [H, W, 3].
    """
    image = Image.fromarray(picture)
    pen = ImageDraw.Draw(image)
    letters = _renderer(_heights(image.width)[0])
    edge_px = letters.height_px // 4
    step_px = _step(letters.height_px)

    def write(x: float, y: float, text: str) -> None:
        pen.rectangle((x, y, x + letters.width_px(text) + 2 * edge_px, y + step_px - 1), fill=DARK)
        letters.draw(pen, x + edge_px, _baseline(letters, y), text, style.text)

    for box in boxes:
        left, right = sorted((box.left * image.width, box.right * image.width))
        top, bottom = sorted((box.top * image.height, box.bottom * image.height))
        if left == right and top == bottom:
            left = left - POINT_PX
            top = top - POINT_PX
            right = right + POINT_PX
            bottom = bottom + POINT_PX
            pen.ellipse((left - 1, top - 1, right + 1, bottom + 1), outline=DARK, fill=style.line)
        else:
            pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=DARK)
            pen.rectangle((left, top, right, bottom), outline=style.line)
        if not box.label:
            continue
        x = min(max(0.0, left), image.width - letters.width_px(box.label) - 2 * edge_px)
        above = top - step_px
        write(x, above if above >= 0 else min(bottom, image.height - step_px), box.label)
    write(0, style.row * step_px, style.legend)
    return np.asarray(image)


def draw_layers(image: Picture, layers: Sequence[MapLayer], width_px: int) -> Picture:
    """Draw a picture for each map, side by side below their names.

    Each map's colours are scaled to its largest value, which stands beside its name and weight.

    Args:
        image: The frame, uint8 RGB [H, W, 3].
        layers: Maps [rows, cols] of tiles, with names and weights.
        width_px: Width of the result.

    Returns:
        uint8 RGB [H, width_px, 3], H even.
    """
    across = min(len(layers), LAYERS_A_ROW)
    height, width = image.shape[:2]
    panel_px = (width_px - GAP_PX * (across - 1)) // across
    shown_px = max(2, round(height * panel_px / width))
    letters = _renderer(min(_heights(width_px)[0], max(9, panel_px // 16)))
    title_px = _step(letters.height_px)
    rows = -(-len(layers) // across)
    sheet = Image.new("RGB", (width_px, (rows * (title_px + shown_px + GAP_PX) + 1) // 2 * 2), BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    small = cv2.resize(image, (panel_px, shown_px), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    for at, layer in enumerate(layers):
        left = at % across * (panel_px + GAP_PX)
        top = at // across * (title_px + shown_px + GAP_PX)
        peak = float(layer.values.max(initial=0.0))
        if layer.weight is None:
            weight = ""
        else:
            weight = f" × {layer.weight:.2f}"
        title = letters.wrapped(f"{layer.name}{weight}, up to {peak:.2g}", panel_px - letters.height_px, 1)[0]
        letters.draw(pen, left + letters.height_px // 2, _baseline(letters, top), title, MUTED)
        sheet.paste(Image.fromarray(draw_heat(grey, layer.values, image.shape)), (left, top + title_px))
    return np.asarray(sheet)


def draw_heat(ground: Picture, values: npt.NDArray[np.floating], shape: tuple[int, ...]) -> Picture:
    """Draw a map of tiles in colours over a darkened picture of the frame.

    Args:
        ground: Picture of the frame at any size, uint8 RGB [H, W, 3].
        values: Map [rows, cols]; its last row and column of tiles may extend beyond the frame.
        shape: Height and width of the frame in pixels.

    Returns:
        uint8 RGB [H, W, 3], of the size of `ground`.
    """
    peak = max(float(values.max(initial=0.0)), 1e-6)
    heat = (np.clip(values / peak, 0, 1) * 255).astype(np.uint8)
    height, width = ground.shape[:2]
    reach = width * heat.shape[1] * TILE_PX / shape[1], height * heat.shape[0] * TILE_PX / shape[0]
    heat = cv2.resize(heat, (round(reach[0]), round(reach[1])), interpolation=cv2.INTER_NEAREST)[:height, :width]
    colours = cv2.cvtColor(cv2.applyColorMap(heat, cv2.COLORMAP_INFERNO), cv2.COLOR_BGR2RGB)
    return np.asarray(cv2.addWeighted(ground, GROUND, colours, 1 - GROUND, 0), np.uint8)


def drawn_size(width_px: int, height_px: int) -> tuple[int, int]:
    """Return (width, height) of the drawing of a frame of this size, without the strip: its aspect ratio, even sides as
    H.264's 4:2:0 requires."""
    # limits of the long side: small frames are enlarged, so that text can be read, and large ones reduced
    low = 640
    high = 1280
    long_side = max(width_px, height_px)
    if long_side > high:
        scale = high / long_side
    else:
        scale = max(1, math.ceil(low / long_side))
    return max(2, round(width_px * scale / 2) * 2), max(2, round(height_px * scale / 2) * 2)


def _pad(image: Picture, rows: int, cols: int) -> Picture:
    bottom = rows * TILE_PX - image.shape[0]
    right = cols * TILE_PX - image.shape[1]
    if bottom <= 0 and right <= 0:
        return image[: rows * TILE_PX, : cols * TILE_PX]
    return cv2.copyMakeBorder(image, 0, max(0, bottom), 0, max(0, right), cv2.BORDER_REPLICATE)


def _within_frame(picture: Picture, height_px: int, width_px: int) -> Picture:
    """Return the padded picture without its padding in each direction that has one tile only.

    The tile spans that direction, so nothing moves. Enlarged like the frame, the padding of a frame of 1x1 pixel would
    take 20,480x20,480.
    """
    height, width = picture.shape[:2]
    return picture[: height_px if height == TILE_PX else height, : width_px if width == TILE_PX else width]


def _coarsen(image: Picture, shapes: npt.NDArray[np.int8]) -> Picture:
    """Return the picture with each tile at the resolution of the region that shows it, as the model receives it."""
    result = image.copy()
    height, width = image.shape[:2]
    for code in np.unique(shapes[shapes > 0]).tolist():
        down, across = REGION_SHAPES[code]
        small = cv2.resize(image, (width >> across, height >> down), interpolation=cv2.INTER_AREA)
        coarse = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR)
        mask = _over_tiles((shapes == code).astype(np.uint8), width, height)
        cv2.copyTo(coarse, mask, result)
    return result


def _tint(picture: Picture, relevance: npt.NDArray[np.floating]) -> Picture:
    peak = max(float(relevance.max(initial=0.0)), 1e-6)
    heat = (np.clip(relevance / peak, 0, 1) * 255).astype(np.uint8)
    heat = cv2.resize(heat, (picture.shape[1], picture.shape[0]), interpolation=cv2.INTER_LINEAR)
    colours = cv2.cvtColor(cv2.applyColorMap(heat, cv2.COLORMAP_INFERNO), cv2.COLOR_BGR2RGB)
    squared = cv2.multiply(heat, heat, scale=1 / 255)
    weight = cv2.merge([squared, squared, squared])
    tint = cv2.multiply(colours, weight, scale=TINT / 255)
    rest = cv2.multiply(picture, cv2.subtract(255, cv2.multiply(weight, TINT)), scale=1 / 255)
    return cv2.add(tint, rest)


def _outline(
    picture: Picture, regions: npt.NDArray[np.integer], scale: float, colour: tuple[int, int, int] | None
) -> None:
    """Draw a double line around each region, smallest regions last: dark outside, `colour` inside (None: OUTLINES)."""
    lines = picture.copy()
    first = first_tiles(regions)
    sides = region_sides(regions)
    edges_px = np.rint(np.concatenate([first, first + sides], axis=1) * TILE_PX * scale).astype(int)
    for index in np.argsort(-sides.prod(axis=1), kind="stable"):
        top, left, bottom, right = edges_px[index].tolist()
        cv2.rectangle(lines, (left, top), (right - 1, bottom - 1), DARK, 1)
        if colour is None:
            line = OUTLINES[max(REGION_SHAPES[regions[index, 0]])]
        else:
            line = colour
        cv2.rectangle(lines, (left + 1, top + 1), (right - 2, bottom - 2), line, 1)
    cv2.addWeighted(lines, OUTLINE_OPACITY, picture, 1 - OUTLINE_OPACITY, 0, dst=picture)


def _over_tiles(values: Picture, width: int, height: int) -> Picture:
    return cv2.resize(values, (width, height), interpolation=cv2.INTER_NEAREST)


def strip_height(width_px: int, items: tuple[KeyItem, ...] = KEY) -> int:
    """Return the height of a strip of this width and key, even and independent of its text."""
    small, large = _heights(width_px)
    rows = (1 if _in_one_row(width_px, items) else 2) * _step(small)
    height = rows + _caption_lines(width_px) * _step(large) + large // 2
    return height + height % 2


@lru_cache(maxsize=8)
def draw_strip(width_px: int, caption: str, note: str, items: tuple[KeyItem, ...]) -> Picture:
    """Draw the strip below a picture: its key, a note and a caption.

    Args:
        width_px: Width of the strip.
        caption: Text below the key; if it does not fit its lines, it ends in an ellipsis.
        note: Text beside the key.
        items: Entries of the key.

    Returns:
        uint8 RGB [strip_height(width_px, items), width_px, 3].
    """
    small, large = (_renderer(height) for height in _heights(width_px))
    image = Image.new("RGB", (width_px, strip_height(width_px, items)), BACKGROUND)
    pen = ImageDraw.Draw(image)
    pad = small.height_px // 2
    step = _step(small.height_px)
    _draw_key(image, pad, step, items)
    note_px = small.width_px(note)
    if _in_one_row(width_px, items):
        small.draw(pen, width_px - pad - note_px, _baseline(small, 0), note, MUTED)
        top = step
    else:
        small.draw(pen, pad, _baseline(small, step), note, MUTED)
        top = 2 * step
    for line in large.wrapped(printable(caption), width_px - 2 * pad, _caption_lines(width_px)):
        large.draw(pen, pad, _baseline(large, top), line, BRIGHT)
        top += _step(large.height_px)
    return np.asarray(image)


def heat_colours(width_px: int) -> Picture:
    """Return the colours of relevance from lowest to highest, uint8 RGB [1, width_px, 3]."""
    ramp = np.linspace(0, 255, width_px).astype(np.uint8)[None]
    return np.asarray(cv2.cvtColor(cv2.applyColorMap(ramp, cv2.COLORMAP_INFERNO), cv2.COLOR_BGR2RGB), np.uint8)


def _draw_key(image: Image.Image, pad_px: int, step_px: int, items: tuple[KeyItem, ...]) -> None:
    small = _renderer(_heights(image.width)[0])
    pen = ImageDraw.Draw(image)
    side = small.height_px
    x = float(pad_px)
    top = (step_px - side) // 2
    for item in items:
        pen.rectangle((x, top, x + side - 1, top + side - 1), fill=item.fill, outline=item.outline)
        x += side + side // 3
        small.draw(pen, x, _baseline(small, 0), item.name, MUTED)
        x += small.width_px(item.name) + side
    if items == OUTLINE_KEY:
        return
    ramp = Image.fromarray(np.repeat(heat_colours(2 * side), side, axis=0))
    image.paste(ramp, (round(x), top))
    small.draw(pen, x + 2 * side + side // 3, _baseline(small, 0), "relevance", MUTED)


def _in_one_row(width_px: int, items: tuple[KeyItem, ...]) -> bool:
    """True if key and note fit beside each other."""
    height = _heights(width_px)[0]
    names = " ".join([*(item.name for item in items), "relevance"])
    key_px = _renderer(height).width_px(names) + 3 * len(items) * height
    return key_px + _renderer(height).width_px("00000 of 00000 tokens · 00:00:00.0") + 2 * height <= width_px


def _heights(width_px: int) -> tuple[int, int]:
    """Return the heights of the letters of key and note, and of the caption."""
    return min(max(width_px // 56, 12), 18), min(max(width_px // 40, 16), 28)


def _caption_lines(width_px: int) -> int:
    return 2 if width_px >= 960 else 3  # two lines of this width hold a caption; a narrower strip has three


def _step(height_px: int) -> int:
    """Return the distance from one line to the next."""
    return round(height_px * 1.5)


def _baseline(letters: TextRenderer, top_px: float) -> float:
    return top_px + 1.08 * letters.height_px


@lru_cache(maxsize=8)
def _renderer(height_px: int) -> TextRenderer:
    return TextRenderer(height_px)
