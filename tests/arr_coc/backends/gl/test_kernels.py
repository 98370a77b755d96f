"""Regions in the order in which the device takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import numpy as np
import pytest

from arr_coc.backends.gl import kernels as reading
from arr_coc.backends.gl.buffers import ALIGNMENT
from arr_coc.backends.gl.kernels import by_shape, sample, sample_along
from arr_coc.backends.gl.store import GlStore
from arr_coc.errors import BackendMissing, NonFiniteError, OptionError, ShapeError
from arr_coc.texture.store.planes import PlaneFormat, Thresholds
from arr_coc.types import FramePlanes
from tests.support.stores import shared_device
from tests.support.video import Bytes, stamp


def test_places_are_grouped_by_shape_and_every_group_begins_aligned() -> None:
    rng = np.random.default_rng(0)
    regions = np.stack([rng.choice([0, 2, 7, 12], 100), *rng.integers(0, 9, (2, 100))], axis=1)
    places, dispatches = by_shape(regions)
    assert [dispatch.level for dispatch in dispatches] == [0, 2, 0, 1]
    assert [dispatch.defines for dispatch in dispatches] == [(), (), ("DOWN 1", "ACROSS 4"), ("DOWN 2", "ACROSS 1")]
    all_slots = []
    for code, dispatch in zip([0, 2, 7, 12], dispatches, strict=True):
        assert dispatch.start % ALIGNMENT == 0
        group = places[dispatch.start // 16 :][: dispatch.groups]
        slots = group[:, 2]
        all_slots += slots.tolist()
        assert (regions[slots, 0] == code).all()
        np.testing.assert_array_equal(group[:, :2], regions[slots, 1:])
    assert sorted(all_slots) == list(range(100))


Opener = Callable[[Bytes], GlStore]


@pytest.fixture
def open_store() -> Iterator[Opener]:
    """Stores that hold one picture."""
    shared_device()
    with ExitStack() as stack:

        def opened(picture: Bytes) -> GlStore:
            planes = FramePlanes("rgb", (picture,))
            store = stack.enter_context(closing(GlStore(PlaneFormat.of(planes), Thresholds(), 1000)))
            store.update(planes, stamp(0))
            return store

        yield opened


def test_many_regions_are_gathered_in_parts(open_store: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(np.random.default_rng(1).integers(0, 256, (64, 96, 3), np.uint8))
    regions = np.array([(0, row, col) for row in range(2) for col in range(3)] + [(1, 0, 0), (1, 0, 1)])
    with store.lease() as view:
        at_once = view.gather(regions)
        monkeypatch.setattr(reading, "REGIONS_AT_ONCE", 3)
        np.testing.assert_array_equal(view.gather(regions), at_once)


def test_the_filter_of_the_hardware_compiles_and_keeps_one_colour(
    open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of llvmpipe are wrong, but for a picture of one colour."""
    device = shared_device()
    monkeypatch.setattr(device, "software", False)
    plain = np.full((64, 96, 3), (200, 100, 50), np.uint8)
    texture = open_store(plain)._texture
    assert texture.anisotropy >= 16
    points, footprints = np.full((70, 2), (40.0, 30.0)), np.full((70, 2), (8.0, 3.0))
    colours = sample_along(texture, points, footprints)
    np.testing.assert_allclose(colours * 255, np.full((70, 3), (200, 100, 50)), atol=1)
    monkeypatch.setattr(texture, "anisotropy", 2.0)
    with pytest.raises(BackendMissing, match="filters 2:1 at most, and footprints need 16:1"):
        sample_along(texture, points, footprints)
    monkeypatch.setattr(device, "version", (4, 5))
    monkeypatch.setattr(device, "extensions", set)
    assert open_store(plain)._texture.anisotropy == 1


def test_invalid_samples_are_refused(open_store: Opener) -> None:
    texture = open_store(np.zeros((64, 96, 3), np.uint8))._texture
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
