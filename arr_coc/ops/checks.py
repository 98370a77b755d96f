"""What the library refuses, in one line with the remedy."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.errors import BudgetError, NonFiniteError, OptionError, ShapeError


def check_finite(tensor: torch.Tensor, name: str) -> None:
    """Raises NonFiniteError where a tensor holds NaN or Inf; on a GPU this waits for it. Integers pass."""
    if tensor.dtype.is_floating_point and not torch.isfinite(tensor).all():
        raise NonFiniteError(f"{name} holds NaN or Inf")


def as_stack(image: object, name: str = "a picture") -> torch.Tensor | npt.NDArray[Any]:
    """A tensor or array as it is; a Pillow image or a file's path as uint8 [H, W, 3]. Raises ShapeError for others."""
    if isinstance(image, (torch.Tensor, np.ndarray)):
        return image
    if isinstance(image, (list, tuple)):
        raise ShapeError(f"{name} is one array or tensor, got a {type(image).__name__}; stack pictures of one size")
    from arr_coc.ops.pictures import to_rgb  # Pillow takes time to import

    return to_rgb(image)


def check_tensor(value: object, name: str) -> None:
    """Raises ShapeError unless it is a torch tensor of real numbers."""
    if not isinstance(value, torch.Tensor):
        found = "None" if value is None else type(value).__name__
        raise ShapeError(f"{name} must be a torch tensor, got {found}; convert it with torch.as_tensor")
    if value.dtype.is_complex or value.dtype == torch.bool:
        raise ShapeError(f"{name} must hold numbers, got {value.dtype}; convert it with .float()")


def check_images(image: torch.Tensor) -> None:
    """Raises ShapeError unless uint8 or floating point [..., 3, H, W] without an empty axis; NonFiniteError."""
    if image.dtype != torch.uint8 and not image.dtype.is_floating_point:
        raise ShapeError(f"a picture holds uint8 or floating-point samples, got {image.dtype}; convert it with .to()")
    if image.ndim < 3 or image.shape[-3] != 3 or 0 in image.shape:
        raise ShapeError(f"a picture is RGB, [..., 3, H, W], got {list(image.shape)}")
    check_finite(image, "image")


def check_tokens(budget: object, tiles: int) -> int:
    """A budget of tokens, clamped to the number of tiles. Raises BudgetError for anything but a whole number ≥ 1."""
    if isinstance(budget, bool) or not isinstance(budget, numbers.Integral) or budget < 1:
        raise BudgetError(f"a token budget is a whole number of at least 1, got {budget!r}")
    return min(int(budget), tiles)


def check_positive(value: float, name: str) -> float:
    """Raises OptionError unless `value` is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"{name} is a finite number above 0, got {value!r}")
    return float(value)
