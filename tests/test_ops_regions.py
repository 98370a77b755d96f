from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.ops.regions import (
    ABSENT,
    level_count,
    level_map,
    level_shape,
    paint,
    pool_max,
    pool_sum,
    region_mean,
    spread,
    tile_counts,
)

SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 70))


def test_level_shapes_of_1080p() -> None:
    assert [level_shape((34, 60), level) for level in range(6)] == [(34, 60), (17, 30), (9, 15), (5, 8), (3, 4), (2, 2)]
    assert level_count((34, 60), 2) == 135


@given(shape=SHAPES, seed=st.integers(0, 99))
def test_pooling_keeps_sums_and_maxima(shape: tuple[int, int], seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 100, shape).astype(np.float32)
    sums, largest = pool_sum(values), pool_max(values)
    assert sums.shape == largest.shape == level_shape(shape, 1)
    assert sums.sum() == values.sum()
    for row in range(sums.shape[0]):
        for col in range(sums.shape[1]):
            cell = values[2 * row : 2 * row + 2, 2 * col : 2 * col + 2]
            assert sums[row, col] == cell.sum()
            assert largest[row, col] == cell.max()


@given(shape=SHAPES, level=st.integers(0, 5))
def test_tiles_are_counted_as_they_are_painted(shape: tuple[int, int], level: int) -> None:
    rows, cols = level_shape(shape, level)
    regions = np.array([(level, row, col) for row in range(rows) for col in range(cols)], np.int32)
    painted = paint(regions, np.arange(len(regions)), shape, ABSENT)
    assert tile_counts(regions, shape).tolist() == np.bincount(painted.ravel()).tolist()


def test_spread_is_cut_off_at_the_edge() -> None:
    coarse = np.array([[1, 2], [3, 4]])
    assert spread(coarse, 1, (3, 3)).tolist() == [[1, 1, 2], [1, 1, 2], [3, 3, 4]]


def test_painting_and_means_of_mixed_levels() -> None:
    regions = np.array([[1, 0, 0], [0, 0, 2], [0, 2, 2]])
    painted = paint(regions, np.array([5.0, 6.0, 7.0], np.float32), (3, 3), -1)
    assert painted.tolist() == [[5, 5, 6], [5, 5, -1], [-1, -1, 7]]
    assert level_map(regions, (3, 3)).tolist() == [[1, 1, 0], [1, 1, ABSENT], [ABSENT, ABSENT, 0]]
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert region_mean(regions, values).tolist() == [2.0, 2.0, 8.0]


def test_a_region_at_the_edge_means_over_its_own_tiles() -> None:
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert region_mean(np.array([[1, 1, 1], [1, 0, 1]]), values).tolist() == [8.0, 3.5]
