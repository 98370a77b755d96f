"""Processing resolution, and parity with Qwen's image processor."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.types import TILE_PX, Colour, FramePlanes, TileGrid
from stream.config import CaptureConfig
from stream.errors import ConfigError, SourceError
from stream.sources.fit import QWEN_MAX_PIXELS, QWEN_MIN_PIXELS, FrameFitter, resize_planes, resize_rgb, smart_resize

SIDES = st.integers(1, 5000)


def fit(**capture: object) -> FrameFitter:
    return FrameFitter.of(CaptureConfig.model_validate(capture))


@pytest.mark.parametrize(
    ("capture", "height", "width", "size"),
    [
        ({}, 121, 161, (121, 161)),  # padding leaves every size alone
        ({"size": "640x360"}, 1080, 1920, (360, 640)),  # a size is width by height
        ({"fit": "resize"}, 1080, 1920, (1088, 1920)),  # rounded to tiles
        ({"fit": "resize", "size": "500x300"}, 1080, 1920, (288, 512)),
        ({"max_tiles": 256}, 1080, 1920, (384, 672)),  # scaled down as Qwen does
        ({"max_tiles": 256, "fit": "resize"}, 1080, 1920, (384, 672)),
        ({"max_tiles": 24}, 121, 161, (121, 161)),  # a frame that has no more tiles is left alone
        ({"max_tiles": 23}, 121, 161, (128, 160)),
    ],
)
def test_the_processing_resolution(capture: dict[str, object], height: int, width: int, size: tuple[int, int]) -> None:
    assert fit(**capture).processing_resolution(height, width) == size


def test_a_size_too_large_names_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"capture\.size is at most 16384x16384, got 20000x10; give a smaller one"):
        fit(size="20000x10")


@given(SIDES, SIDES, st.integers(1, 3000), st.sampled_from(["pad", "resize"]))
def test_max_tiles_is_never_exceeded(height: int, width: int, max_tiles: int, fit_mode: str) -> None:
    long, short = max(height, width), min(height, width)
    if long > 200 * short:
        return
    grid = TileGrid.of(*fit(max_tiles=max_tiles, fit=fit_mode).processing_resolution(height, width))
    assert grid.tiles <= max_tiles


def test_a_thin_picture_is_refused_as_qwen_refuses_it() -> None:
    assert fit(fit="resize").processing_resolution(10, 2000)[1] > 0
    with pytest.raises(SourceError, match=r"2001x10 is more than 200 times.*capture\.size"):
        fit(fit="resize").processing_resolution(10, 2001)


@given(SIDES, SIDES)
def test_smart_resize_is_the_librarys(height: int, width: int) -> None:
    reference = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    if max(height, width) > 200 * min(height, width):
        return
    expected = reference.smart_resize(height, width, TILE_PX, QWEN_MIN_PIXELS, QWEN_MAX_PIXELS)
    assert smart_resize(height, width, QWEN_MIN_PIXELS, QWEN_MAX_PIXELS) == tuple(expected)


@pytest.mark.parametrize(("height", "width"), [(121, 161), (270, 480), (300, 200)])
def test_resized_pixels_are_those_of_the_image_processor(height: int, width: int) -> None:
    reference = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    rgb = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    processor = reference.Qwen2VLImageProcessorPil(patch_size=16, merge_size=2)
    size = reference.SizeDict(shortest_edge=QWEN_MIN_PIXELS, longest_edge=QWEN_MAX_PIXELS)
    expected = processor.resize(rgb.transpose(2, 0, 1), size, reference.PILImageResampling.BICUBIC, factor=TILE_PX)
    actual = resize_rgb(rgb, fit(fit="resize").processing_resolution(height, width))
    assert np.array_equal(actual, expected.transpose(1, 2, 0))


def picture_planes(height: int, width: int, down: int = 2, across: int = 2) -> FramePlanes:
    """A left-to-right ramp of luma, and plain chroma."""
    luma = np.broadcast_to(np.linspace(0, 255, width).astype(np.uint8), (height, width))
    chroma = np.full((-(-height // down), -(-width // across)), 90, np.uint8)
    return FramePlanes("yuv", (luma, chroma, chroma), Colour("bt709", True))


@pytest.mark.parametrize(("down", "across"), [(1, 1), (1, 2), (2, 2), (1, 4), (2, 1)])
@pytest.mark.parametrize("size", [(60, 80), (61, 81), (240, 320), (33, 500)])
def test_planes_keep_their_sampling_and_colour(size: tuple[int, int], down: int, across: int) -> None:
    scaled = resize_planes(picture_planes(121, 161, down, across), size)
    luma, u, v = scaled.planes
    assert luma.shape == size
    assert u.shape == v.shape == (-(-size[0] // down), -(-size[1] // across))
    assert scaled.colour == Colour("bt709", True)
    assert set(np.unique(u)) == {90}
    ramp = np.linspace(0, 255, size[1])
    assert np.abs(luma[0].astype(float) - ramp).max() <= 4


def test_halving_is_the_mean_of_two_by_two() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    (scaled,) = resize_planes(FramePlanes("rgb", (rgb,)), (4, 6)).planes
    assert np.abs(scaled - rgb.reshape(4, 2, 6, 2, 3).mean(axis=(1, 3))).max() <= 0.5


def test_rgb_is_requested_only_if_qwens_processor_would_see_it() -> None:
    def refuse() -> np.ndarray:
        raise AssertionError("RGB is not needed here")

    planes = picture_planes(64, 64)
    assert fit().apply(planes, refuse) is planes
    assert fit(max_tiles=4).apply(planes, refuse) is planes
    assert fit(size="32x32").apply(planes, refuse).layout == "yuv"


def test_parity_gives_swscales_rgb_even_if_the_size_fits() -> None:
    rgb = np.zeros((256, 256, 3), np.uint8)
    fitted = fit(fit="resize").apply(picture_planes(256, 256), lambda: rgb)
    assert (fitted.layout, fitted.planes[0] is rgb) == ("rgb", True)
