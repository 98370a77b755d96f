"""Strips in the place of squares show the same tiles, within the tokens that there are."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.ops.regions import first_tiles, tile_boxes
from arr_coc.types import LEVELS, REGION_SHAPES
from training.model.wide_regions import with_strips

SHAPE = (7, 10)
COVER = np.array(
    [[2, 0, 0], [1, 0, 2], [1, 1, 2], [0, 0, 6], [0, 0, 7], [0, 2, 6], [0, 2, 8], [1, 0, 4], [2, 1, 0], [1, 3, 4]]
)


def shown(regions: np.ndarray) -> np.ndarray:
    """How often each tile is shown."""
    times = np.zeros(SHAPE, int)
    for top, left, bottom, right in tile_boxes(regions, SHAPE).tolist():
        times[top:bottom, left:right] += 1
    return times


@pytest.mark.parametrize("tokens", [10, 14, 60])
@pytest.mark.parametrize("text", [False, True])
def test_strips_show_the_same_tiles_within_the_tokens(tokens: int, text: bool) -> None:
    before, strips = shown(COVER), 0
    for seed in range(30):
        found = with_strips(np.random.default_rng(seed), COVER, np.full(len(COVER), text), SHAPE, tokens)
        np.testing.assert_array_equal(shown(found), before)
        assert len(found) <= tokens
        places = [tuple(place) for place in first_tiles(found).tolist()]
        assert places == sorted(places), "in token order"
        strips += int((found[:, 0] >= LEVELS).sum())
    assert strips > (20 if text else 0)


def test_strips_lie_along_texts_mostly_and_stand_upright_at_times() -> None:
    texts = np.ones(len(COVER), bool)
    codes = np.concatenate([with_strips(np.random.default_rng(n), COVER, texts, SHAPE, 60)[:, 0] for n in range(60)])
    scales = [REGION_SHAPES[code] for code in codes[codes >= LEVELS].tolist()]
    lying = np.mean([down < across for down, across in scales])
    assert 0.7 < lying < 0.95
    assert {(0, 1), (0, 2), (1, 2), (1, 0), (2, 0), (2, 1)} == set(scales)
