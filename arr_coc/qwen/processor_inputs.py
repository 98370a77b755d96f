"""Inputs that the processor of a Qwen model makes: token ids with places for pictures, and the pictures' patches.

`pixel_values` float [ΣP, 3 · 2 · p · p] holds the patches of all pictures one after the other, normalised, in the order
of the encoder (the 2×2 patches of a tile follow each other); in each patch, channel first, then time: a still picture
fills both time steps alike. `image_grid_thw` int64 [N, 3] gives each picture's (1, rows, columns) of patches. Source:
transformers' `Qwen2VLImageProcessor`, which all families use; tests compare the two.

A picture's place is a run of `<|image_pad|>` in `input_ids`: one for each of its tiles, as Qwen's processors write it,
or a single one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
import torch

from arr_coc.errors import NonFiniteError, OptionError, ShapeError, counted
from arr_coc.qwen.preprocess import MERGE, Preprocessing, fit_tiles
from arr_coc.qwen.resize import resize_image
from arr_coc.relevance.channels import TextureArray, texture_array
from arr_coc.texture.store.base import MemoryTexels, TextureView
from arr_coc.types import LEVELS, TILE_PX, FrameStamp, TileGrid, TileVersions

TIME_STEPS = 2
"""Time steps of a patch; a still picture is repeated in them."""


@dataclass(frozen=True, slots=True)
class ProcessorInputs:
    """Token ids and pictures of a batch of sequences, as `ARRCOCQwen.generate` takes them."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None = None
    pixel_values: torch.Tensor | None = None
    image_grid_thw: torch.Tensor | None = None

    def check(self, vocabulary: int) -> None:
        """Raise ShapeError if the tensors do not match, OptionError for an id out of range."""
        ids = self.input_ids
        if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or ids.is_floating_point() or 0 in ids.shape:
            if isinstance(ids, torch.Tensor):
                kind = f"{ids.dtype} {list(ids.shape)}"
            else:
                kind = type(ids).__name__
            raise ShapeError(f"input_ids must be integers [B, S], none of them 0, got {kind}")
        self.check_shape("attention_mask", self.attention_mask)
        if not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary:
            raise OptionError(f"input_ids must lie in 0 to {vocabulary - 1}, got {int(ids.min())} to {int(ids.max())}")
        if not self.token_mask.any(dim=1).all():
            raise ShapeError("attention_mask leaves a sequence without any token")

    def check_shape(self, name: str, tensor: torch.Tensor | None) -> None:
        """Raise ShapeError if a tensor is there and has another shape than `input_ids`."""
        shape = self.input_ids.shape
        if tensor is not None and tensor.shape != shape:
            raise ShapeError(f"{name} must be as input_ids, {list(shape)}, got {list(tensor.shape)}")

    @property
    def token_mask(self) -> torch.Tensor:
        """bool [B, S]: False for padding."""
        if self.attention_mask is None:
            return torch.ones_like(self.input_ids, dtype=torch.bool)
        return self.attention_mask.bool()


@dataclass(frozen=True, slots=True)
class PicturePlace:
    """Columns [first, end) of `input_ids` that stand for a picture, in one sequence of the batch."""

    sequence: int
    first: int
    end: int


@dataclass(frozen=True)
class ModelPicture:
    """One picture at the size of the model's processor: `tiles` [rows * cols, 3, S, S] in 0..255, on `grid`."""

    tiles: torch.Tensor
    grid: TileGrid

    @cached_property
    def view(self) -> TextureView:
        """All levels of the picture in tiles of 32 pixels, as in a texture store."""
        rows, cols = self.grid.shape
        tiles = self.tiles.detach().cpu().round().clamp(0, 255).byte()
        image = tiles.unflatten(0, (rows, cols)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1).numpy()
        level = resize_image(np.ascontiguousarray(image), rows * TILE_PX, cols * TILE_PX)
        levels = [level]
        for _ in range(LEVELS - 1):
            level = cv2.resize(level, (level.shape[1] // 2, level.shape[0] // 2), interpolation=cv2.INTER_AREA)
            levels.append(level)
        versions = TileVersions(0, np.zeros(self.grid.shape, np.int64))
        return TextureView(FrameStamp(0, 0, 0), self.grid, versions, MemoryTexels(tuple(levels)))

    def texture(self, profile: str) -> TextureArray:
        """Return the channels of a profile [C, gh, gw] and entropy [gh, gw] for the allocator, without earlier
        frames."""
        return texture_array(self.view, profile)

    def pixels(self, regions: torch.Tensor) -> torch.Tensor:
        """Return the pixels [K, 3, S, S] in 0..255 of regions int64 [K, 3]: tiles unchanged, larger regions resized."""
        fine = regions[:, 0] == 0
        places = (regions[:, 1] * self.grid.cols + regions[:, 2]).to(self.tiles.device)
        if bool(fine.all()):
            return self.tiles[places]
        side_px = self.tiles.shape[-1]
        coarse = fit_tiles(torch.from_numpy(self.view.gather(regions.numpy())), side_px).round().clamp(0, 255)
        pixels = coarse.to(self.tiles.device, self.tiles.dtype)
        fine_rows = fine.nonzero()[:, 0].to(pixels.device)
        return pixels.index_copy(0, fine_rows, self.tiles[places[fine_rows]])


def unpack(pixel_values: torch.Tensor, image_grid_thw: torch.Tensor | None, prep: Preprocessing) -> list[ModelPicture]:
    """Return the pictures of a processor's output. Their tiles keep its dtype, device and gradient.

    Args:
        pixel_values: Patches of all pictures, float [ΣP, 3 · 2 · p · p]; see the module.
        image_grid_thw: Time steps, rows and columns of patches of each picture, int64 [N, 3].
        prep: Preprocessing of the model.

    Raises:
        ShapeError: Tensors that do not match each other or the model, or more than one time step.
        NonFiniteError: NaN or Inf in `pixel_values`.
    """
    sizes = _checked_grid(pixel_values, image_grid_thw, prep)
    if not torch.isfinite(pixel_values).all():
        raise NonFiniteError("pixel_values holds NaN or Inf")
    first_step = pixel_values.unflatten(1, (3, TIME_STEPS, prep.patch_px, prep.patch_px))[:, :, 0]
    pictures = []
    for (rows, cols), patches in zip(sizes, first_step.split([rows * cols for rows, cols in sizes]), strict=True):
        tiles = patches.unflatten(0, (-1, MERGE, MERGE)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
        grid = TileGrid.of(rows // MERGE * TILE_PX, cols // MERGE * TILE_PX)
        pictures.append(ModelPicture(prep.scale.restore(tiles), grid))
    return pictures


def _checked_grid(
    pixel_values: torch.Tensor, image_grid_thw: torch.Tensor | None, prep: Preprocessing
) -> list[tuple[int, int]]:
    """Return the rows and columns of patches of each picture."""
    width = 3 * TIME_STEPS * prep.patch_px**2
    for name, tensor, last, axes in (
        ("pixel_values", pixel_values, width, "patches"),
        ("image_grid_thw", image_grid_thw, 3, "pictures"),
    ):
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != 2 or tensor.shape[1] != last:
            shape = list(tensor.shape) if isinstance(tensor, torch.Tensor) else tensor
            raise ShapeError(
                f"{name} must be a tensor [{axes}, {last}], as this model's processor makes it, got {shape}"
            )
    assert image_grid_thw is not None
    grid: list[list[int]] = image_grid_thw.tolist()
    for time, rows, cols in grid:
        if time != 1:
            raise ShapeError(f"image_grid_thw holds {time} time steps; give a video's frames as single pictures")
        if rows < MERGE or cols < MERGE or rows % MERGE or cols % MERGE:
            raise ShapeError(f"image_grid_thw holds {rows}x{cols} patches; both must be multiples of {MERGE}")
    patches = sum(rows * cols for _, rows, cols in grid)
    if patches != len(pixel_values):
        raise ShapeError(f"image_grid_thw counts {patches} patches, but pixel_values holds {len(pixel_values)}")
    return [(rows, cols) for _, rows, cols in grid]


def picture_places(input_ids: torch.Tensor, token_mask: torch.Tensor, config: Any) -> list[PicturePlace]:
    """Return every run of picture placeholders, sequence by sequence.

    Args:
        input_ids: Token ids of the batch, int64 [B, S].
        token_mask: bool [B, S], False for padding.
        config: Configuration of the model.

    Raises:
        ShapeError: Placeholders of a video.
    """
    if bool((input_ids == config.video_token_id).any()):
        raise ShapeError("input_ids holds <|video_pad|>; give a video's frames as single pictures")
    placeholders = ((input_ids == config.image_token_id) & token_mask).int()
    edges = torch.diff(torch.nn.functional.pad(placeholders, (1, 1)), dim=1)
    starts = (edges == 1).nonzero().tolist()
    ends = (edges == -1).nonzero().tolist()
    return [PicturePlace(row, first, end) for (row, first), (_, end) in zip(starts, ends, strict=True)]


def check_places(places: Sequence[PicturePlace], tiles: Sequence[int]) -> None:
    """Raise ShapeError if places and pictures, with these numbers of `tiles`, do not match."""
    if len(places) != len(tiles):
        runs = counted(len(places), "run", "runs")
        raise ShapeError(
            f"input_ids holds {runs} of <|image_pad|> for {counted(len(tiles), 'picture')}; "
            "write one run for each picture, in their order"
        )
    for index, (place, count) in enumerate(zip(places, tiles, strict=True)):
        if place.end - place.first not in (1, count):
            raise ShapeError(
                f"picture {index} has {counted(count, 'tile')}, but its run of <|image_pad|> in input_ids is "
                f"{place.end - place.first} long; write one for each tile, or a single one"
            )
