"""What training shows of a world: within the budget, the pixels of the regions, and targets that hold of them."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.types import TileGrid
from stream.scenes.world import COLOURS, Facts, Thing
from training.demo_worlds import random_world
from training.views import HOWS, TARGETS, UNKNOWN, How, Viewer, token_targets

NAMES = list(TARGETS)


@pytest.mark.parametrize("how", HOWS)
def test_a_view_keeps_to_the_budget_and_shows_the_regions_pixels(how: How) -> None:
    rng = np.random.default_rng(3)
    world, viewer = random_world(rng, (384, 256)), Viewer(rng)
    view = viewer.look(world, 48, how)
    assert view.grid.shape == (8, 12)
    assert 30 <= len(view.regions) <= 48
    assert view.targets.shape == (len(view.regions), len(TARGETS))
    for (level, row, col), pixels in zip(view.regions.tolist(), view.pixels, strict=True):
        if level == 0:
            tile = world.image[row * 32 : row * 32 + 32, col * 32 : col * 32 + 32]
            np.testing.assert_array_equal(pixels.transpose(1, 2, 0), tile)
    everything = viewer.look(world, 500, how)
    assert len(everything.regions) == 96
    assert everything.regions[:, 0].max() == 0


def test_targets_tell_what_each_region_shows() -> None:
    facts = Facts.of(
        256, 128, [Thing("circle", "blue", 64, 64, 64, "left"), Thing("number", "red", 208, 48, 48, number=42)]
    )
    grid = TileGrid.of(128, 256)
    regions = np.array([[0, 1, 1], [0, 3, 0], [0, 1, 6], [0, 1, 3], [1, 0, 0], [2, 0, 1]])
    targets = token_targets(facts, grid, regions)
    found = [dict(zip(NAMES, row, strict=True)) for row in targets.tolist()]
    circle = {"shape": 0, "colour": list(COLOURS).index("blue"), "movement": 1, "tens": UNKNOWN, "units": UNKNOWN}
    assert circle.items() <= found[0].items()
    assert set(found[1].values()) == {UNKNOWN}
    assert found[2] == {"shape": 6, "colour": 0, "movement": 0, "place": 5, "tens": 4, "units": 2, "order": 1}
    assert found[3]["movement"] == 1, "the streak belongs to its thing"
    assert found[4]["order"] == 0
    assert found[5]["order"] == 1, "a coarse region shows what most of it lies in"
