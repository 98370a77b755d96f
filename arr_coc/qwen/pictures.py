"""Pictures as people have them, as the arrays that the adapter works on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from arr_coc.errors import ShapeError

Picture: TypeAlias = str | Path | Image.Image | npt.NDArray[np.uint8] | torch.Tensor
"""A file, a Pillow image, uint8 [H, W, 3] or [H, W], or a tensor: uint8 or float in [0, 1], [3, H, W] or [H, W, 3]."""

Rgb: TypeAlias = npt.NDArray[np.uint8]


def to_frames(pictures: Picture | Sequence[Picture]) -> list[Rgb]:
    """One picture, or several in order (a list, or an array with a first axis more), each uint8 [H, W, 3].

    Raises ShapeError where something is no picture, FileNotFoundError for a file that does not exist.
    """
    stacked = isinstance(pictures, (np.ndarray, torch.Tensor)) and pictures.ndim == 4
    if not stacked and not isinstance(pictures, (list, tuple)):
        return [to_rgb(pictures)]
    frames = [to_rgb(picture) for picture in pictures]  # type: ignore[union-attr]
    if not frames:
        raise ShapeError("there is no frame in the list")
    return frames


def to_rgb(picture: Any) -> Rgb:
    """One picture as uint8 [H, W, 3], upright. Raises as `to_frames`."""
    if isinstance(picture, (str, Path)):
        try:
            with Image.open(picture) as opened:
                return to_rgb(opened)
        except UnidentifiedImageError as error:
            raise ShapeError(f"{picture} is not an image that can be read") from error
    if isinstance(picture, Image.Image):
        return np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    if isinstance(picture, torch.Tensor):
        return _from_tensor(picture)
    if not isinstance(picture, np.ndarray):
        raise ShapeError(f"a picture is a path, a Pillow image, an array or a tensor, got {type(picture).__name__}")
    if picture.ndim == 2:
        picture = np.repeat(picture[..., None], 3, axis=2)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ShapeError(f"a picture is uint8 [H, W, 3] or [H, W], got {picture.dtype} {list(picture.shape)}")
    return np.ascontiguousarray(picture)


def _from_tensor(picture: torch.Tensor) -> Rgb:
    picture = picture.detach().cpu()
    if picture.ndim == 3 and picture.shape[0] == 3 and picture.shape[2] != 3:
        picture = picture.permute(1, 2, 0)
    if picture.is_floating_point():
        low, high = float(picture.min()), float(picture.max())
        if not (low >= 0 and high <= 1):
            raise ShapeError(f"a picture of floats lies in [0, 1], got values from {low:g} to {high:g}")
        picture = (picture * 255).round().to(torch.uint8)
    return to_rgb(picture.numpy())
