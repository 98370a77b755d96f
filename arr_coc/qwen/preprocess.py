"""From pictures to the encoder's patches, as Qwen's image processor does it, without torchvision.

Source: transformers' `Qwen2VLImageProcessorPil`, which all families use; the tests hold both together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from arr_coc.errors import ModelError, ShapeError
from arr_coc.qwen.positions import MERGE
from arr_coc.qwen.weight_files import read_object


@dataclass(frozen=True, slots=True)
class PixelScale:
    """How 8-bit colour becomes the encoder's input: (value / 255 − mean) / std, by channel (R, G, B)."""

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Float32 of the same shape from [..., 3, H, W] in 0..255 (uint8 or float)."""
        mean = pixels.new_tensor(self.mean, dtype=torch.float32).view(3, 1, 1)
        std = pixels.new_tensor(self.std, dtype=torch.float32).view(3, 1, 1)
        return (pixels.float() / 255 - mean) / std


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """What a model's `preprocessor_config.json` asks for."""

    patch_px: int
    scale: PixelScale
    min_px: int
    max_px: int
    """Least and most pixels (height times width) of a resized picture."""

    @property
    def tile_px(self) -> int:
        """Side of the square that one token shows: 32 for Qwen3-VL, 28 for the older families."""
        return self.patch_px * MERGE

    @classmethod
    def read(cls, folder: Path, patch_px: int) -> Preprocessing:
        """From the folder's `preprocessor_config.json`; Qwen3-VL's published values where a key is absent.

        Raises ModelError where the file is not JSON, holds no numbers, or merges other than 2x2 patches.
        """
        path = folder / "preprocessor_config.json"
        values = read_object(path) if path.exists() else {}
        if values.get("merge_size", MERGE) != MERGE:
            raise ModelError(f"{path}: merge_size is {values['merge_size']}, only {MERGE} is supported")
        try:
            size = values.get("size") or {}
            return cls(
                patch_px=patch_px,
                scale=PixelScale(_triple(values.get("image_mean")), _triple(values.get("image_std"))),
                min_px=int(values.get("min_pixels") or size.get("shortest_edge") or 256 * 256),
                max_px=int(values.get("max_pixels") or size.get("longest_edge") or 4096 * 4096),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise ModelError(f"{path} holds a value of the wrong kind ({error})", "download the model again") from error


def _triple(values: Any) -> tuple[float, float, float]:
    red, green, blue = values or (0.5, 0.5, 0.5)
    return float(red), float(green), float(blue)


def to_tiles(image: torch.Tensor, tile_px: int) -> torch.Tensor:
    """Tiles in token order, [rows * cols, 3, tile_px, tile_px], of a picture [rows * tile_px, cols * tile_px, 3].

    Raises ShapeError where the sides are no multiples of `tile_px`.
    """
    if image.ndim != 3 or image.shape[2] != 3 or image.shape[0] % tile_px or image.shape[1] % tile_px:
        raise ShapeError(f"expected a picture [rows*{tile_px}, cols*{tile_px}, 3], got {list(image.shape)}")
    rows, cols = image.shape[0] // tile_px, image.shape[1] // tile_px
    tiles = image.reshape(rows, tile_px, cols, tile_px, 3).permute(0, 2, 4, 1, 3)
    return tiles.reshape(rows * cols, 3, tile_px, tile_px)


def fit_tiles(tiles: torch.Tensor, tile_px: int) -> torch.Tensor:
    """Tiles [..., 3, S, S] in 0..255 at the side a model wants (antialiased bilinear); unchanged where S fits.

    Models with 14-pixel patches see a 32-pixel tile as 28 pixels. Each tile is resized on its own, so
    the choice of tokens never changes a token's pixels.
    """
    if tiles.shape[-1] == tile_px:
        return tiles
    flat = tiles.flatten(0, -4).float()
    resized = F.interpolate(flat, size=(tile_px, tile_px), mode="bilinear", antialias=True, align_corners=False)
    return resized.reshape(*tiles.shape[:-2], tile_px, tile_px)


def to_patches(tiles: torch.Tensor) -> torch.Tensor:
    """The encoder's rows, [..., 4K, 3 * p * p], of tiles [..., K, 3, 2p, 2p]: four rows a token, channel first."""
    patch_px = tiles.shape[-1] // MERGE
    split = tiles.unflatten(-2, (MERGE, patch_px)).unflatten(-1, (MERGE, patch_px))
    rows = split.movedim((-4, -2), (-5, -4))
    return rows.flatten(-3).flatten(-3, -2).flatten(-3, -2)
