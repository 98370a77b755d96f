"""Pictures of a batch, at the size of the model's processor, and their `pixel_values`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from arr_coc.qwen.preprocess import MERGE, Preprocessing, to_frames, to_patches, to_tiles
from arr_coc.qwen.processor_inputs import TIME_STEPS, ModelPicture
from arr_coc.qwen.resize import pad_to_max_aspect
from arr_coc.texture.pictures import Picture, Rgb


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
    """Return `pixel_values` float32 and `image_grid_thw` int64 of pictures (`arr_coc.qwen.processor_inputs`)."""
    packed = []
    sizes = []
    for picture in pictures:
        patches = to_patches(prep.scale(picture.tiles)).unflatten(1, (3, 1, prep.patch_px, prep.patch_px))
        packed.append(patches.expand(-1, -1, TIME_STEPS, -1, -1).flatten(1))
        sizes.append([1, picture.grid.rows * MERGE, picture.grid.cols * MERGE])
    return torch.cat(packed), torch.tensor(sizes)
