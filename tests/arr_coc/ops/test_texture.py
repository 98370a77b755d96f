"""The texture in torch: reading it, and what it refuses. Sampling itself: test_ops_sampling.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.backends.registry import open_store
from arr_coc.errors import BudgetError, NonFiniteError, OptionError, ShapeError
from arr_coc.ops.mipmaps import generate_mipmaps
from arr_coc.ops.texture import Foveation, Texture
from arr_coc.texture.covers import fixation_cover
from arr_coc.texture.regions import shape_map
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.types import FramePlanes
from tests.arr_coc.texture.store.test_view import regions_of
from tests.support.video import stamp

NAN = float("nan")


def images(layers: int, height: int, width: int) -> torch.Tensor:
    return torch.randint(0, 256, (layers, 3, height, width), dtype=torch.uint8, generator=torch.manual_seed(1))


def test_levels_are_the_mipmaps() -> None:
    image = images(2, 70, 100)
    texture = Texture(image)
    assert texture.layers == 2
    assert texture.grid.shape == (3, 4)
    for level, expected in zip(texture.levels, generate_mipmaps(image), strict=True):
        assert torch.equal(level, expected)
    for level, expected in zip(Texture(image[1]).levels, generate_mipmaps(image[1]), strict=True):
        assert torch.equal(level, expected)


def test_numpy_and_torch_make_the_same_texture() -> None:
    array = images(2, 70, 100).permute(0, 2, 3, 1).numpy()
    for texture, expected in (
        (Texture(array), Texture(images(2, 70, 100))),
        (Texture(array[0]), Texture(images(2, 70, 100)[0])),
    ):
        for level, expected_level in zip(texture.levels, expected.levels, strict=True):
            assert torch.equal(level, expected_level)


def test_arrays_may_be_read_only_and_of_any_stride() -> None:
    array = images(1, 70, 100)[0].permute(1, 2, 0).numpy().copy()
    array.flags.writeable = False
    texture = Texture(array)
    assert torch.equal(texture.levels[3], Texture(images(1, 70, 100)[0]).levels[3])
    assert torch.equal(Texture(array[::-1, :, ::-1]).levels[0], Texture(array[::-1, :, ::-1].copy()).levels[0])


def test_gather_equals_the_stores_gather() -> None:
    array = images(1, 150, 230)[0].permute(1, 2, 0).numpy()
    planes = FramePlanes("rgb", (array,))
    store = open_store(PlaneFormat.of(planes), "cpu")
    store.update(planes, stamp(0))
    regions = np.array(regions_of(5, 8))
    pixels = Texture(array).gather(torch.from_numpy(regions))
    assert pixels.is_contiguous()
    with store.lease() as view:
        np.testing.assert_array_equal(pixels.numpy(), view.gather(regions))


def test_one_gather_reads_several_layers() -> None:
    image = images(3, 64, 64)
    regions = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 1, 0]])
    mixed = Texture(image).gather(regions, torch.tensor([2, 0, 1]))
    for pixels, region, layer in zip(mixed, regions, (2, 0, 1), strict=True):
        assert torch.equal(pixels, Texture(image[layer]).gather(region[None])[0])


def test_gather_carries_gradients_and_nothing_gathers_nothing() -> None:
    image = torch.rand(3, 64, 64, requires_grad=True)
    Texture(image).gather(torch.tensor([[1, 0, 0], [0, 1, 1]])).sum().backward()
    assert image.grad is not None
    assert image.grad[:, :32].unique().tolist() == [0.25]
    assert image.grad[:, 32:, 32:].unique().tolist() == [1.25]
    assert Texture(image).gather(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, 32, 32)
    wide = torch.rand(3, 64, 64, requires_grad=True)
    Texture(wide).gather(torch.tensor([[6, 1, 0]])).sum().backward()
    assert wide.grad is not None
    assert (wide.grad[:, :32] == 0).all()
    assert wide.grad[:, 32:].unique().tolist() == [0.5]


def test_samples_are_floats_in_the_pictures_range() -> None:
    flat = torch.full((3, 32, 32), 200)
    point = torch.tensor([3.3, 7.7])
    for dtype, expected in (
        (torch.uint8, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ):
        sample = Texture(flat.to(dtype)).sample(point.double(), 1.5)
        assert sample.dtype == expected
        torch.testing.assert_close(sample, torch.full((3,), 200, dtype=expected))


POINT, ONE = torch.tensor([4.0, 4.0]), torch.tensor([[4.0, 4.0]])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda t: t.gather(torch.zeros(3, dtype=torch.int64)), ShapeError, r"int64 \[K, 3\].*got torch.int64 \[3\]"),
        (lambda t: t.gather(torch.zeros(1, 3, dtype=torch.int32)), ShapeError, "got torch.int32"),
        (lambda t: t.gather(torch.tensor([[0, 0, 0], [14, 0, 0]])), ShapeError, r"region \[14, 0, 0\]"),
        (lambda t: t.gather(torch.tensor([[0, 2, 0]])), ShapeError, r"outside a grid of \(2, 2\) tiles"),
        (lambda t: t.gather(torch.tensor([[1, 0, -1]])), ShapeError, r"region \[1, 0, -1\]"),
        (lambda t: t.gather(torch.tensor([[0, 0, 0]]), 1), OptionError, r"layers 0 to 0, got \[1\]"),
        (lambda t: t.sample(POINT, layer=-1), OptionError, r"layers 0 to 0, got \[-1\]"),
        (lambda t: t.sample(POINT, layer=torch.tensor(0.0)), ShapeError, "int64, got torch.float32"),
        (lambda t: t.sample(POINT.long()), ShapeError, r"points are floats .*got torch.int64 \[2\]"),
        (lambda t: t.sample(torch.zeros(3)), ShapeError, r"points are floats .*got torch.float32 \[3\]"),
        (lambda t: t.sample(torch.tensor(1.0)), ShapeError, r"got torch.float32 \[\]"),
        (lambda t: t.sample(POINT * NAN), NonFiniteError, "points holds NaN"),
        (lambda t: t.sample(POINT, NAN), NonFiniteError, "level holds NaN"),
        (lambda t: t.sample_along(POINT, POINT * NAN), NonFiniteError, "along holds NaN"),
        (lambda t: t.sample_along(POINT, POINT, 0.0), OptionError, "across_px, .* above 0"),
        (lambda t: t.sample_along(POINT, POINT, NAN), NonFiniteError, "across_px holds NaN"),
        (lambda t: t.gather_strips(POINT, POINT, 8.0), ShapeError, r"both \[K, 2\], got \[2\] and \[2\]"),
        (lambda t: t.gather_strips(ONE, torch.zeros(2, 2), 8.0), ShapeError, r"got \[1, 2\] and \[2, 2\]"),
        (lambda t: t.gather_strips(ONE, ONE * 0, 8.0), OptionError, "length 0 has no direction"),
    ],
)
def test_unreadable_files_are_refused(call: Callable[[Texture], Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(Texture(torch.zeros(3, 64, 64)))


def test_invalid_pictures_are_refused() -> None:
    with pytest.raises(ShapeError, match="3 or 4 axes, got 5"):
        Texture(torch.zeros(1, 1, 3, 8, 8))
    with pytest.raises(ShapeError, match="RGB"):
        Texture(torch.zeros(8, 8, 3))


PICTURE = images(1, 700, 1200)[0]
TEXTURE = Texture(PICTURE)
"""22 × 38 tiles, the last row and column not whole."""


def levels_of(foveation: Foveation) -> np.ndarray[Any, np.dtype[np.int8]]:
    return shape_map(foveation.regions.numpy(), TEXTURE.grid.shape)


def eccentricity(region: list[int], fixation: tuple[float, float]) -> float:
    """Distance in frame widths from (row, col) in tiles to the nearest point of a region."""
    level, *start = region
    offsets = [
        max((first << level) - place, place - min((first + 1) << level, tiles), 0)
        for first, place, tiles in zip(start, fixation, TEXTURE.grid.shape, strict=True)
    ]
    return float(np.hypot(*offsets)) / TEXTURE.grid.cols


def test_without_constants_it_is_the_allocators_fixation_form() -> None:
    view = TEXTURE.sample_foveated((0.25, 0.75), 200)
    regions, e0 = fixation_cover((22, 38), 200, (0.25 * 700 / 32, 0.75 * 1200 / 32))
    np.testing.assert_array_equal(view.regions.numpy(), regions)
    assert view.e0 == view.M0 == e0
    assert torch.equal(view.pixels, TEXTURE.gather(view.regions))
    assert levels_of(view)[int(0.25 * 700 / 32), int(0.75 * 1200 / 32)] == 0


@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 1000),
    st.none() | st.floats(0.01, 2),
    st.none() | st.floats(0.01, 2),
)
def test_any_view_is_a_disjoint_cover_within_its_budget(
    y: float, x: float, budget: int, m0: float | None, e0: float | None
) -> None:
    view = TEXTURE.sample_foveated((y, x), budget, None if e0 is None else m0, e0)
    assert 1 <= len(view.regions) <= budget
    assert view.pixels.shape == (len(view.regions), 3, 32, 32)
    coverage = np.zeros(TEXTURE.grid.shape, int)
    for level, row, col in view.regions.tolist():
        coverage[row << level : (row + 1) << level, col << level : (col + 1) << level] += 1
    assert coverage.max() == 1
    assert (coverage == 1).all() or (view.M0 == 0 and len(view.regions) == budget)


@pytest.mark.parametrize(("m0", "e0"), [(0.2, 0.2), (0.1, 0.4), (0.5, 0.1)])
def test_both_constants_decide_the_levels(m0: float, e0: float) -> None:
    view = TEXTURE.sample_foveated((0.5, 0.5), 10_000, m0, e0)
    fixation = (0.5 * 700 / 32, 0.5 * 1200 / 32)
    assert np.isclose(view.M0, m0)
    for level, row, col in view.regions.tolist():
        exact_level = np.log2((eccentricity([level, row, col], fixation) + e0) / m0)
        assert level <= max(0, exact_level) + 1e-4
        parent = [level + 1, row >> 1, col >> 1]
        if level < 5 and not single_child(parent):
            assert level + 1 > np.log2((eccentricity(parent, fixation) + e0) / m0) - 1e-4


def single_child(parent: list[int]) -> bool:
    """True if a region at the grid's corner holds one region of the level below, so that splitting it is free."""
    level, row, col = parent
    rows, cols = (-(-tiles >> (level - 1)) for tiles in TEXTURE.grid.shape)
    return 2 * row + 1 >= rows and 2 * col + 1 >= cols


def test_a_small_magnification_leaves_some_of_the_budget_and_a_small_budget_lowers_it() -> None:
    modest = TEXTURE.sample_foveated((0.5, 0.5), 400, 0.05, 0.1)
    assert len(modest.regions) < 100
    tight = TEXTURE.sample_foveated((0.5, 0.5), 60, 10.0, 0.1)
    assert 58 <= len(tight.regions) <= 60
    assert 0 < tight.M0 < 10
    repeat = TEXTURE.sample_foveated((0.5, 0.5), 400, tight.M0 * 1.0001, 0.1)
    assert len(repeat.regions) == len(tight.regions)


def test_a_larger_e0_spreads_detail() -> None:
    spread = [levels_of(TEXTURE.sample_foveated((0.5, 0.5), 200, e0=e0)) for e0 in (0.02, 1.0)]
    assert spread[0].min() == 0
    assert spread[0].std() > 2 * spread[1].std()


def test_a_budget_below_any_cover_looks_at_the_fixation() -> None:
    view = TEXTURE.sample_foveated((0.9, 0.9), 1)
    assert view.regions.tolist() == [[5, 0, 1]]
    assert view.M0 == view.e0 == 0
    assert TEXTURE.sample_foveated((0.1, 0.1), 1, e0=0.3).regions.tolist() == [[5, 0, 0]]


def test_enough_budget_shows_every_tile() -> None:
    for constants in ({}, {"e0": 0.2}, {"M0": 100.0, "e0": 0.2}):
        assert (levels_of(TEXTURE.sample_foveated((0.0, 1.0), 10_000, **constants)) == 0).all()


def test_a_layer_of_an_array_and_the_gradient_of_what_is_seen() -> None:
    array = Texture(images(2, 96, 96))
    view = array.sample_foveated((0.5, 0.5), 6, layer=1)
    assert torch.equal(view.pixels, Texture(images(2, 96, 96)[1]).sample_foveated((0.5, 0.5), 6).pixels)
    image = torch.rand(3, 64, 64, requires_grad=True)
    Texture(image).sample_foveated((0.5, 0.5), 4).pixels.sum().backward()
    assert image.grad is not None
    assert image.grad.min() > 0


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"fixation": (0.5, 1.01)}, OptionError, r"in \[0, 1\] of the picture, got \(0.5, 1.01\)"),
        ({"fixation": (-0.01, 0.5)}, OptionError, "got"),
        ({"fixation": (float("nan"), 0.5)}, OptionError, "got"),
        ({"fixation": (0.5,)}, OptionError, r"a fixation is \(y, x\)"),
        ({"budget": 0}, BudgetError, "at least 1, .*got 0"),
        ({"budget": 2.5}, BudgetError, "got 2.5"),
        ({"budget": True}, BudgetError, "got True"),
        ({"M0": 0.1}, OptionError, "M0 means nothing without e0"),
        ({"e0": 0.0}, OptionError, "e0 is a finite number above 0, got 0.0"),
        ({"e0": 0.1, "M0": float("inf")}, OptionError, "M0 is a finite number above 0"),
        ({"layer": 1}, OptionError, "layers 0 to 0"),
    ],
)
def test_foveation_options_that_mean_nothing_are_refused(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        TEXTURE.sample_foveated(**{"fixation": (0.5, 0.5), **options})
