"""The library's functions take pictures as people have them, and name in one line what they cannot take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from arr_coc.allocation.attending import allocate
from arr_coc.errors import ArrCocError, OptionError, ShapeError
from arr_coc.layer import ARRCOCLayer
from arr_coc.ops import Texture, VideoStream, foveate, generate_mipmaps, hierarchical_attention
from arr_coc.relevance.channels import image_texture

RGB = np.random.default_rng(2).integers(0, 256, (64, 96, 3), dtype=np.uint8)
RELEVANCE = np.random.default_rng(3).random((2, 3), np.float32)
HEADS = torch.zeros(6, 4)


def test_mipmaps_of_a_pillow_image_and_of_a_file(tmp_path: Path) -> None:
    Image.fromarray(RGB).save(tmp_path / "photo.png")
    expected = generate_mipmaps(RGB)
    for picture in (Image.fromarray(RGB), tmp_path / "photo.png", str(tmp_path / "photo.png")):
        for level, expected_level in zip(generate_mipmaps(picture), expected, strict=True):
            np.testing.assert_array_equal(level, expected_level)


def test_a_texture_of_a_pillow_image() -> None:
    torch.testing.assert_close(Texture(Image.fromarray(RGB)).levels[0], Texture(RGB).levels[0])


def test_a_composite_of_every_kind_of_picture() -> None:
    expected = foveate(RGB, RELEVANCE, 4).image
    planar = torch.from_numpy(RGB).permute(2, 0, 1)
    for picture in (
        Image.fromarray(RGB),
        planar,
        planar.float() / 255,
        RGB.astype(np.float32) / 255,
        RGB.transpose(2, 0, 1),
    ):
        np.testing.assert_array_equal(foveate(picture, RELEVANCE, 4).image, expected)


def test_a_video_of_pillow_images() -> None:
    with VideoStream((64, 96), "cpu") as video:
        assert video.update(Image.fromarray(RGB)).dirty_share == 1
        video.update_mipmaps()
        assert video.update(RGB).dirty_share == 0


def test_relevance_as_numpy() -> None:
    assert torch.equal(allocate(RELEVANCE, 3).regions, allocate(torch.from_numpy(RELEVANCE), 3).regions)
    assert torch.equal(allocate(RELEVANCE.T, 3).regions, allocate(torch.from_numpy(RELEVANCE.T.copy()), 3).regions)


REFUSED: dict[str, Callable[[], Any]] = {
    "mipmaps of None": lambda: generate_mipmaps(None),  # type: ignore[call-overload]
    "mipmaps of a list": lambda: generate_mipmaps([RGB, RGB[:32]]),  # type: ignore[call-overload]
    "mipmaps of nothing": lambda: generate_mipmaps(RGB[:0]),
    "mipmaps of bool": lambda: generate_mipmaps(torch.zeros(3, 4, 4, dtype=torch.bool)),
    "mipmaps of nan": lambda: generate_mipmaps(torch.full((3, 4, 4), torch.nan)),
    "texture of None": lambda: Texture(None),  # type: ignore[arg-type]
    "texture of a list": lambda: Texture([RGB]),  # type: ignore[arg-type]
    "texture of floats": lambda: Texture(RGB.astype(np.float32)),
    "regions as a list": lambda: Texture(RGB).gather([[0, 0, 0]]),  # type: ignore[arg-type]
    "composite of None": lambda: foveate(None, RELEVANCE, 4),  # type: ignore[arg-type]
    "composite without relevance": lambda: foveate(RGB, None, 4),  # type: ignore[arg-type]
    "composite of words": lambda: foveate(RGB, RELEVANCE.astype(str), 4),  # type: ignore[arg-type]
    "composite of nan": lambda: foveate(RGB, RELEVANCE * np.float32(np.nan), 4),
    "attention to None": lambda: hierarchical_attention(None, HEADS, HEADS, grid=(2, 3), share=0.5),  # type: ignore[arg-type]
    "allocate None": lambda: allocate(None),  # type: ignore[arg-type]
    "allocate a list": lambda: allocate([[0.1]]),  # type: ignore[arg-type]
    "allocate words": lambda: allocate(RELEVANCE.astype(str)),  # type: ignore[arg-type]
    "allocate complex": lambda: allocate(torch.zeros(2, 3, dtype=torch.complex64)),
    "allocate nothing": lambda: allocate(np.zeros((0, 3), np.float32)),
    "allocate nan": lambda: allocate(RELEVANCE * np.float32(np.nan)),
    "allocate by None": lambda: allocate(RELEVANCE, None),  # type: ignore[arg-type]
    "allocate by nothing": lambda: allocate(RELEVANCE, []),
    "allocate by no strategy": lambda: allocate(RELEVANCE, 3, None),  # type: ignore[arg-type]
    "a layer without embeddings": lambda: ARRCOCLayer()(None, None, torch.zeros(1, 3, 64, 96)),
    "a layer without an image": lambda: ARRCOCLayer()(torch.zeros(1, 6, 8), None, None),
    "a layer of an array": lambda: ARRCOCLayer()(torch.zeros(1, 6, 8), None, RGB[None, ..., :2]),
    "a layer of nothing": lambda: ARRCOCLayer()(torch.zeros(0, 6, 8), None, torch.zeros(0, 3, 64, 96)),
    "a layer of no width": lambda: ARRCOCLayer()(torch.zeros(1, 6, 0), None, torch.zeros(1, 3, 64, 96)),
    "a layer with no question's token": lambda: ARRCOCLayer()(
        torch.zeros(1, 6, 8), torch.zeros(1, 0, 8), torch.zeros(1, 3, 64, 96)
    ),
    "a layer of nan": lambda: ARRCOCLayer()(torch.zeros(1, 6, 8), None, torch.full((1, 3, 64, 96), torch.nan)),
    "the channels of None": lambda: image_texture(None),  # type: ignore[arg-type]
    "the channels of an array": lambda: image_texture(RGB[None]),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_inputs_are_named_in_one_line(name: str) -> None:
    with pytest.raises(ArrCocError) as caught:
        REFUSED[name]()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("coverage", [-0.1, 1.1, float("nan")])
def test_coverage_is_a_share(coverage: float) -> None:
    with pytest.raises(OptionError, match=r"coverage is a share of the budget, in \[0, 1\]"):
        allocate(RELEVANCE, 3, coverage=coverage)


def test_a_list_says_what_to_do() -> None:
    with pytest.raises(ShapeError, match="got a list; stack pictures of one size"):
        generate_mipmaps([RGB, RGB])  # type: ignore[call-overload]
