"""The work size: how a frame is scaled before it meets the tile grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from arr_coc.types import TILE_PX, TileGrid
from stream.config import CaptureConfig
from stream.errors import ConfigError, SourceError

QWEN_MIN_PIXELS = 65_536
QWEN_MAX_PIXELS = 16_777_216
"""`size.shortest_edge` and `size.longest_edge` of Qwen3-VL's published preprocessor configuration."""

MAX_SIDE_PX = 16_384
MAX_ASPECT_RATIO = 200
"""Qwen's processor refuses longer and thinner pictures."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What `capture.fit`, `capture.size` and `capture.max_tiles` ask of every frame.

    A frame becomes `size` where one is given. With `resize`, and with `pad` where the padded frame would have more than
    `max_tiles`, it then becomes what Qwen's processor makes of that size: multiples of 32, the aspect ratio kept as
    nearly as they allow. All of it is one bicubic resize in RGB.
    """

    resize: bool = False
    size: tuple[int, int] | None = None
    max_tiles: int | None = None

    @classmethod
    def of(cls, config: CaptureConfig) -> Fit:
        """Reads the configuration. Raises ConfigError on a size of more than `MAX_SIDE_PX`."""
        size = None if config.size is None else _parse_size(config.size)
        return cls(config.fit == "resize", size, config.max_tiles)

    def work_size(self, height_px: int, width_px: int) -> tuple[int, int]:
        """(height, width) in pixels that a frame of the given size is scaled to. Raises SourceError as
        `smart_resize`."""
        height, width = self.size or (height_px, width_px)
        too_many = self.max_tiles is not None and TileGrid.of(height, width).tiles > self.max_tiles
        if not (self.resize or too_many):
            return height, width
        if self.max_tiles is None:
            return smart_resize(height, width, QWEN_MIN_PIXELS, QWEN_MAX_PIXELS)
        height, width = smart_resize(height, width, TILE_PX**2, self.max_tiles * TILE_PX**2)
        return _within(height // TILE_PX, width // TILE_PX, self.max_tiles)


def smart_resize(height_px: int, width_px: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """The (height, width) that Qwen's image processor gives a picture: multiples of 32, area within bounds.

    The rule of `transformers.models.qwen2_vl.image_processing_qwen2_vl.smart_resize` with patch 16 and merge 2. Raises
    SourceError where the longer side is more than 200 times the shorter.
    """
    if max(height_px, width_px) > MAX_ASPECT_RATIO * min(height_px, width_px):
        raise SourceError(
            f"a picture of {width_px}x{height_px} is more than {MAX_ASPECT_RATIO} times longer than wide, which Qwen's "
            'processor refuses; give capture.size = "WxH", or capture.fit = "pad" without capture.max_tiles'
        )
    height, width = (round(side / TILE_PX) * TILE_PX for side in (height_px, width_px))
    if height * width > max_pixels:
        shrink = math.sqrt(height_px * width_px / max_pixels)
        height, width = (max(1, math.floor(side / shrink / TILE_PX)) * TILE_PX for side in (height_px, width_px))
    elif height * width < min_pixels:
        grow = math.sqrt(min_pixels / (height_px * width_px))
        height, width = (math.ceil(side * grow / TILE_PX) * TILE_PX for side in (height_px, width_px))
    return height, width


def _within(rows: int, cols: int, max_tiles: int) -> tuple[int, int]:
    """(height, width) of at most `max_tiles`; `smart_resize` alone exceeds its maximum for long, thin pictures."""
    shorter = min(rows, cols, max_tiles)
    longest = max(1, max_tiles // shorter)
    return min(rows, longest) * TILE_PX, min(cols, longest) * TILE_PX


def resize_rgb(rgb: npt.NDArray[np.uint8], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Bicubic, antialiased, as Pillow and so Qwen's processor does it: uint8 [H, W, 3] → uint8 [height, width, 3]."""
    height, width = size
    return np.asarray(Image.fromarray(rgb).resize((width, height), Image.Resampling.BICUBIC))


def _parse_size(text: str) -> tuple[int, int]:
    width, height = (int(side) for side in text.split("x"))
    if max(width, height) > MAX_SIDE_PX:
        raise ConfigError(f"capture.size is at most {MAX_SIDE_PX}x{MAX_SIDE_PX}, got {text}; give a smaller one")
    return height, width
