"""Processing resolution: scaling of a frame before it is divided into tiles, and the format of a frame."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.errors import ShapeError
from arr_coc.qwen.resize import MAX_ASPECT, resize_image
from arr_coc.qwen.resize import smart_resize as qwen_size
from arr_coc.types import TILE_PX, Colour, FramePlanes, TileGrid
from stream.config import CaptureConfig
from stream.errors import ConfigError, SourceError

Image = npt.NDArray[np.uint8]

QWEN_MIN_PIXELS = 65_536
QWEN_MAX_PIXELS = 16_777_216
"""`size.shortest_edge` and `size.longest_edge` of Qwen3-VL's published preprocessor configuration."""

MAX_SIDE_PX = 16_384

KERNEL_PX = 2
"""Reach of bicubic interpolation, in pixels of the larger of the two pictures."""

CHROMA_PX = 8
"""Reach of a conversion to RGB in pixels: two chroma samples, each of at most four pixels."""


@dataclass(frozen=True, slots=True)
class FrameFitter:
    """Fitting of every frame by `capture.fit`, `capture.size` and `capture.max_tiles`.

    `size` alone scales the planes directly, which is fast. With `resize`, and with `pad` if the padded frame would have
    more than `max_tiles`, the result equals that of Qwen's processor: converted to RGB by swscale, then one bicubic
    resize to multiples of 32 that keeps the aspect ratio as closely as they allow.
    """

    resize: bool = False
    size: tuple[int, int] | None = None
    max_tiles: int | None = None

    @classmethod
    def of(cls, config: CaptureConfig) -> FrameFitter:
        """Read the configuration. Raises ConfigError on a size of more than `MAX_SIDE_PX`."""
        if config.size is None:
            size = None
        else:
            width, height = (int(side) for side in config.size.split("x"))
            if max(width, height) > MAX_SIDE_PX:
                raise ConfigError(
                    f"capture.size is at most {MAX_SIDE_PX}x{MAX_SIDE_PX}, got {config.size}; give a smaller one"
                )
            size = height, width
        return cls(config.fit == "resize", size, config.max_tiles)

    def apply(
        self, planes: FramePlanes, rgb: Callable[[], Image], display_px: tuple[int, int] | None = None
    ) -> FramePlanes:
        """Return the frame at its processing resolution; `rgb` converts it if needed.

        `display_px` is its (height, width) in square pixels, if its own are not: one resize does both.
        Raises SourceError as `smart_resize`.
        """
        native = planes.height_px, planes.width_px
        display_px = display_px or native
        target = self.processing_resolution(*display_px)
        if self.resizes_like_qwen(*display_px):
            picture = rgb()
            if planes.layout == "rgb":
                reach_px = planes.reach_px
            else:
                reach_px = planes.reach_px + CHROMA_PX
            if target != native:
                picture = resize_rgb(picture, target)
                reach_px = _scaled_reach(reach_px, native, target)
            return FramePlanes("rgb", (picture,), reach_px=reach_px)
        if target == native:
            return planes
        return resize_planes(planes, target)

    def resizes_like_qwen(self, height_px: int, width_px: int) -> bool:
        """Return True if a frame of the given size is prepared as Qwen's processor would."""
        height, width = self.size or (height_px, width_px)
        return self.resize or (self.max_tiles is not None and TileGrid.of(height, width).tiles > self.max_tiles)

    def processing_resolution(self, height_px: int, width_px: int) -> tuple[int, int]:
        """Return the (height, width) in pixels to which a frame of the given size is scaled. Raises SourceError as
        `smart_resize`."""
        height, width = self.size or (height_px, width_px)
        if not self.resizes_like_qwen(height_px, width_px):
            return height, width
        if self.max_tiles is None:
            return smart_resize(height, width, QWEN_MIN_PIXELS, QWEN_MAX_PIXELS)
        height, width = smart_resize(height, width, TILE_PX**2, self.max_tiles * TILE_PX**2)
        # of long, thin pictures `smart_resize` alone gives more than `max_tiles`
        rows = height // TILE_PX
        cols = width // TILE_PX
        longest = max(1, self.max_tiles // min(rows, cols, self.max_tiles))
        return min(rows, longest) * TILE_PX, min(cols, longest) * TILE_PX


def smart_resize(height_px: int, width_px: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """Return the (height, width) of a picture in Qwen's image processor: multiples of 32, area within bounds.

    `arr_coc.qwen.resize.smart_resize` for tiles of patch 16 and merge 2.

    Args:
        height_px: Height of the picture.
        width_px: Width of the picture.
        min_pixels: Least area of the result.
        max_pixels: Largest area of the result.

    Raises:
        SourceError: If the longer side is more than 200 times the shorter.
    """
    try:
        return qwen_size(height_px, width_px, TILE_PX, min_pixels, max_pixels)
    except ShapeError as error:
        raise SourceError(
            f"a picture of {width_px}x{height_px} is more than {MAX_ASPECT} times longer than wide, which Qwen's "
            'processor refuses; give capture.size = "WxH", or capture.fit = "pad" without capture.max_tiles'
        ) from error


def resize_rgb(rgb: Image, size: tuple[int, int]) -> Image:
    """Resize bicubically with antialiasing, like Pillow and Qwen's processor: uint8 [H, W, 3] → [height, width, 3]."""
    return resize_image(rgb, *size)


def resize_planes(planes: FramePlanes, size: tuple[int, int]) -> FramePlanes:
    """Scale every plane separately, with its chroma subsampling kept: by area to shrink, bicubically to enlarge."""
    scaled = []
    for plane in planes.planes:
        height, width = (
            math.ceil(target / round(luma_px / plane_px))
            for target, luma_px, plane_px in zip(size, planes.planes[0].shape, plane.shape, strict=False)
        )
        shrinks = height <= plane.shape[0] and width <= plane.shape[1]
        interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
        scaled.append(np.asarray(cv2.resize(plane, (width, height), interpolation=interpolation), np.uint8))
    reach_px = planes.reach_px + (CHROMA_PX if planes.layout == "yuv" else KERNEL_PX)
    native = planes.height_px, planes.width_px
    return FramePlanes(planes.layout, tuple(scaled), planes.colour, reach_px=_scaled_reach(reach_px, native, size))


def _scaled_reach(reach_px: int, native: tuple[int, int], target: tuple[int, int]) -> int:
    """Return `FramePlanes.reach_px` of a picture that is scaled from `native` to `target` (height, width): a pixel of
    it holds something of every source pixel that its kernel meets, however little of that."""
    largest = max(new / old for new, old in zip(target, native, strict=True))
    return math.ceil((reach_px + 1) * largest + KERNEL_PX * max(1.0, largest))


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """Coded size, shapes of the planes, and colour encoding of a frame."""

    coded_size: tuple[int, int]
    shapes: tuple[tuple[int, ...], ...]
    colour: Colour

    @classmethod
    def of(cls, coded_size: tuple[int, int], planes: FramePlanes) -> FrameFormat:
        return cls(coded_size, tuple(plane.shape for plane in planes.planes), planes.colour)

    def change_since(self, previous: FrameFormat | None) -> str | None:
        """Return the `discontinuity` of a frame of this format after one of the `previous` format."""
        if previous is None:
            return "start"
        if self.coded_size != previous.coded_size:
            return "resolution"
        return "format" if self != previous else None
