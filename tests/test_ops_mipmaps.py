"""The box filter, exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.ops.mipmaps import allocate_levels, refresh
from tests.plane_maker import expected_levels


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1 << 16))
def test_every_level_is_the_rounded_mean_of_four(rows: int, cols: int, seed: int) -> None:
    levels = allocate_levels(rows, cols)
    levels[0][:] = np.random.default_rng(seed).integers(0, 256, levels[0].shape)
    refresh(levels, (0, 0, rows, cols))
    for got, expected in zip(levels, expected_levels(levels[0]), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_halves_are_rounded_up() -> None:
    levels = allocate_levels(1, 1)
    levels[0][::2, ::2] = 2
    refresh(levels, (0, 0, 1, 1))
    assert (levels[1] == 1).all()
    levels[0][::2, ::2] = 1
    refresh(levels, (0, 0, 1, 1))
    assert (levels[1] == 0).all()


def test_nothing_outside_of_the_rectangle_is_touched() -> None:
    levels = allocate_levels(3, 4)
    levels[0][:] = 200
    refresh(levels, (1, 1, 2, 3))
    for level in range(1, 6):
        side = 32 >> level
        inside = np.zeros(levels[level].shape, bool)
        inside[side : 2 * side, side : 3 * side] = True
        np.testing.assert_array_equal(levels[level], np.where(inside, 200, 0))
