"""One picture or several, as the list of frames that a question is about."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from arr_coc.errors import ShapeError
from arr_coc.ops.pictures import Picture, Rgb, to_rgb

__all__ = ["Picture", "Rgb", "to_frames", "to_rgb"]


def to_frames(pictures: Picture | Sequence[Picture]) -> list[Rgb]:
    """One picture, or several in order (a list, or an array with a first axis more), each uint8 [H, W, 3].

    What a picture may be, and what is raised: `arr_coc.ops.pictures.to_rgb`. Those of a list may be of several sizes.
    Raises ShapeError for an empty list too.
    """
    stacked = isinstance(pictures, (np.ndarray, torch.Tensor)) and pictures.ndim == 4
    if not stacked and not isinstance(pictures, (list, tuple)):
        return [to_rgb(pictures)]
    if len(pictures) == 0:  # type: ignore[arg-type]
        raise ShapeError("there is no frame in the list; give at least one picture")
    return [to_rgb(picture) for picture in pictures]  # type: ignore[union-attr]
