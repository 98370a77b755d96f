"""Resize of pictures as in Qwen's image processor.

Source: transformers' `Qwen2VLImageProcessorPil`, which all families use; tests compare the two. It is what transformers
takes without torchvision. `preprocess.resize_exactly` is its other form.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from PIL import Image

from arr_coc.errors import ShapeError

MAX_ASPECT = 200
"""Largest aspect ratio; Qwen's processor also refuses longer pictures."""


def smart_resize(height_px: int, width_px: int, tile_px: int, min_px: int, max_px: int) -> tuple[int, int]:
    """Return the size (height, width) to which Qwen's image processor resizes a picture; the aspect ratio is kept.

    Args:
        height_px: Height of the picture.
        width_px: Width of the picture.
        tile_px: Side of a tile, of which both sides are multiples.
        min_px: Least pixels (height times width) of the result.
        max_px: Most pixels of the result.

    Raises:
        ShapeError: One side is more than 200 times the other.
    """
    if max(height_px, width_px) > MAX_ASPECT * min(height_px, width_px):
        raise ShapeError(
            f"a picture of {width_px}x{height_px} is too narrow: one side is over {MAX_ASPECT} times the other"
        )
    height = round(height_px / tile_px) * tile_px
    width = round(width_px / tile_px) * tile_px
    if height * width > max_px:
        shrink = math.sqrt(height_px * width_px / max_px)
        height = max(tile_px, math.floor(height_px / shrink / tile_px) * tile_px)
        width = max(tile_px, math.floor(width_px / shrink / tile_px) * tile_px)
    elif height * width < min_px:
        grow = math.sqrt(min_px / (height_px * width_px))
        height = math.ceil(height_px * grow / tile_px) * tile_px
        width = math.ceil(width_px * grow / tile_px) * tile_px
    return height, width


def pad_to_max_aspect(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return a picture uint8 [H, W, 3] that `smart_resize` accepts: if it is too narrow, its edge pixels are repeated
    below or to the right, as for frames that do not fill whole tiles."""
    height_px, width_px = image.shape[:2]
    below = max(0, math.ceil(width_px / MAX_ASPECT) - height_px)
    right = max(0, math.ceil(height_px / MAX_ASPECT) - width_px)
    if below or right:
        return np.pad(image, ((0, below), (0, right), (0, 0)), mode="edge")
    return image


def resize_image(image: npt.NDArray[np.uint8], height_px: int, width_px: int) -> npt.NDArray[np.uint8]:
    """Resize a picture by Pillow's bicubic filter with antialiasing, as Qwen's processor does without torchvision.

    Args:
        image: uint8 [H, W, 3].
        height_px: Height of the result.
        width_px: Width of the result.
    """
    if image.shape[:2] == (height_px, width_px):
        return image
    resized = Image.fromarray(image).resize((width_px, height_px), Image.Resampling.BICUBIC)
    return np.asarray(resized)
