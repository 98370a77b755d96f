"""Float positions of regions, M-RoPE positions compared with the stock model's, and image preprocessing."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as stock_smart_resize

from arr_coc.errors import ModelError, ShapeError
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.families import family_of
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.preprocess import (
    PixelNormalisation,
    Preprocessing,
    after_frame,
    grid_regions,
    patch_positions,
    to_patches,
    to_tiles,
    visual_positions,
)
from arr_coc.qwen.resize import resize_image, smart_resize
from arr_coc.texture.regions import token_positions
from arr_coc.types import TileGrid
from tests.support.models import FAMILIES, mrope_positions, save_processor, tiny_folder, tiny_model


def test_a_coarse_token_stands_at_the_middle_of_its_tiles() -> None:
    assert token_positions(torch.tensor([[2, 1, 3]])).tolist() == [[5.5, 13.5]]
    assert token_positions(torch.tensor([[0, 1, 3]])).tolist() == [[1.0, 3.0]]


def test_patches_of_a_coarse_token() -> None:
    places = patch_positions(torch.tensor([[1, 1, 0]]))
    assert places.tolist() == [[4.5, 0.5], [4.5, 2.5], [6.5, 0.5], [6.5, 2.5]]


def test_patches_of_a_wide_token_are_spaced_by_its_own_rows_and_columns() -> None:
    """A line of 1x4 tiles: two rows of patches half a tile apart, two columns two tiles apart."""
    assert token_positions(torch.tensor([[7, 3, 2]])).tolist() == [[3.0, 9.5]]
    places = patch_positions(torch.tensor([[7, 3, 2]]))
    assert places.tolist() == [[6.0, 17.5], [6.0, 21.5], [7.0, 17.5], [7.0, 21.5]]
    turned = patch_positions(torch.tensor([[11, 2, 3]]))
    assert turned.tolist() == [[17.5, 6.0], [17.5, 7.0], [21.5, 6.0], [21.5, 7.0]]


@given(st.integers(0, 5), st.integers(0, 40), st.integers(0, 40))
def test_a_token_is_the_mean_of_the_tiles_it_covers(level: int, row: int, col: int) -> None:
    side = 2**level
    rows = torch.arange(row * side, (row + 1) * side, dtype=torch.float64)
    cols = torch.arange(col * side, (col + 1) * side, dtype=torch.float64)
    assert token_positions(torch.tensor([level, row, col])).tolist() == [rows.mean(), cols.mean()]


def test_the_frame_stands_at_one_time() -> None:
    rows = visual_positions(7, torch.tensor([[1, 0, 0], [0, 2, 5]]))
    assert rows.tolist() == [[7.0, 7.0], [7.5, 9.0], [7.5, 12.0]]


def test_text_goes_on_after_the_longer_side() -> None:
    assert after_frame(10, TileGrid.of(96, 160)) == 15


@pytest.mark.parametrize("family", FAMILIES)
def test_all_tiles_have_the_stock_positions(family: str) -> None:
    model = tiny_model(family)
    grid = TileGrid.of(3 * 32, 5 * 32)
    image_token = model.config.image_token_id
    ids = torch.tensor([[40] * 4 + [image_token] * grid.tiles + [40] * 6])
    expected, _ = model.model.get_rope_index(
        ids,
        mm_token_type_ids=(ids == image_token).int(),
        image_grid_thw=torch.tensor([[1, 2 * grid.rows, 2 * grid.cols]]),
    )
    positions = mrope_positions(4, grid_regions(grid), grid, 6)
    assert positions.dtype == torch.float32
    torch.testing.assert_close(positions, expected[:, 0].float(), atol=0, rtol=0)
    few = mrope_positions(4, grid_regions(grid)[::3], grid, 6)
    torch.testing.assert_close(few[..., -6:], positions[..., -6:], atol=0, rtol=0)


CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


@pytest.mark.parametrize(("patch_px", "statistics"), [(16, HALF), (14, CLIP)])
@pytest.mark.parametrize("size", [(100, 75), (64, 64), (333, 90), (512, 300)])
def test_equals_the_stock_processor(tmp_path: Path, patch_px: int, statistics: dict, size: tuple[int, int]) -> None:
    limits = {"shortest_edge": 64 * 64, "longest_edge": 256 * 256}
    processor = Qwen2VLImageProcessorPil(patch_size=patch_px, size=limits, **statistics)
    (tmp_path / "preprocessor_config.json").write_text(processor.to_json_string())
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    expected = processor(image, return_tensors="pt")

    preprocessing = Preprocessing.read(tmp_path, family_of("qwen3_vl", "tiny"), patch_px)
    fitted = smart_resize(*size, preprocessing.tile_px, preprocessing.min_px, preprocessing.max_px)
    tiles = to_tiles(torch.from_numpy(resize_image(image, *fitted).copy()), preprocessing.tile_px)
    patches = to_patches(preprocessing.scale(tiles)).unflatten(-1, (3, 1, -1)).expand(-1, 3, 2, -1).flatten(1)
    assert expected["image_grid_thw"].tolist() == [[1, fitted[0] // patch_px, fitted[1] // patch_px]]
    torch.testing.assert_close(patches, expected["pixel_values"], atol=0, rtol=0)


PICTURES = [(480, 640), (720, 1280), (517, 333), (1080, 1920)]
"""Height and width of usual pictures."""


def usual_picture(size: tuple[int, int], noise: bool) -> np.ndarray:
    rng = np.random.default_rng(sum(size))
    if noise:
        return rng.integers(0, 256, (*size, 3), dtype=np.uint8)
    return cv2.resize(rng.integers(0, 256, (size[0] // 16, size[1] // 16, 3), dtype=np.uint8), size[::-1])


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("tile_px", [28, 32])
@pytest.mark.parametrize("size", PICTURES)
def test_pictures_are_resized_by_the_filter_of_torchvision(size: tuple[int, int], tile_px: int, noise: bool) -> None:
    """torchvision's `resize` of 8-bit pictures calls this one on the CPU."""
    picture = usual_picture(size, noise)
    fitted, grid = Preprocessing(tile_px // 2, PixelNormalisation(), 56 * 56, 640 * 400).fit(picture)
    channels_first = torch.from_numpy(picture).permute(2, 0, 1).contiguous()[None]
    expected = torch.nn.functional.interpolate(channels_first, fitted.shape[:2], mode="bicubic", antialias=True)[0]
    assert grid.tiles * tile_px**2 == fitted.shape[0] * fitted.shape[1]
    assert np.array_equal(fitted, expected.permute(1, 2, 0).numpy())
    if noise and fitted.shape != picture.shape:
        assert not np.array_equal(fitted, resize_image(picture, *fitted.shape[:2])), "Pillow's rounds differently"


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("tile_px", [28, 32])
@pytest.mark.parametrize("size", PICTURES)
def test_pictures_are_those_of_the_processor_with_torchvision(size: tuple[int, int], tile_px: int, noise: bool) -> None:
    pytest.importorskip("torchvision", reason="without torchvision transformers has only the form with Pillow")
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    limits = {"shortest_edge": 56 * 56, "longest_edge": 640 * 400}
    processor = Qwen2VLImageProcessor(patch_size=tile_px // 2, size=limits, **HALF)
    picture = usual_picture(size, noise)
    expected = processor([picture], return_tensors="pt")["pixel_values"]
    preprocessing = Preprocessing(tile_px // 2, PixelNormalisation(), 56 * 56, 640 * 400)
    tiles = to_tiles(torch.from_numpy(preprocessing.fit(picture)[0].copy()), tile_px)
    patches = to_patches(preprocessing.scale(tiles)).unflatten(-1, (3, 1, -1)).expand(-1, 3, 2, -1).flatten(1)
    torch.testing.assert_close(patches, expected, atol=1e-6, rtol=0)


@settings(max_examples=200)
@given(st.integers(8, 5000), st.integers(8, 5000), st.sampled_from([28, 32]))
def test_sizes_equal_the_stock_ones(height: int, width: int, tile_px: int) -> None:
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ShapeError, match="too narrow"):
            smart_resize(height, width, tile_px, 56 * 56, 1280 * 28 * 28)
        return
    expected = stock_smart_resize(height, width, tile_px, 56 * 56, 1280 * 28 * 28)
    assert smart_resize(height, width, tile_px, 56 * 56, 1280 * 28 * 28) == expected


def test_old_names_of_the_limits(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"min_pixels": 3136, "max_pixels": 12845056}')
    preprocessing = Preprocessing.read(tmp_path, family_of("qwen2_vl", "tiny"), 14)
    assert (preprocessing.min_px, preprocessing.max_px, preprocessing.tile_px) == (3136, 12845056, 28)


@pytest.mark.parametrize("family", FAMILIES)
def test_processors_as_transformers_5_saves_them(tmp_path: Path, family: str) -> None:
    """All processors in one file: the values of the image processor are read, as by transformers, not another's."""
    folder = tiny_folder(tmp_path, family)
    before = load_qwen(folder).preprocessing
    save_processor(folder, family)
    assert not (folder / "preprocessor_config.json").exists()
    preprocessing = load_qwen(folder).preprocessing
    stock = Qwen2VLImageProcessorPil.from_pretrained(folder)
    assert preprocessing == before
    assert (preprocessing.scale.mean, preprocessing.scale.std) == (tuple(stock.image_mean), tuple(stock.image_std))
    assert (preprocessing.min_px, preprocessing.max_px) == (stock.size["shortest_edge"], stock.size["longest_edge"])


def test_the_newer_file_goes_before_the_older_one(tmp_path: Path) -> None:
    values = {"image_processor": {"min_pixels": 1}, "processor_class": "Qwen3VLProcessor"}
    (tmp_path / "preprocessor_config.json").write_text('{"min_pixels": 2}')
    for section, expected in ((values, 1), ({"processor_class": "Qwen3VLProcessor"}, 2)):
        (tmp_path / "processor_config.json").write_text(json.dumps(section))
        assert Preprocessing.read(tmp_path, family_of("qwen3_vl", "tiny"), 16).min_px == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_without_both_files_gets_what_its_family_publishes(
    tmp_path: Path, family: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_folder(tmp_path, family)
    (folder / "preprocessor_config.json").unlink()
    preprocessing = ARRCOCQwen.from_pretrained(folder).qwen.preprocessing
    old = family.startswith("qwen2")
    assert list(preprocessing.scale.mean) == (CLIP if old else HALF)["image_mean"]
    assert list(preprocessing.scale.std) == (CLIP if old else HALF)["image_std"]
    assert (preprocessing.min_px, preprocessing.max_px) == ((3136, 12845056) if old else (65536, 16777216))
    (record,) = caplog.records
    assert ": no processor_config.json or preprocessor_config.json, so the published" in record.message


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "is not usable JSON"),
        ('{"merge_size": 4}', "merge_size is 4"),
        ('{"do_normalize": false}', "do_normalize is False"),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "preprocessor_config.json").write_text(text)
    with pytest.raises(ModelError, match=match):
        Preprocessing.read(tmp_path, family_of("qwen3_vl", "tiny"), 16)


def test_a_picture_of_odd_size_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\[rows\*32, cols\*32, 3\], got \[32, 33, 3\]"):
        to_tiles(torch.zeros(32, 33, 3), 32)
