"""Pictures of a batch: from and to `pixel_values` in the layout of Qwen's processors, their tiles and regions.

`pixel_values` float [ΣP, 3 · 2 · p · p] holds the patches of all pictures one after the other, normalised, in the order
of the encoder (the 2×2 patches of a tile follow each other); in each patch, channel first, then time: a still picture
fills both time steps alike. `image_grid_thw` int64 [N, 3] gives each picture's (1, rows, columns) of patches. Source:
transformers' `Qwen2VLImageProcessor`, which all families use; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
import torch

from arr_coc.errors import NonFiniteError, ShapeError
from arr_coc.qwen.preprocess import MERGE, Preprocessing, fit_tiles, to_frames, to_patches, to_tiles
from arr_coc.qwen.resize import pad_to_max_aspect, resize_image
from arr_coc.relevance.channels import TextureArray, texture_array
from arr_coc.texture.pictures import Picture, Rgb
from arr_coc.texture.store.base import MemoryTexels, TextureView
from arr_coc.types import LEVELS, TILE_PX, FrameStamp, TileGrid, TileVersions

TIME_STEPS = 2
"""Time steps of a patch; a still picture is repeated in them."""


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


def model_picture(picture: Rgb, preprocessing: Preprocessing) -> ModelPicture:
    """Resize a picture uint8 [H, W, 3] as the model's own processor does."""
    image, grid = preprocessing.fit(pad_to_max_aspect(picture))
    return ModelPicture(to_tiles(torch.from_numpy(image.copy()), preprocessing.tile_px), grid)


def pictures_of(images: Picture | Sequence[Picture | Sequence[Picture]], prep: Preprocessing) -> list[ModelPicture]:
    """Return the pictures of a batch in order. `images`: one picture, a list, or a list of lists, one for each
    sequence.

    Accepted pictures and errors as `arr_coc.texture.pictures.to_rgb`.
    """
    nested = isinstance(images, (list, tuple)) and any(isinstance(entry, (list, tuple)) for entry in images)
    if not nested:
        return [model_picture(picture, prep) for picture in to_frames(images)]  # type: ignore[arg-type]
    pictures: list[ModelPicture] = []
    for entry in images:  # type: ignore[union-attr]
        if not isinstance(entry, (list, tuple)) or len(entry):  # a sequence may have no picture
            pictures += [model_picture(picture, prep) for picture in to_frames(entry)]
    return pictures


def pack(pictures: Sequence[ModelPicture], prep: Preprocessing) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `pixel_values` float32 and `image_grid_thw` int64 of pictures; see the module."""
    packed = []
    sizes = []
    for picture in pictures:
        patches = to_patches(prep.scale(picture.tiles)).unflatten(1, (3, 1, prep.patch_px, prep.patch_px))
        packed.append(patches.expand(-1, -1, TIME_STEPS, -1, -1).flatten(1))
        sizes.append([1, picture.grid.rows * MERGE, picture.grid.cols * MERGE])
    return torch.cat(packed), torch.tensor(sizes)


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
