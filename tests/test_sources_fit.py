"""The work size, and parity with Qwen's image processor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.types import TILE_PX, TileGrid
from stream.config import CaptureConfig
from stream.errors import ConfigError, SourceError
from stream.sources.fit import QWEN_MAX_PIXELS, QWEN_MIN_PIXELS, Fit, resize_rgb, smart_resize

SIDES = st.integers(1, 5000)


def fit(**capture: object) -> Fit:
    return Fit.of(CaptureConfig.model_validate(capture))


def test_pad_leaves_every_size_alone() -> None:
    assert fit().work_size(121, 161) == (121, 161)


def test_size_is_width_by_height() -> None:
    assert fit(size="640x360").work_size(1080, 1920) == (360, 640)


def test_a_size_beyond_measure_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"capture\.size is at most 16384x16384, got 20000x10; give a smaller one"):
        fit(size="20000x10")


def test_resize_rounds_to_tiles() -> None:
    assert fit(fit="resize").work_size(1080, 1920) == (1088, 1920)
    assert fit(fit="resize", size="500x300").work_size(1080, 1920) == (288, 512)


def test_max_tiles_scales_down_as_qwen_does() -> None:
    assert fit(max_tiles=256).work_size(1080, 1920) == (384, 672)
    assert fit(max_tiles=256, fit="resize").work_size(1080, 1920) == (384, 672)


def test_max_tiles_leaves_a_frame_that_has_no_more_alone() -> None:
    assert fit(max_tiles=24).work_size(121, 161) == (121, 161)
    assert fit(max_tiles=23).work_size(121, 161) == (128, 160)


@given(SIDES, SIDES, st.integers(1, 3000), st.sampled_from(["pad", "resize"]))
def test_max_tiles_is_never_exceeded(height: int, width: int, max_tiles: int, how: str) -> None:
    long, short = max(height, width), min(height, width)
    if long > 200 * short:
        return
    grid = TileGrid.of(*fit(max_tiles=max_tiles, fit=how).work_size(height, width))
    assert grid.tiles <= max_tiles


def test_a_thin_picture_is_refused_as_qwen_refuses_it() -> None:
    assert fit(fit="resize").work_size(10, 2000)[1] > 0
    with pytest.raises(SourceError, match=r"2001x10 is more than 200 times.*capture\.size"):
        fit(fit="resize").work_size(10, 2001)


@given(SIDES, SIDES)
def test_smart_resize_is_the_librarys(height: int, width: int) -> None:
    theirs = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    if max(height, width) > 200 * min(height, width):
        return
    expected = theirs.smart_resize(height, width, TILE_PX, QWEN_MIN_PIXELS, QWEN_MAX_PIXELS)
    assert smart_resize(height, width, QWEN_MIN_PIXELS, QWEN_MAX_PIXELS) == tuple(expected)


@pytest.mark.parametrize(("height", "width"), [(121, 161), (270, 480), (300, 200)])
def test_resized_pixels_are_those_of_the_image_processor(height: int, width: int) -> None:
    theirs = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    rgb = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    processor = theirs.Qwen2VLImageProcessorPil(patch_size=16, merge_size=2)
    size = theirs.SizeDict(shortest_edge=QWEN_MIN_PIXELS, longest_edge=QWEN_MAX_PIXELS)
    expected = processor.resize(rgb.transpose(2, 0, 1), size, theirs.PILImageResampling.BICUBIC, factor=TILE_PX)
    ours = resize_rgb(rgb, fit(fit="resize").work_size(height, width))
    assert np.array_equal(ours, expected.transpose(1, 2, 0))
