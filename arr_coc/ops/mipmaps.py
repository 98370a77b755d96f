"""`generate_mipmaps` for tensors and arrays; argument checks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, overload

import cv2
import numpy as np
import torch
from torch.nn import functional as F

from arr_coc.errors import ShapeError
from arr_coc.texture.pictures import as_stack, check_images
from arr_coc.texture.store.planes import Plane
from arr_coc.types import LEVELS, TileGrid

if TYPE_CHECKING:
    from PIL import Image


@overload
def generate_mipmaps(image: torch.Tensor) -> tuple[torch.Tensor, ...]: ...


@overload
def generate_mipmaps(image: Plane | Image.Image | str | Path) -> tuple[Plane, ...]: ...


def generate_mipmaps(
    image: torch.Tensor | Plane | Image.Image | str | Path,
) -> tuple[torch.Tensor, ...] | tuple[Plane, ...]:
    """Return the six levels of a picture, or of every picture of a batch in one pass; the finest first.

    `image`: torch [..., 3, H, W], uint8 or floating point, on any device, strided as it likes; or NumPy uint8
    [..., H, W, 3]; or a Pillow image or a picture's file, which are read as NumPy.

    Returns levels [..., 3, rows * 32 >> l, cols * 32 >> l] (NumPy: channels last) of the same kind,
    dtype and device, contiguous; the picture is padded to whole tiles of 32 pixels by edge replication. Level 0 is
    `image` itself if that is contiguous and needs no padding.

    uint8: each texel is `(a + b + c + d + 2) >> 2` of the four below it, the same bytes as every texture store.
    Floating point: their mean, differentiable. Raises ShapeError for another shape or dtype, NonFiniteError for NaN
    or Inf.
    """
    image = as_stack(image)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim < 3 or image.shape[-1] != 3 or image.size == 0:
            raise ShapeError(
                f"a NumPy picture is uint8 [..., H, W, 3], got {image.dtype} {list(image.shape)}; "
                "give others as torch tensors [..., 3, H, W]"
            )
        return _of_array(image)
    check_images(image)
    levels = [_padded(image)]
    halved = _halved_by_torch
    if image.dtype == torch.uint8 and image.device.type == "cpu":
        halved = _halved_by_cv2
    while len(levels) < LEVELS:
        levels.append(halved(levels[-1]))
    return tuple(levels)


def _of_array(image: Plane) -> tuple[Plane, ...]:
    height, width = image.shape[-3:-1]
    grid = TileGrid.of(height, width)
    edges = ((0, grid.padded_height_px - height), (0, grid.padded_width_px - width), (0, 0))
    padding = [(0, 0)] * (image.ndim - 3) + list(edges)
    levels = [np.ascontiguousarray(image if not np.any(padding) else np.pad(image, padding, mode="edge"))]
    while len(levels) < LEVELS:
        fine = levels[-1]
        *batch, high, wide, channels = fine.shape
        coarse = _halve(fine.reshape(-1, wide, channels))
        levels.append(coarse.reshape(*batch, high // 2, wide // 2, channels))
    return tuple(levels)


def _padded(image: torch.Tensor) -> torch.Tensor:
    height, width = image.shape[-2:]
    grid = TileGrid.of(height, width)
    right = grid.padded_width_px - width
    bottom = grid.padded_height_px - height
    if not (right or bottom):
        return image.contiguous()
    stack = image.reshape(-1, 3, height, width)
    padded = F.pad(stack, (0, right, 0, bottom), mode="replicate").contiguous()
    return padded.reshape(*image.shape[:-2], *padded.shape[-2:])


def _halved_by_torch(fine: torch.Tensor) -> torch.Tensor:
    """Halve by adding rows first: contiguous reads make this several times as fast as avg_pool2d on a CPU."""
    if fine.dtype.is_floating_point:
        return _added(fine) * 0.25
    return (_added(fine.to(torch.int16)) + 2).bitwise_right_shift(2).to(torch.uint8)


def _added(fine: torch.Tensor) -> torch.Tensor:
    """Sums over 2×2 texels: [..., h, w] → [..., h/2, w/2]."""
    rows = fine[..., ::2, :] + fine[..., 1::2, :]
    return rows[..., ::2] + rows[..., 1::2]


def _halved_by_cv2(fine: torch.Tensor) -> torch.Tensor:
    """Halve all planes at once, laid on top of each other: their heights are even, so no box straddles two."""
    *batch, height, width = fine.shape
    coarse = _halve(fine.numpy().reshape(-1, width))
    return torch.from_numpy(coarse).reshape(*batch, height // 2, width // 2)


def _halve(fine: Plane) -> Plane:
    """cv2's INTER_AREA by 2 equals the box filter bit for bit, and is 15 times as fast as torch's integers."""
    return np.asarray(cv2.resize(fine, (fine.shape[1] // 2, fine.shape[0] // 2), interpolation=cv2.INTER_AREA))
