"""Arrays for compiled kernels: used again once nobody holds them."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.ops.kernels import ALIKE_MAX, ArrayPool

SHAPE = (3, 4)


def test_an_array_that_nobody_holds_is_used_again() -> None:
    pool = ArrayPool()
    place = pool.take(SHAPE).ctypes.data
    assert pool.take(SHAPE).ctypes.data == place
    held = pool.take(SHAPE)
    other = pool.take(SHAPE)
    assert held.ctypes.data == place
    assert other is not held
    del held
    assert pool.take(SHAPE).ctypes.data == place


def test_what_is_held_by_a_view_or_a_tensor_is_left_alone() -> None:
    pool = ArrayPool()
    row, tensor = pool.take(SHAPE)[1], torch.from_numpy(pool.take(SHAPE))
    row[:], tensor[:] = 1, 2
    pool.take(SHAPE)[:] = 3
    assert (row == 1).all()
    assert (tensor == 2).all()


def test_kinds_are_kept_apart() -> None:
    pool = ArrayPool()
    assert pool.take(SHAPE).dtype == np.float32
    assert pool.take(SHAPE, np.uint8).dtype == np.uint8
    assert pool.take((4, 3)).shape == (4, 3)


def test_it_keeps_a_bounded_number_of_arrays() -> None:
    pool = ArrayPool()
    held = [pool.take(SHAPE) for _ in range(3 * ALIKE_MAX)]
    for index, array in enumerate(held):
        array[:] = index
    assert [float(array[0, 0]) for array in held] == list(range(len(held)))
    addresses = {pool.address(array) for array in held}
    assert addresses == {array.ctypes.data for array in held}
    assert len(pool._addresses) == ALIKE_MAX
