"""One smaller picture: within its budget, what matters at full size, and the placement of its parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from arr_coc.errors import BudgetError, NonFiniteError, OptionError, ShapeError
from arr_coc.ops.composite import Composite, foveate
from arr_coc.ops.composite_layout import (
    BORDER_PX,
    FRAMES,
    MOST_ASPECT,
    MOST_STRETCH,
    CompositePlacement,
    cut_out,
    layout_of,
    whole_layout,
)

Map = npt.NDArray[np.float32]


def picture(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Noise, without a frame's colours."""
    return np.random.default_rng(height + width).integers(0, 200, (height, width, 3), dtype=np.uint8)


def spots(rows: int, cols: int, *places: tuple[int, int]) -> Map:
    """A map with a few relevant blocks of 2×2 tiles."""
    relevance = np.zeros((rows, cols), np.float32)
    for row, col in places:
        relevance[row : row + 2, col : col + 2] = 1
    return relevance


def cut(image: npt.NDArray[np.uint8], box: tuple[int, int, int, int]) -> npt.NDArray[np.uint8]:
    return image[box[0] : box[2], box[1] : box[3]]


@settings(max_examples=40)
@given(st.integers(1, 900), st.integers(1, 900), st.integers(1, 300), st.integers(0, 1 << 16))
def test_any_composite_keeps_its_promises(height: int, width: int, tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    image = picture(height, width)
    relevance = (rng.random((-(-height // 32), -(-width // 32))) ** rng.integers(1, 9)).astype(np.float32)
    composite = foveate(image, relevance, tokens)
    assert composite.tokens <= tokens
    full_view, *parts = composite.placements
    assert full_view.source == (0, 0, height, width)
    coverage = np.zeros(composite.image.shape[:2], int)
    for placement in composite.placements:
        for box, size in ((placement.source, image.shape), (placement.target, composite.image.shape)):
            assert 0 <= box[0] < box[2] <= size[0]
            assert 0 <= box[1] < box[3] <= size[1]
        border = 0 if placement is full_view else BORDER_PX
        coverage[
            placement.target[0] - border : placement.target[2] + border,
            placement.target[1] - border : placement.target[3] + border,
        ] += 1
    assert (coverage == 1).all()
    assert len(parts) <= len(FRAMES)
    for part in parts:
        assert part.scale in (1, 0.5, 0.25, 0.125)
        assert part.scale > full_view.scale
        for edge, sign in zip(part.target, (-1, -1, 1, 1), strict=True):
            assert (edge + sign * BORDER_PX) % 32 == 0
        if part.scale == 1:
            np.testing.assert_array_equal(cut(composite.image, part.target), cut(image, part.source))


def test_the_whole_view_is_little_stretched_and_no_part_narrow() -> None:
    image, relevance = picture(300, 1600), np.zeros((10, 50), np.float32)
    relevance[4:6, 10:40] = 1
    layouts = [foveate(image, relevance, tokens).placements for tokens in range(20, 120)]
    assert sum(len(placements) > 1 for placements in layouts) > 40
    for full_view, *parts in layouts:
        if parts:
            assert 1 / MOST_STRETCH <= full_view.scale * 300 / full_view.target[2] <= MOST_STRETCH
        for part in parts:
            sides = [part.target[axis + 2] - part.target[axis] + 2 * BORDER_PX for axis in (0, 1)]
            assert max(sides) <= MOST_ASPECT * min(sides)


def test_relevant_tiles_are_shown_at_full_size() -> None:
    image = picture(1080, 1920)
    composite = foveate(image, spots(34, 60, (5, 10), (25, 50)), 120)
    assert composite.tokens > 100
    for row, col in ((5, 10), (25, 50)):
        block = row * 32, col * 32, row * 32 + 64, col * 32 + 64
        assert any(contains(part.source, block) and part.scale == 1 for part in composite.placements[1:])


def contains(outer: tuple[int, int, int, int], inner: tuple[int, int, int, int]) -> bool:
    return outer[0] <= inner[0] and outer[1] <= inner[1] and outer[2] >= inner[2] and outer[3] >= inner[3]


def test_relevant_tiles_are_in_the_middle_of_their_part() -> None:
    dull = np.random.default_rng(0).uniform(0, 0.05, (34, 60)).astype(np.float32)
    (part,) = foveate(picture(1080, 1920), np.maximum(dull, spots(34, 60, (16, 30))), 100).placements[1:]
    assert abs((part.source[0] + part.source[2]) / 2 - 17 * 32) <= 32
    assert abs((part.source[1] + part.source[3]) / 2 - 31 * 32) <= 32


def test_a_large_thing_is_shown_at_a_smaller_scale() -> None:
    relevance = np.zeros((34, 60), np.float32)
    relevance[6:28, 15:45] = 1
    (part,) = foveate(picture(1080, 1920), relevance, 100).placements[1:]
    assert part.scale == 0.25
    assert contains(part.source, (6 * 32, 15 * 32, 28 * 32, 45 * 32))


def test_a_thing_is_shown_in_one_piece_rather_than_larger_in_several() -> None:
    relevance = np.zeros((34, 60), np.float32)
    relevance[8:17, 14:22] = 0.8
    (part,) = foveate(picture(1080, 1920), relevance, 100).placements[1:]
    assert part.scale == 0.5
    assert contains(part.source, (8 * 32, 14 * 32, 17 * 32, 22 * 32))


def test_frames_mark_each_part_and_its_place() -> None:
    composite = foveate(picture(1080, 1920), spots(34, 60, (5, 10), (25, 50)), 120)
    full_view, *parts = composite.placements
    for part, colour in zip(parts, FRAMES, strict=False):
        top, left, bottom, right = part.target
        ring = composite.image[top - 2 : bottom + 2, left - 2 : right + 2]
        for edge in (ring[:2], ring[-2:], ring[:, :2], ring[:, -2:]):
            assert (edge == colour).all()
        down, across = full_view.target[2] / 1080, full_view.target[3] / 1920
        first = math.floor(part.source[0] * down), math.floor(part.source[1] * across)
        last = math.ceil(part.source[2] * down) - 1, math.ceil(part.source[3] * across) - 1
        middle = (first[0] + last[0]) // 2, (first[1] + last[1]) // 2
        for row in (first[0], last[0]):
            assert (composite.image[row, middle[1]] == colour).all()
        for col in (first[1], last[1]):
            assert (composite.image[middle[0], col] == colour).all()
        assert (composite.image[middle] != colour).any()


def test_a_tall_picture_is_a_wide_one_turned() -> None:
    image, relevance = picture(600, 1000), spots(19, 32, (3, 3), (12, 25))
    wide = foveate(image, relevance, 90)
    tall = foveate(image.transpose(1, 0, 2), relevance.T, 90)
    assert len(wide.placements) > 1
    assert [turned(placement) for placement in tall.placements] == list(wide.placements)
    assert tall.image.shape == (wide.image.shape[1], wide.image.shape[0], 3)


def turned(placement: CompositePlacement) -> CompositePlacement:
    source, target = ((box[1], box[0], box[3], box[2]) for box in (placement.source, placement.target))
    return CompositePlacement(source, target)


def test_places_lead_back_to_the_picture() -> None:
    composite = foveate(picture(1080, 1920), spots(34, 60, (5, 10), (25, 50)), 120)
    for placement in composite.placements:
        (y0, x0, y1, x1), (top, left, bottom, right) = placement.target, placement.source
        point = composite.to_source(y0 + (y1 - y0) / 4, x0 + (x1 - x0) / 2)
        assert point == pytest.approx((top + (bottom - top) / 4, left + (right - left) / 2))
    part = composite.placements[1]
    on_frame = composite.to_source(part.target[0] + 1, part.target[1] - 1.5)
    assert on_frame == pytest.approx((part.source[0] + 1 / part.scale, part.source[1]))
    with pytest.raises(OptionError, match=r"\(-1, 5\) lies outside a composite"):
        composite.to_source(-1, 5)


def test_a_picture_that_fits_comes_back_as_a_copy() -> None:
    image = picture(100, 130)
    composite = foveate(image, np.ones((4, 5), np.float32), 20)
    np.testing.assert_array_equal(composite.image, image)
    assert not np.shares_memory(composite.image, image)
    assert composite.to_source(99.5, 12.25) == (99.5, 12.25)


@pytest.mark.parametrize("tokens", [1, 5])
def test_a_small_budget_buys_the_whole_view_alone(tokens: int) -> None:
    composite = foveate(picture(540, 960), spots(17, 30, (3, 3)), tokens)
    assert len(composite.placements) == 1
    assert composite.image.shape[1] / composite.image.shape[0] == pytest.approx(960 / 540, rel=0.05)


def test_equal_relevance_gives_no_parts() -> None:
    assert len(foveate(picture(540, 960), np.full((17, 30), 0.5, np.float32), 100).placements) == 1


def test_torch_is_taken_too() -> None:
    image, relevance = picture(540, 960), spots(17, 30, (3, 3))
    same = foveate(torch.from_numpy(image).permute(2, 0, 1), torch.from_numpy(relevance).double(), 60)
    np.testing.assert_array_equal(same.image, foveate(image, relevance, 60).image)


GOOD: dict[str, Any] = {"image": picture(64, 96), "relevance": np.zeros((2, 3), np.float32), "tokens": 3}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"image": np.zeros((2, 64, 96), np.uint8)}, ShapeError, r"with 1, 3 or 4 channels, got uint8 \[2, 64, 96\]"),
        ({"image": np.full((64, 96, 3), 7, np.float32)}, ShapeError, "values from 7 to 7"),
        ({"image": None}, ShapeError, "got None"),
        ({"relevance": None}, ShapeError, "relevance is an array or tensor of numbers, got NoneType"),
        ({"relevance": np.zeros((3, 2), np.float32)}, ShapeError, r"\[2, 3\] here, got \[3, 2\]"),
        ({"relevance": np.full((2, 3), np.nan)}, NonFiniteError, "relevance holds NaN"),
        ({"relevance": torch.full((2, 3), np.inf)}, NonFiniteError, "relevance holds NaN"),
        ({"tokens": 0}, BudgetError, "at least 1, got 0"),
        ({"tokens": 3.0}, BudgetError, "got 3.0"),
    ],
)
def test_invalid_inputs_are_refused(change: dict[str, Any], error: type[Exception], words: str) -> None:
    assert isinstance(foveate(**GOOD), Composite)
    with pytest.raises(error, match=words):
        foveate(**{**GOOD, **change})


def test_a_map_of_another_grid_is_spread_over_the_picture() -> None:
    """720x480 has 15x23 tiles, the last ones half as wide; a model that rounds shows 15x22."""
    image, heat = picture(480, 720), np.zeros((15, 22), np.float32)
    heat[5:8, 10:13] = 0.5
    resampled = np.zeros((15, 23), np.float32)
    edges = np.arange(23) * 720 / 22
    for col in range(23):
        first, last = 32 * col, min(32 * col + 32, 720)
        overlaps = np.minimum(edges[1:], last) - np.maximum(edges[:-1], first)
        resampled[:, col] = heat @ (overlaps.clip(0) / (last - first))
    composite, expected = foveate(image, heat, 64), foveate(image, resampled, 64)
    assert composite.placements == expected.placements
    assert len(composite.placements) > 1
    assert 320 < np.mean(composite.placements[1].source[1::2]) < 432
    constant = foveate(image, np.full((8, 11), 0.5, np.float32), 64)
    assert constant.placements == foveate(image, np.full((15, 23), 0.5, np.float32), 64).placements


def test_the_whole_view_alone_keeps_its_aspect_and_its_budget() -> None:
    (full_view,) = whole_layout((384, 640), 65).placements
    assert full_view.source == (0, 0, 384, 640)
    assert full_view.target == (0, 0, 192, 320)
    assert whole_layout((384, 640), 240).size == (384, 640)


def test_parts_are_cut_out_as_large_as_the_composite_shows_them() -> None:
    image = picture(384, 640)
    layout = layout_of((384, 640), spots(12, 20, (4, 9)), 60)
    composite = foveate(image, spots(12, 20, (4, 9)), 60).image
    assert len(layout.placements) > 1
    for placement in layout.placements[1:]:
        top, left, bottom, right = placement.target
        assert (cut_out(image, placement) == composite[top:bottom, left:right]).all()
