"""Float positions of regions, and M-RoPE rows against the stock model's own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_qwen import FAMILIES, mrope_positions, tiny_model

from arr_coc.ops.regions import token_positions
from arr_coc.qwen.positions import after_frame, grid_regions, patch_positions, visual_positions
from arr_coc.types import TileGrid


def test_a_coarse_token_stands_at_the_middle_of_its_tiles() -> None:
    assert token_positions(torch.tensor([[2, 1, 3]])).tolist() == [[5.5, 13.5]]
    assert token_positions(torch.tensor([[0, 1, 3]])).tolist() == [[1.0, 3.0]]


def test_patches_of_a_coarse_token() -> None:
    places = patch_positions(torch.tensor([[1, 1, 0]]))
    assert places.tolist() == [[4.5, 0.5], [4.5, 2.5], [6.5, 0.5], [6.5, 2.5]]


@given(st.integers(0, 5), st.integers(0, 40), st.integers(0, 40))
def test_a_token_is_the_mean_of_the_tiles_it_covers(level: int, row: int, col: int) -> None:
    side = 2**level
    rows = torch.arange(row * side, (row + 1) * side, dtype=torch.float64)
    cols = torch.arange(col * side, (col + 1) * side, dtype=torch.float64)
    assert token_positions(torch.tensor([level, row, col])).tolist() == [rows.mean(), cols.mean()]


def test_the_frame_stands_at_one_time() -> None:
    rows = visual_positions(7, torch.tensor([[1, 0, 0], [0, 2, 5]]))
    assert rows.tolist() == [[7.0, 7.0], [7.5, 9.0], [7.5, 12.0]]


def test_text_goes_on_after_the_longer_side() -> None:
    assert after_frame(10, TileGrid.of(96, 160)) == 15


@pytest.mark.parametrize("family", FAMILIES)
def test_all_tiles_have_the_stock_positions(family: str) -> None:
    model = tiny_model(family)
    grid = TileGrid.of(3 * 32, 5 * 32)
    image_token = model.config.image_token_id
    ids = torch.tensor([[40] * 4 + [image_token] * grid.tiles + [40] * 6])
    expected, _ = model.model.get_rope_index(
        ids,
        mm_token_type_ids=(ids == image_token).int(),
        image_grid_thw=torch.tensor([[1, 2 * grid.rows, 2 * grid.cols]]),
    )
    got = mrope_positions(4, grid_regions(grid), grid, 6)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected[:, 0].float(), atol=0, rtol=0)
    few = mrope_positions(4, grid_regions(grid)[::3], grid, 6)
    torch.testing.assert_close(few[..., -6:], got[..., -6:], atol=0, rtol=0)
