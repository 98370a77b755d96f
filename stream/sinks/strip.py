"""The strip below a drawn picture: a key to its colours, what was shown of it, and the newest answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from stream.printable import printable
from stream.sinks.fonts import Lettering

Picture = npt.NDArray[np.uint8]

LEAST_WIDTH_PX = 320
"""A strip is at least so wide, or its key does not fit."""

WIDE_PX = 960
"""From here on two lines hold a caption; a narrower strip has three."""

BACKGROUND, BRIGHT, MUTED = (14, 16, 22), "#ffffff", "#a8b0c0"

LONGEST_NOTE = "00000 of 00000 tokens · 00:00:00.0"


@dataclass(frozen=True, slots=True)
class KeyItem:
    """One entry of the key: its name, how its square is filled (RGB), and the outline's colour, if it has one."""

    name: str
    fill: tuple[int, int, int]
    outline: tuple[int, int, int] | None = None


def strip_height(width_px: int) -> int:
    """The height of a strip of this width, even; the same for every text."""
    small, large = _heights(width_px)
    rows = (1 if _in_one_row(width_px) else 2) * _step(small)
    height = rows + _caption_lines(width_px) * _step(large) + large // 2
    return height + height % 2


@lru_cache(maxsize=8)
def strip(width_px: int, caption: str, note: str, items: tuple[KeyItem, ...]) -> Picture:
    """The strip as uint8 RGB [strip_height(width_px), width_px, 3].

    `note` stands beside the key; a caption that does not fit its lines ends in an ellipsis.
    """
    small, large = (_lettering(height) for height in _heights(width_px))
    image = Image.new("RGB", (width_px, strip_height(width_px)), BACKGROUND)
    pen, pad = ImageDraw.Draw(image), small.height_px // 2
    step = _step(small.height_px)
    _draw_key(image, pad, step, items)
    note_px = small.width_px(note)
    if _in_one_row(width_px):
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
    """The colours of relevance from none to most, uint8 RGB [1, width_px, 3]."""
    ramp = np.linspace(0, 255, width_px).astype(np.uint8)[None]
    return np.asarray(cv2.cvtColor(cv2.applyColorMap(ramp, cv2.COLORMAP_INFERNO), cv2.COLOR_BGR2RGB), np.uint8)


def _draw_key(image: Image.Image, pad_px: int, step_px: int, items: tuple[KeyItem, ...]) -> None:
    small = _lettering(_heights(image.width)[0])
    pen, side, x = ImageDraw.Draw(image), small.height_px, float(pad_px)
    top = (step_px - side) // 2
    for item in items:
        pen.rectangle((x, top, x + side - 1, top + side - 1), fill=item.fill, outline=item.outline)
        x += side + side // 3
        small.draw(pen, x, _baseline(small, 0), item.name, MUTED)
        x += small.width_px(item.name) + side
    ramp = Image.fromarray(np.repeat(heat_colours(2 * side), side, axis=0))
    image.paste(ramp, (round(x), top))
    small.draw(pen, x + 2 * side + side // 3, _baseline(small, 0), "relevance", MUTED)


def _in_one_row(width_px: int) -> bool:
    """Whether key and note fit beside each other."""
    height = _heights(width_px)[0]
    key_px = _lettering(height).width_px("sharp coarser not seen relevance") + 9 * height
    return key_px + _lettering(height).width_px(LONGEST_NOTE) + 2 * height <= width_px


def _heights(width_px: int) -> tuple[int, int]:
    """Of the letters: key and note, caption."""
    return min(max(width_px // 56, 12), 18), min(max(width_px // 40, 16), 28)


def _caption_lines(width_px: int) -> int:
    return 2 if width_px >= WIDE_PX else 3


def _step(height_px: int) -> int:
    """From one line to the next."""
    return round(height_px * 1.5)


def _baseline(letters: Lettering, top_px: float) -> float:
    return top_px + 1.08 * letters.height_px


@lru_cache(maxsize=8)
def _lettering(height_px: int) -> Lettering:
    return Lettering(height_px)
