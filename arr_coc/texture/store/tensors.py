"""Frames as torch tensors: the format of the store that takes them, and whether one fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arr_coc.errors import ShapeError
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.types import Colour

if TYPE_CHECKING:
    import torch


def format_of(frame: torch.Tensor) -> PlaneFormat:
    """Return the format of a store for frames as tensors: uint8 [H, W, 3] or [3, H, W] (a width of 3 is taken for
    channels).

    Raises ShapeError if the tensor is neither.
    """
    import torch  # a caller with a tensor has loaded it

    shape = tuple(frame.shape)
    if frame.dtype != torch.uint8 or len(shape) != 3 or 3 not in (shape[0], shape[2]) or 0 in shape:
        raise ShapeError(f"a frame is uint8 [H, W, 3] or [3, H, W], got {frame.dtype} {list(shape)}")
    height, width = shape[:2] if shape[2] == 3 else shape[1:]
    return PlaneFormat("rgb", height, width, (1, 1), Colour())


def channels_last(frame: torch.Tensor, fmt: PlaneFormat) -> torch.Tensor:
    """Return a view [H, W, 3] of a frame uint8 [H, W, 3] or [3, H, W], RGB, for a store of this format.

    Raises ShapeError if the store takes no tensors, or none of this shape and dtype.
    """
    import torch

    size = (fmt.height_px, fmt.width_px)
    shape = tuple(frame.shape)
    if fmt.layout != "rgb":
        raise ShapeError(f"frames as tensors are RGB, and the store was opened for layout {fmt.layout}")
    if frame.dtype != torch.uint8 or shape not in ((*size, 3), (3, *size)):
        raise ShapeError(
            f"a frame is uint8 {[*size, 3]} or {[3, *size]} for this store, got {frame.dtype} {list(shape)}; "
            "open another store for frames of another size"
        )
    if shape == (*size, 3):
        return frame
    return frame.permute(1, 2, 0)
