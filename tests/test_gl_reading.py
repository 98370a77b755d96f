"""Regions in the order in which the device takes them."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.ops.difference import Thresholds
from arr_coc.ops.gl import reading
from arr_coc.ops.gl.reading import by_level
from arr_coc.ops.gl.ring import ALIGNMENT
from arr_coc.ops.gl.store import GlStore
from arr_coc.ops.planes import PlaneFormat
from arr_coc.types import FramePlanes
from tests.gl_devices import shared_device
from tests.plane_maker import stamp


def test_places_are_grouped_by_level_and_every_group_begins_aligned() -> None:
    rng = np.random.default_rng(0)
    regions = np.stack([rng.choice([0, 2, 5], 100), *rng.integers(0, 9, (2, 100))], axis=1)
    places, dispatches = by_level(regions)
    assert [dispatch.level for dispatch in dispatches] == [0, 2, 5]
    seen = []
    for dispatch in dispatches:
        assert dispatch.start % ALIGNMENT == 0
        group = places[dispatch.start // 16 :][: dispatch.groups]
        slots = group[:, 2]
        seen += slots.tolist()
        assert (regions[slots, 0] == dispatch.level).all()
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
