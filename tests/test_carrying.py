from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.carrying import Carrier, carried


@given(dy=st.integers(-6, 6), dx=st.integers(-6, 6))
def test_tiles_move_and_others_come_in(dy: int, dx: int) -> None:
    values = np.arange(20, dtype=np.float32).reshape(4, 5)
    moved = carried(values, dy, dx, -1)
    for row in range(4):
        for col in range(5):
            inside = 0 <= row - dy < 4 and 0 <= col - dx < 5
            assert moved[row, col] == (values[row - dy, col - dx] if inside else -1)
    assert (carried(np.stack([values, values]), dy, dx, -1) == moved).all()


def test_small_moves_add_up_to_whole_tiles() -> None:
    carrier = Carrier(0)
    moves = [carrier.move(frame, 0, -5) for frame in range(1, 41)]
    assert sum(dx for _, dx in moves) == -200 // 32 + 1
    assert {dx for _, dx in moves} == {0, -1}
    assert carrier.move(41, 70, 0) == (2, 0)


def test_a_shaking_hand_carries_nothing() -> None:
    carrier = Carrier(0)
    assert all(carrier.move(frame, 0, 17 * (-1) ** frame) == (0, 0) for frame in range(1, 50))


def test_it_knows_how_far_an_earlier_frame_is_away() -> None:
    carrier = Carrier(10)
    carrier.move(12, 32, 0)
    carrier.move(15, 32, -64)
    carrier.move(16, 0, 0)
    assert carrier.since(9) is None
    assert [carrier.since(frame) for frame in (10, 11, 12, 14, 15, 20)] == [
        (2, -2),
        (2, -2),
        (1, -2),
        (1, -2),
        (0, 0),
        (0, 0),
    ]


def test_it_remembers_a_bounded_number_of_moves() -> None:
    carrier = Carrier(0)
    for frame in range(1, 2000):
        carrier.move(frame, 32, 0)
    assert carrier.since(0) is None
    assert carrier.since(1990) == (9, 0)


@pytest.mark.parametrize("far", [(9, 0), (0, -9)])
def test_a_move_beyond_the_frame_leaves_nothing(far: tuple[int, int]) -> None:
    assert (carried(np.ones((4, 5)), *far, np.nan) != 1).all()
