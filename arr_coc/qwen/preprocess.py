"""Preprocessing of pictures to tiles and patches, and positions of tokens and patches.

A region (shape, r, c) shows 2^a × 2^b tiles in one token, so its positions lie between those of level 0: patch (i, j)
stands at row 2·r·2^a + 2^a·i + (2^a − 1)/2 and column 2·c·2^b + 2^b·j + (2^b − 1)/2, in patches, the token at row
r·2^a + (2^a − 1)/2 and column c·2^b + (2^b − 1)/2, in tiles. They stay floats up to the cosines: rounding would shift
coarse tokens. At level 0 they are the stock integers (Qwen2-VL, arXiv:2409.12191, section 2.1).

Source: transformers' `Qwen2VLImageProcessor`, which all families use; tests compare the two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from arr_coc.errors import ModelError, ShapeError
from arr_coc.qwen.checkpoint import IMAGE_PROCESSOR_FILE, read_image_processor
from arr_coc.qwen.families import ModelFamily
from arr_coc.qwen.resize import smart_resize
from arr_coc.texture.pictures import Picture, Rgb, to_rgb
from arr_coc.texture.regions import region_sides, token_positions
from arr_coc.types import TILE_PX, TileGrid

__all__ = ["Picture", "Rgb", "to_frames", "to_rgb"]


def to_frames(pictures: Picture | Sequence[Picture]) -> list[Rgb]:
    """Convert one picture, or several (a list, or an array with an additional first axis), to a list of uint8
    [H, W, 3].

    Accepted pictures and errors as `arr_coc.texture.pictures.to_rgb`; pictures of a list may differ in size. Also
    raises ShapeError for an empty list.
    """
    stacked = isinstance(pictures, (np.ndarray, torch.Tensor)) and pictures.ndim == 4
    if not stacked and not isinstance(pictures, (list, tuple)):
        return [to_rgb(pictures)]
    if len(pictures) == 0:  # type: ignore[arg-type]
        raise ShapeError("there is no frame in the list; give at least one picture")
    return [to_rgb(picture) for picture in pictures]  # type: ignore[union-attr]


MERGE = 2
"""Patches a side that one token merges; the same in all families."""


def grid_regions(grid: TileGrid, device: torch.device | str = "cpu") -> torch.Tensor:
    """Return every tile of the grid at level 0, in token order: int64 [rows * cols, 3] (shape, row, col)."""
    rows = torch.arange(grid.rows, device=device).repeat_interleave(grid.cols)
    cols = torch.arange(grid.cols, device=device).repeat(grid.rows)
    return torch.stack([torch.zeros_like(rows), rows, cols], dim=-1)


def patch_positions(regions: torch.Tensor) -> torch.Tensor:
    """Centre of each region's four patches in level-0 patches: float32 [..., 4K, 2] (row, col).

    The order is the encoder's: the four patches of a token follow each other, row by row.
    """
    side_tiles = region_sides(regions).float().unsqueeze(-2)
    step = torch.arange(MERGE, device=regions.device, dtype=torch.float32)
    inner = torch.stack(torch.meshgrid(step, step, indexing="ij"), dim=-1).reshape(MERGE * MERGE, 2)
    corner = regions[..., 1:].float().unsqueeze(-2) * (MERGE * side_tiles)
    places = corner + inner * side_tiles + (side_tiles - 1) / 2
    return places.flatten(-3, -2)


def text_positions(start: int, tokens: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """M-RoPE rows of a run of text: float32 [3, tokens], all three counting from `start`."""
    return torch.arange(start, start + tokens, device=device, dtype=torch.float32).expand(3, -1)


def visual_positions(start: int, regions: torch.Tensor) -> torch.Tensor:
    """Return the M-RoPE positions of the tokens of a frame at `start`: float32 [3, ..., K] (t, h, w)."""
    places = token_positions(regions).movedim(-1, 0) + start
    return torch.cat([torch.full_like(places[:1], start), places])


def after_frame(start: int, grid: TileGrid) -> int:
    """Return the position of text after a frame at `start`; it does not depend on the number of visual tokens."""
    return start + max(grid.rows, grid.cols)


@dataclass(frozen=True, slots=True)
class PixelNormalisation:
    """Normalisation of 8-bit colour for the encoder: (value / 255 − mean) / std, by channel (R, G, B)."""

    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalise pixels [..., 3, H, W] in 0..255 (uint8 or float) to float32 of the same shape."""
        mean = pixels.new_tensor(self.mean, dtype=torch.float32).view(3, 1, 1)
        std = pixels.new_tensor(self.std, dtype=torch.float32).view(3, 1, 1)
        return (pixels.float() / 255 - mean) / std

    def restore(self, values: torch.Tensor) -> torch.Tensor:
        """Return float32 colour in 0..255 of normalised values [..., 3, H, W]: the inverse of a call."""
        mean = values.new_tensor(self.mean, dtype=torch.float32).view(3, 1, 1)
        std = values.new_tensor(self.std, dtype=torch.float32).view(3, 1, 1)
        return (values.float() * std + mean) * 255


def resize_exactly(picture: Rgb, height_px: int, width_px: int) -> Rgb:
    """Resize a picture uint8 [H, W, 3] bicubically with antialiasing, bit for bit as Qwen's processor does.

    That resizes by torchvision, which calls this filter of torch for 8-bit pictures on a CPU. Pillow's, which
    `resize_image` takes, rounds differently: by one or two in up to a third of the values, in noise by more.
    """
    if picture.shape[:2] == (height_px, width_px):
        return picture
    channels_first = torch.from_numpy(np.require(picture, requirements=("C", "W"))).permute(2, 0, 1)[None]
    resized = F.interpolate(channels_first, (height_px, width_px), mode="bicubic", antialias=True, align_corners=False)
    return resized[0].permute(1, 2, 0).contiguous().numpy()


@dataclass(frozen=True, slots=True)
class Preprocessing:
    """Settings of a model's image processor."""

    patch_px: int
    scale: PixelNormalisation
    min_px: int
    max_px: int
    """Least and most pixels (height times width) of a resized picture."""

    @property
    def tile_px(self) -> int:
        """Side of the square of one token: 32 for Qwen3-VL, 28 for the older families."""
        return self.patch_px * MERGE

    def fit(self, picture: Rgb) -> tuple[Rgb, TileGrid]:
        """Resize a picture uint8 [H, W, 3] as the model's own processor does; return it and its grid, whose tiles have
        32 pixels for every model. Raises ShapeError if the picture is too narrow."""
        height_px, width_px = picture.shape[:2]
        rows_px, cols_px = smart_resize(height_px, width_px, self.tile_px, self.min_px, self.max_px)
        grid = TileGrid.of(rows_px // self.tile_px * TILE_PX, cols_px // self.tile_px * TILE_PX)
        return resize_exactly(picture, rows_px, cols_px), grid

    @classmethod
    def read(cls, folder: Path, family: ModelFamily, patch_px: int) -> Preprocessing:
        """Read the folder's `processor_config.json` or `preprocessor_config.json`; missing keys get the family's
        published values.

        Raises ModelError if the file is not JSON, has a value that is not a number, merges other than 2x2 patches, or
        asks for pictures that are not normalised.
        """
        path, values = read_image_processor(folder) or (folder, {})
        for key, constant in (("merge_size", MERGE), ("do_rescale", True), ("do_normalize", True)):
            if values.get(key, constant) != constant:
                raise ModelError(f"{path}: {key} is {values[key]}, only {constant} is supported", "take another model")
        try:
            size = values.get("size") or {}
            return cls(
                patch_px=patch_px,
                scale=PixelNormalisation(
                    _triple(values.get("image_mean") or family.mean), _triple(values.get("image_std") or family.std)
                ),
                min_px=int(values.get("min_pixels") or size.get("shortest_edge") or family.min_px),
                max_px=int(values.get("max_pixels") or size.get("longest_edge") or family.max_px),
            )
        except (AttributeError, TypeError, ValueError) as error:
            raise ModelError(f"{path} holds a value of the wrong kind ({error})", "download the model again") from error

    def write(self, folder: Path) -> None:
        """Write the folder's `preprocessor_config.json`, which `read` and transformers' processors understand."""
        values = {
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": self.patch_px,
            "temporal_patch_size": 2,
            "merge_size": MERGE,
            "image_mean": list(self.scale.mean),
            "image_std": list(self.scale.std),
            "size": {"shortest_edge": self.min_px, "longest_edge": self.max_px},
        }
        (folder / IMAGE_PROCESSOR_FILE).write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def _triple(values: Any) -> tuple[float, float, float]:
    red, green, blue = values
    return float(red), float(green), float(blue)


def to_tiles(image: torch.Tensor, tile_px: int) -> torch.Tensor:
    """Split a picture [rows * tile_px, cols * tile_px, 3] into tiles [rows * cols, 3, tile_px, tile_px] in token order.

    Raises ShapeError if the sides are no multiples of `tile_px`.
    """
    if image.ndim != 3 or image.shape[2] != 3 or image.shape[0] % tile_px or image.shape[1] % tile_px:
        raise ShapeError(f"expected a picture [rows*{tile_px}, cols*{tile_px}, 3], got {list(image.shape)}")
    rows = image.shape[0] // tile_px
    cols = image.shape[1] // tile_px
    tiles = image.reshape(rows, tile_px, cols, tile_px, 3).permute(0, 2, 4, 1, 3)
    return tiles.reshape(rows * cols, 3, tile_px, tile_px)


def fit_tiles(tiles: torch.Tensor, tile_px: int) -> torch.Tensor:
    """Resize tiles [..., 3, S, S] in 0..255 to the model's `tile_px` (antialiased bilinear); unchanged if S is that.

    Models with 14-pixel patches see a 32-pixel tile as 28 pixels. Each tile is resized separately, so the choice of
    tokens never changes a token's pixels.
    """
    if tiles.shape[-1] == tile_px:
        return tiles
    flat = tiles.flatten(0, -4).float()
    resized = F.interpolate(flat, size=(tile_px, tile_px), mode="bilinear", antialias=True, align_corners=False)
    return resized.reshape(*tiles.shape[:-2], tile_px, tile_px)


def to_patches(tiles: torch.Tensor) -> torch.Tensor:
    """Return the encoder's rows [..., 4K, 3 * p * p] of tiles [..., K, 3, 2p, 2p]: four rows a token, channel first."""
    patch_px = tiles.shape[-1] // MERGE
    split = tiles.unflatten(-2, (MERGE, patch_px)).unflatten(-1, (MERGE, patch_px))
    rows = split.movedim((-4, -2), (-5, -4))
    return rows.flatten(-3).flatten(-3, -2).flatten(-3, -2)
