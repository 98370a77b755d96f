"""Texture array of a picture, and scores that need no weights."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from arr_coc.relevance.channels import TextureArray, image_texture
from arr_coc.relevance.knowing import centre_surround_saliency
from arr_coc.types import TILE_PX


def generate_texture_array(image: torch.Tensor, grid_size: int | None = None) -> TextureArray:
    """Return the thirteen channels of pictures, `core13`, with each tile's entropy; `shape` is that of the channels.

    Args:
        image: [B, 3, H, W], uint8 or floating in [0, 1].
        grid_size: Rows and columns of tiles, to which the pictures are resized; None: tiles of 32 pixels, as they are.

    Raises:
        ShapeError, NonFiniteError: As `image_texture`.
    """
    if grid_size is not None:
        floating = image if image.is_floating_point() else image / 255
        side_px = grid_size * TILE_PX
        image = F.interpolate(floating, (side_px, side_px), mode="bilinear", antialias=True).clamp(0, 1)
    return image_texture(image)


def information_score(textures: TextureArray) -> torch.Tensor:
    """Return the Shannon entropy of each tile's luma, in [0, 1]: [B, gh, gw]. A flat tile scores 0."""
    return textures.entropy


def perspectival_score(textures: TextureArray) -> torch.Tensor:
    """Return how much each tile stands out from what surrounds it, in [0, 1]: [B, gh, gw]."""
    return centre_surround_saliency(textures.channels)
