"""Regions in the order in which the device takes them."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.ops.gl import reading
from arr_coc.ops.gl.arrays import GlTextureArray
from arr_coc.ops.gl.reading import by_level
from arr_coc.ops.gl.ring import ALIGNMENT
from tests.gl_devices import shared_device


def test_places_are_grouped_by_level_and_every_group_begins_aligned() -> None:
    rng = np.random.default_rng(0)
    regions = np.stack([rng.choice([0, 2, 5], 100), *rng.integers(0, 9, (3, 100))], axis=1)
    places, dispatches = by_level(regions)
    assert [dispatch.level for dispatch in dispatches] == [0, 2, 5]
    seen = []
    for dispatch in dispatches:
        assert dispatch.start % ALIGNMENT == 0
        group = places[dispatch.start // 16 :][: dispatch.groups]
        slots = group[:, 3]
        seen += slots.tolist()
        assert (regions[slots, 0] == dispatch.level).all()
        np.testing.assert_array_equal(group[:, :3], regions[slots, 1:])
    assert sorted(seen) == list(range(100))


def test_many_regions_are_gathered_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    shared_device()
    array = GlTextureArray(1, 64, 96)
    array.update(np.random.default_rng(1).integers(0, 256, (1, 64, 96, 3), np.uint8))
    regions = np.array([(0, 0, row, col) for row in range(2) for col in range(3)] + [(0, 1, 0, 0), (0, 1, 0, 1)])
    at_once = array.gather(regions)
    monkeypatch.setattr(reading, "REGIONS_AT_ONCE", 3)
    np.testing.assert_array_equal(array.gather(regions), at_once)
    array.close()
