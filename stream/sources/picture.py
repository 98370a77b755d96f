"""One still picture, as a viewer shows it: upright by its EXIF tag, over white where it is transparent."""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

WHITE = (255, 255, 255, 255)

_DAMAGED = (
    OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, AttributeError, OverflowError,
    RuntimeError, MemoryError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""What Pillow raises for files that are damaged, or no pictures."""


class PictureError(Exception):
    """A file that shows no picture; the message is the reason alone."""


def read_picture(path: Path, max_pixels: int) -> npt.NDArray[np.uint8]:
    """The picture, of an animation the first: uint8 RGB [H, W, 3].

    Raises PictureError, for one of more than `max_pixels` before it is decoded.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tags that do not matter here
            with Image.open(path) as image:
                if image.width * image.height > max_pixels:
                    raise PictureError(
                        f"it has {image.width}x{image.height} pixels, more than capture.max_pixels = {max_pixels}"
                    )
                image.load()
                return np.asarray(_over_white(ImageOps.exif_transpose(_eight_bits(image))), np.uint8)
    except UnidentifiedImageError as error:
        raise PictureError("it is no picture of a known kind") from error
    except _DAMAGED as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise PictureError(" ".join(reason.split()) or type(error).__name__) from error


def _eight_bits(image: Image.Image) -> Image.Image:
    """A picture of one channel of 16 bits, scaled to 8; Pillow's own conversion would cut at 255."""
    if not image.mode.startswith("I"):
        return image
    samples = np.asarray(image, np.float32)
    scaled = Image.fromarray(np.clip(samples / 257 + 0.5, 0, 255).astype(np.uint8))
    scaled.info = dict(image.info)
    scaled.getexif().update(image.getexif())
    return scaled


def _over_white(image: Image.Image) -> Image.Image:
    if "A" not in image.mode and "a" not in image.mode and "transparency" not in image.info:
        return image.convert("RGB")
    coloured = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", coloured.size, WHITE), coloured).convert("RGB")
