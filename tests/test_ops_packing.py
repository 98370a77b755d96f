"""Tiles side by side."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.ops.packing import AT_ONCE, TilePacker


@pytest.mark.parametrize("channels", [3, 4])
def test_tiles_are_packed_in_the_order_asked_for(channels: int) -> None:
    rng = np.random.default_rng(0)
    level0 = rng.integers(0, 256, (9 * 32, 11 * 32, 3), dtype=np.uint8)
    tiles = np.argwhere(np.ones((9, 11), bool))[rng.permutation(99)]
    assert len(tiles) > AT_ONCE
    out = np.full((120, 32, 32, channels), 7, np.uint8)
    TilePacker().pack(level0, tiles, out)
    for packed, (row, col) in zip(out, tiles.tolist(), strict=False):
        np.testing.assert_array_equal(packed[..., :3], level0[32 * row : 32 * row + 32, 32 * col : 32 * col + 32])
    assert (out[: len(tiles), ..., 3:] == 255).all()
    assert (out[len(tiles) :] == 7).all()
