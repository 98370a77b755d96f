"""Regions in the order in which the device takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from arr_coc.errors import BackendMissing, NonFiniteError, OptionError, ShapeError
from arr_coc.ops.gl import kernels as reading
from arr_coc.ops.gl.buffers import ALIGNMENT
from arr_coc.ops.gl.kernels import by_shape, sample, sample_along
from arr_coc.ops.gl.store import GlStore
from arr_coc.ops.store.planes import PlaneFormat, Thresholds
from arr_coc.ops.texturevlm.texture import Texture
from arr_coc.types import FramePlanes
from tests.support.stores import require, shared_device
from tests.support.video import Bytes, stamp


def test_places_are_grouped_by_shape_and_every_group_begins_aligned() -> None:
    rng = np.random.default_rng(0)
    regions = np.stack([rng.choice([0, 2, 7, 12], 100), *rng.integers(0, 9, (2, 100))], axis=1)
    places, dispatches = by_shape(regions)
    assert [dispatch.level for dispatch in dispatches] == [0, 2, 0, 1]
    assert [dispatch.defines for dispatch in dispatches] == [(), (), ("DOWN 1", "ACROSS 4"), ("DOWN 2", "ACROSS 1")]
    seen = []
    for code, dispatch in zip([0, 2, 7, 12], dispatches, strict=True):
        assert dispatch.start % ALIGNMENT == 0
        group = places[dispatch.start // 16 :][: dispatch.groups]
        slots = group[:, 2]
        seen += slots.tolist()
        assert (regions[slots, 0] == code).all()
        np.testing.assert_array_equal(group[:, :2], regions[slots, 1:])
    assert sorted(seen) == list(range(100))


def test_many_regions_are_gathered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_device()
    planes = FramePlanes("rgb", (np.random.default_rng(1).integers(0, 256, (64, 96, 3), np.uint8),))
    store = GlStore(PlaneFormat.of(planes), Thresholds(), 1000)
    store.update(planes, stamp(0))
    regions = np.array([(0, row, col) for row in range(2) for col in range(3)] + [(1, 0, 0), (1, 0, 1)])
    with store.lease() as view:
        at_once = view.gather(regions)
        monkeypatch.setattr(reading, "REGIONS_AT_ONCE", 3)
        np.testing.assert_array_equal(view.gather(regions), at_once)
    store.close()


Floats = npt.NDArray[np.floating]


def smooth_picture() -> npt.NDArray[np.uint8]:
    y, x = np.mgrid[0:128, 0:160]
    waves = 127 + 100 * np.sin(x / 17) * np.cos(y / 23)
    return np.stack([waves, x * 1.5, y * 1.9], -1).astype(np.uint8)


@dataclass
class Held:
    """A store that holds one picture, and its levels in 0..1."""

    store: GlStore
    levels: list[Floats]


def held(picture: npt.NDArray[np.uint8]) -> Held:
    shared_device()
    planes = FramePlanes("rgb", (picture,))
    store = GlStore(PlaneFormat.of(planes), Thresholds(), 1000)
    store.update(planes, stamp(0))
    with store.lease() as view:
        return Held(store, [view.read(level) / 255.0 for level in range(6)])


@pytest.fixture
def smooth() -> Iterator[Held]:
    made = held(smooth_picture())
    yield made
    made.store.close()


def bilinear(level: Floats, x: Floats, y: Floats) -> Floats:
    """Texel centres at .5, edges repeated: [n, 3]."""
    left, top = np.floor(x - 0.5).astype(int), np.floor(y - 0.5).astype(int)
    right_share, below_share = (x - 0.5 - left)[:, None], (y - 0.5 - top)[:, None]

    def texel(row: npt.NDArray[np.intp], col: npt.NDArray[np.intp]) -> Floats:
        return level[np.clip(row, 0, len(level) - 1), np.clip(col, 0, level.shape[1] - 1)]

    above = texel(top, left) * (1 - right_share) + texel(top, left + 1) * right_share
    below = texel(top + 1, left) * (1 - right_share) + texel(top + 1, left + 1) * right_share
    return above * (1 - below_share) + below * below_share


def trilinear(levels: list[Floats], points: Floats) -> Floats:
    fine = np.floor(points[:, 2]).astype(int)
    share = (points[:, 2] - fine)[:, None]
    blended = []
    for index in (fine, np.minimum(fine + 1, 5)):
        parts = np.empty((len(points), 3))
        for level in range(6):
            some = index == level
            parts[some] = bilinear(levels[level], points[some, 0] / 2**level, points[some, 1] / 2**level)
        blended.append(parts)
    return blended[0] * (1 - share) + blended[1] * share


def test_texel_centres_are_exact(smooth: Held) -> None:
    rows, cols = np.mgrid[0:128, 0:160].reshape(2, -1)
    points = np.stack([cols + 0.5, rows + 0.5, np.zeros(len(rows))], 1)
    with smooth.store.texels() as texels:
        got = np.rint(texels.sample(points) * 255)
        assert texels.sample(points[:0]).shape == (0, 3)
    np.testing.assert_array_equal(got, np.rint(smooth.levels[0].reshape(-1, 3) * 255))


def test_between_texels_and_levels_is_interpolation_within_2_of_255(smooth: Held) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform((-20, -20, 0), (180, 150, 5), (2000, 3))
    with smooth.store.texels() as texels:
        got = texels.sample(points)
    assert np.abs(got - trilinear(smooth.levels, points)).max() < 2 / 255


@pytest.mark.parametrize("length_px", [1, 3, 8, 16, 24])
def test_along_a_line_is_its_mean_within_4_of_255(smooth: Held, length_px: float) -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform((30, 30), (130, 98), (500, 2))
    angles = rng.uniform(0, 2 * np.pi, 500)
    footprints = np.stack([np.cos(angles), np.sin(angles)], 1) * length_px
    with smooth.store.texels() as texels:
        got = texels.sample_along(points, footprints)
        assert texels.sample_along(points[:0], footprints[:0]).shape == (0, 3)
    steps = (np.arange(64) + 0.5) / 64 - 0.5
    places = points + steps[:, None, None] * footprints
    mean = np.mean([bilinear(smooth.levels[0], *place.T) for place in places], axis=0)
    assert np.abs(got - mean).max() < 4 / 255


def test_a_line_leaves_out_what_lies_beside_it() -> None:
    """Rows of black and white: along them colours stay apart, across them and without direction they blur."""
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[::2] = 255
    striped = held(picture)
    rows = np.array([[48, 30.5], [48, 31.5]])
    with striped.store.texels() as texels:
        along = texels.sample_along(rows, np.full((2, 2), (12.0, 0.0)))
        across = texels.sample_along(rows, np.full((2, 2), (0.0, 12.0)))
        wide = texels.sample_along(rows, np.full((2, 2), (32.0, 0.0)), width_px=8)
        anywhere = texels.sample(np.column_stack([rows, np.log2([12, 12])]))
    np.testing.assert_allclose(along[:, 0], [1, 0], atol=0.02)
    for blurred in (across, wide, anywhere):
        np.testing.assert_allclose(blurred[:, 0], [0.5, 0.5], atol=0.1)
    striped.store.close()


def test_the_filter_of_the_hardware_compiles_and_keeps_one_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    """What llvmpipe makes of gradients is wrong, but for a picture of one colour."""
    device = shared_device()
    monkeypatch.setattr(device, "software", False)
    plain = held(np.full((64, 96, 3), (200, 100, 50), np.uint8))
    texture = plain.store._texture
    assert texture.anisotropy >= 16
    points, footprints = np.full((70, 2), (40.0, 30.0)), np.full((70, 2), (8.0, 3.0))
    got = sample_along(texture, points, footprints)
    np.testing.assert_allclose(got * 255, np.full((70, 3), (200, 100, 50)), atol=1)
    monkeypatch.setattr(texture, "anisotropy", 2.0)
    with pytest.raises(BackendMissing, match="filters 2:1 at most, and footprints need 16:1"):
        sample_along(texture, points, footprints)
    plain.store.close()
    monkeypatch.setattr(device, "version", (4, 5))
    monkeypatch.setattr(device, "extensions", set)
    without = held(smooth_picture())
    assert without.store._texture.anisotropy == 1
    without.store.close()


def test_what_is_no_sample_is_refused(smooth: Held) -> None:
    texture = smooth.store._texture
    two, three = np.zeros((4, 2)), np.zeros((4, 3))
    with pytest.raises(ShapeError, match=r"points are floats \[n, 3\], got float64 \(4, 2\)"):
        sample(texture, two)
    with pytest.raises(ShapeError, match=r"points are floats \[n, 3\], got int64"):
        sample(texture, np.zeros((4, 3), int))
    with pytest.raises(NonFiniteError, match="points hold NaN"):
        sample(texture, np.full((4, 3), np.nan))
    with pytest.raises(ShapeError, match=r"footprints are floats \[n, 2\]"):
        sample_along(texture, two, three)
    with pytest.raises(ShapeError, match="got 4 points and 3 footprints"):
        sample_along(texture, two, np.ones((3, 2)))
    with pytest.raises(ShapeError, match="a footprint needs a direction"):
        sample_along(texture, two, two)
    with pytest.raises(OptionError, match="width is a positive number of texels, got 0"):
        sample_along(texture, two, np.ones((4, 2)), width_px=0)


def picture() -> Bytes:
    """Waves and ramps, of a size that needs padding."""
    y, x = np.mgrid[0:120, 0:150]
    return np.stack([127 + 100 * np.sin(x / 17) * np.cos(y / 23), x * 1.5, y * 1.9], -1).astype(np.uint8)


@pytest.fixture
def store() -> Iterator[GlStore]:
    require("gl")
    planes = FramePlanes("rgb", (picture(),))
    store = GlStore(PlaneFormat.of(planes), Thresholds(), 1000)
    store.update(planes, stamp(0))
    yield store
    store.close()


def test_trilinear_samples_agree_within_2_of_255(store: GlStore) -> None:
    rng = np.random.default_rng(0)
    y, x, level = rng.uniform(-20, 150, 2000), rng.uniform(-20, 180, 2000), rng.uniform(0, 5, 2000)
    expected = Texture(picture()).sample(torch.from_numpy(np.stack([y, x], 1)), torch.from_numpy(level))
    with store.texels() as texels:
        got = texels.sample(np.stack([x, y, level], 1)) * 255
    assert np.abs(got - expected.numpy()).max() < 2


@pytest.mark.parametrize("length_px", [3.0, 8.0, 16.0])
def test_anisotropic_samples_agree_within_4_of_255(store: GlStore, length_px: float) -> None:
    rng = np.random.default_rng(1)
    points, angles = rng.uniform((30, 30), (90, 120), (500, 2)), rng.uniform(0, 2 * np.pi, 500)
    along = np.stack([np.sin(angles), np.cos(angles)], 1) * length_px
    expected = Texture(picture()).sample_along(torch.from_numpy(points), torch.from_numpy(along), 1.0)
    with store.texels() as texels:
        got = texels.sample_along(points[:, ::-1], along[:, ::-1], 1.0) * 255
    assert np.abs(got - expected.numpy()).max() < 4
