"""The cheap maps that are added up."""

from __future__ import annotations

import numpy as np

from evaluation.real.combined import WEIGHTS, barrier_distance, centre, combined, edges, motion
from evaluation.real.saliency import TEXELS_A_TILE

SHAPE = (6, 8)
TILE_PX = 16


def grey_picture(level: int = 100) -> np.ndarray:
    return np.full((SHAPE[0] * TILE_PX, SHAPE[1] * TILE_PX, 3), level, np.uint8)


def with_tile(picture: np.ndarray, row: int, col: int, level: int) -> np.ndarray:
    changed = picture.copy()
    changed[row * TILE_PX : (row + 1) * TILE_PX, col * TILE_PX : (col + 1) * TILE_PX] = level
    return changed


def test_what_no_path_reaches_without_a_step_is_far_from_the_border() -> None:
    values = np.zeros((7, 9), np.float32)
    values[2:5, 3:6] = 10
    distance = barrier_distance(values)
    assert (distance == values).all()
    values[3, 4] = 4
    assert barrier_distance(values)[3, 4] == 10, "every path out of the pit crosses its rim"
    values[3, 5:] = 10
    assert barrier_distance(values)[2, 5] == 0, "a bridge of the same value leads to the border"


def test_only_what_moves_beyond_the_rest_counts_as_motion() -> None:
    still = [grey_picture()] * 4
    assert not motion(still, SHAPE).any()
    assert not motion(still[:2], SHAPE).any(), "two frames have no past"
    moving = motion([*still, with_tile(grey_picture(), 2, 5, 180)], SHAPE)
    assert moving[2, 5] > 0.9
    assert np.count_nonzero(moving) == 1
    assert not motion([*still, grey_picture(160)], SHAPE).any(), "everything changed"


def test_the_middle_and_edges() -> None:
    middle = centre(SHAPE)
    assert middle.max() == middle[2, 3] > 0.85
    assert middle.min() == middle[0, 0] < 0.2
    striped = grey_picture()
    striped[:TILE_PX, :TILE_PX:4] = 200
    assert edges(striped, SHAPE).argmax() == 0


def test_the_sum_is_a_share_and_finds_a_tile() -> None:
    picture = with_tile(grey_picture(), 3, 4, 230)
    relevance = combined([picture], SHAPE)
    assert relevance.shape == SHAPE
    assert 0 <= relevance.min() <= relevance.max() < 1
    assert relevance.argmax() == 3 * SHAPE[1] + 4
    assert set(WEIGHTS) == {"residual", "barrier", "centre", "motion", "edges"}
    assert TEXELS_A_TILE > 1
