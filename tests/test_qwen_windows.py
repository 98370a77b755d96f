"""Attention windows over rows that are encoded together, and over kept keys."""

from __future__ import annotations

import torch

from arr_coc.qwen.positions import grid_regions
from arr_coc.qwen.windows import KeptWindows, Windows
from arr_coc.types import TileGrid

GRID = TileGrid.of(6 * 32, 9 * 32)
REGIONS = torch.cat([grid_regions(GRID)[:40], torch.tensor([[1, 2, 3], [2, 1, 0]])])


def rows(seed: int) -> torch.Tensor:
    return torch.randn(1, 4 * len(REGIONS), 2, 8, generator=torch.Generator().manual_seed(seed))


def test_windows_hold_each_patch_once_and_only_their_own() -> None:
    regions = torch.stack([grid_regions(GRID), grid_regions(GRID).flip(0)])
    windows = Windows.over(regions, 4)
    assert windows.count == 2 * 2 * 3
    assert windows.size == 4 * 16
    assert len(set(windows.slots.tolist())) == 2 * GRID.tiles * 4
    window = (windows.slots // windows.size).view(2, -1)
    assert window[0].unique().numel() == 6
    assert not set(window[0].tolist()) & set(window[1].tolist())


def test_full_windows_need_no_mask() -> None:
    assert Windows.over(grid_regions(TileGrid.of(256, 256))[None], 4).keys is None


def test_some_asking_get_what_they_got_among_all() -> None:
    query, key, value = rows(0), rows(1), rows(2)
    expected = Windows.over(REGIONS[None], 4).attend(query, key, value)[0].unflatten(0, (-1, 4))
    slots = torch.randperm(len(REGIONS), generator=torch.Generator().manual_seed(3))
    kept_key, kept_value = torch.empty_like(key[0]), torch.empty_like(value[0])
    for kept, given in ((kept_key, key), (kept_value, value)):
        kept.unflatten(0, (-1, 4))[slots] = given[0].unflatten(0, (-1, 4))
    asking = torch.tensor([1, 8, 9, 30, 40, 41])
    windows = KeptWindows.over(REGIONS, 4, asking, slots)
    assert windows.count < 6
    asked = query[0].unflatten(0, (-1, 4))[asking].flatten(0, 1)[None]
    got = windows.to(torch.device("cpu")).attend(asked, kept_key, kept_value)
    torch.testing.assert_close(got[0].unflatten(0, (-1, 4)), expected[asking], atol=1e-6, rtol=0)
