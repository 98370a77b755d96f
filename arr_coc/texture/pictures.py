"""Pictures of every kind as uint8 [H, W, 3], and checks of picture arguments."""

from __future__ import annotations

import math
import numbers
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from arr_coc.errors import BudgetError, NonFiniteError, OptionError, ShapeError


def check_finite(tensor: torch.Tensor, name: str) -> None:
    """Raise NonFiniteError if a tensor holds NaN or Inf; on a GPU this waits for it. Integers pass."""
    if tensor.dtype.is_floating_point and not torch.isfinite(tensor).all():
        raise NonFiniteError(f"{name} holds NaN or Inf")


def as_stack(image: object) -> torch.Tensor | npt.NDArray[Any]:
    """Return a tensor or array as it is; a Pillow image or a file's path as uint8 [H, W, 3]. Raises ShapeError for
    others."""
    if isinstance(image, (torch.Tensor, np.ndarray)):
        return image
    if isinstance(image, (list, tuple)):
        raise ShapeError(f"a picture is one array or tensor, got a {type(image).__name__}; stack pictures of one size")
    return to_rgb(image)


def check_tensor(value: object, name: str) -> None:
    """Raise ShapeError unless it is a torch tensor of real numbers."""
    if not isinstance(value, torch.Tensor):
        type_name = "None" if value is None else type(value).__name__
        raise ShapeError(f"{name} must be a torch tensor, got {type_name}; convert it with torch.as_tensor")
    if value.dtype.is_complex or value.dtype == torch.bool:
        raise ShapeError(f"{name} must hold numbers, got {value.dtype}; convert it with .float()")


def check_images(image: torch.Tensor) -> None:
    """Raise ShapeError unless uint8 or floating point [..., 3, H, W] without an empty axis; NonFiniteError."""
    if image.dtype != torch.uint8 and not image.dtype.is_floating_point:
        raise ShapeError(f"a picture holds uint8 or floating-point samples, got {image.dtype}; convert it with .to()")
    if image.ndim < 3 or image.shape[-3] != 3 or 0 in image.shape:
        raise ShapeError(f"a picture is RGB, [..., 3, H, W], got {list(image.shape)}")
    check_finite(image, "image")


def check_tokens(budget: object, tiles: int) -> int:
    """Return a budget of tokens, clamped to the number of tiles. Raises BudgetError for anything but a whole number ≥
    1."""
    if isinstance(budget, bool) or not isinstance(budget, numbers.Integral) or budget < 1:
        raise BudgetError(f"a token budget is a whole number of at least 1, got {budget!r}")
    return min(int(budget), tiles)


def check_positive(value: float, name: str) -> float:
    """Raise OptionError unless `value` is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"{name} is a finite number above 0, got {value!r}")
    return float(value)


Picture: TypeAlias = str | Path | Image.Image | npt.NDArray[Any] | torch.Tensor
"""A file, a Pillow image, or an array or tensor: see `to_rgb`."""

Rgb: TypeAlias = npt.NDArray[np.uint8]

CHANNELS = (1, 3, 4)
"""Grey, RGB, RGB with alpha."""

MAX_16_BIT = 65535


def to_rgb(picture: object) -> Rgb:
    """One picture as uint8 [H, W, 3], in C order.

    `picture` is a file's path; a Pillow image of any mode; or a NumPy array or torch tensor, [H, W] or with an axis of
    1, 3 or 4 channels (grey, RGB, RGB with alpha), last or first. An axis of three is taken for the colours before
    another, and the last before the first. Of samples,

    - uint8 are taken as they are, uint16 as 16 bits (0 to 65535), bool as black and white;
    - floats lie in [0, 1];
    - other integers lie in 0 to 255.

    Alpha is left out, as Qwen's own processor does. A picture that needs no change is not copied. Raises ShapeError for
    anything else, NonFiniteError for NaN or Inf, FileNotFoundError for a file that does not exist.
    """
    if isinstance(picture, (str, Path)):
        try:
            with Image.open(picture) as image:
                return _from_pillow(image)
        except (UnidentifiedImageError, IsADirectoryError) as error:
            raise ShapeError(f"{picture} is not an image that can be read; give a picture's file") from error
        except FileNotFoundError as error:
            raise FileNotFoundError(f"there is no file {picture}; check the path of the picture") from error
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ShapeError(f"{picture} cannot be read as a picture ({error}); save it again") from error
    if isinstance(picture, Image.Image):
        return _from_pillow(picture)
    if isinstance(picture, torch.Tensor):
        if picture.layout != torch.strided or picture.is_meta or picture.dtype.is_complex or picture.is_quantized:
            raise ShapeError(f"a picture is a dense tensor of numbers, got {picture.dtype}, {picture.layout}")
        picture = picture.detach().cpu()
        picture = (picture.float() if picture.dtype == torch.bfloat16 else picture).numpy()
    if not isinstance(picture, np.ndarray):
        kind = "None" if picture is None else type(picture).__name__
        raise ShapeError(
            f"a picture is a path, a Pillow image, a NumPy array or a torch tensor, got {kind}; "
            "open or convert it first"
        )
    pixels = _eight_bits(_channels_last(picture))
    if pixels.shape[2] == 1:  # grey
        pixels = np.repeat(pixels, 3, axis=2)
    return np.ascontiguousarray(pixels[..., :3])


def _from_pillow(image: Image.Image) -> Rgb:
    upright = ImageOps.exif_transpose(image)
    if 0 in upright.size:
        raise ShapeError(f"a picture has at least one pixel, got {upright.width}x{upright.height}")
    if upright.mode.startswith("I"):  # 16 bits, which Pillow would cut off at 255
        samples = np.asarray(upright)
        low = int(samples.min())
        high = int(samples.max())
        if low < 0 or high > MAX_16_BIT:
            raise ShapeError(f"a picture of integers has 16 bits, 0 to {MAX_16_BIT}, got values from {low} to {high}")
        return to_rgb(samples.astype(np.uint16))
    if upright.mode == "F":
        return to_rgb(np.asarray(upright))
    return np.asarray(upright.convert("RGB"))


def _channels_last(picture: npt.NDArray[Any]) -> npt.NDArray[Any]:
    shape = list(picture.shape)
    if 0 in shape:
        raise ShapeError(f"a picture has at least one pixel, got {shape}")
    if picture.ndim == 2:
        return picture[..., None]
    if picture.ndim == 3:
        for channels in (3, *CHANNELS):
            if shape[2] == channels:
                return picture
            if shape[0] == channels:
                return np.moveaxis(picture, 0, 2)
    raise ShapeError(
        f"a picture is [H, W], or [H, W, C] or [C, H, W] with 1, 3 or 4 channels, got {picture.dtype} {shape}"
    )


def _eight_bits(picture: npt.NDArray[Any]) -> Rgb:
    kind = picture.dtype.kind
    if picture.dtype == np.uint8:
        return picture
    if kind == "b":
        return picture.astype(np.uint8) * np.uint8(255)
    if picture.dtype == np.uint16:
        return np.asarray((picture.astype(np.uint32) * 255 + MAX_16_BIT // 2) // MAX_16_BIT, np.uint8)
    if kind == "f":
        if not np.isfinite(picture).all():
            raise NonFiniteError("a picture holds NaN or Inf")
        low = float(picture.min())
        high = float(picture.max())
        if low < 0 or high > 1:
            raise ShapeError(
                f"a picture of floats lies in [0, 1], got values from {low:g} to {high:g}; divide it by its highest one"
            )
        return np.asarray(np.rint(picture.astype(np.float64) * 255), np.uint8)
    if kind not in "iu":
        raise ShapeError(f"a picture holds numbers, got {picture.dtype}; convert it to uint8")
    least = int(picture.min())
    most = int(picture.max())
    if least < 0 or most > 255:
        raise ShapeError(
            f"a picture of {picture.dtype} lies in 0 to 255, got values from {least} to {most}; convert it to uint8, "
            "or to uint16 for 16 bits"
        )
    return picture.astype(np.uint8)
