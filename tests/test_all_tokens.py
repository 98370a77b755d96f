"""The allocation that shows everything."""

from __future__ import annotations

import numpy as np

from arr_coc.packets import all_tokens
from arr_coc.types import FramePlanes, FrameStamp
from arr_coc.updater import TextureUpdater


def test_all_tokens_cover_every_tile_once() -> None:
    updater = TextureUpdater()
    updater.process(FramePlanes("rgb", (np.zeros((70, 100, 3), np.uint8),)), FrameStamp(0, 0, 0))
    with updater.lease() as view:
        frame = all_tokens(view)
    tiles = [(0, row, col) for row in range(3) for col in range(4)]
    assert [tuple(region) for region in frame.allocation.regions.tolist()] == tiles
    assert frame.allocation.tokens == 12
    assert frame.levels.shape == (3, 4)
