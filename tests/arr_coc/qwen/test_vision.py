"""The own vision loop against the stock towers, and what only it can do: coarse regions, batches, gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from arr_coc.errors import ShapeError
from arr_coc.qwen.preprocess import PixelNormalisation, fit_tiles, grid_regions, to_patches, to_tiles
from arr_coc.qwen.qwenvl import rotate
from arr_coc.qwen.vision import (
    BLOCK_NUMBERS,
    AttentionWindows,
    CachedAttentionWindows,
    encode_regions,
    rotate_patches,
)
from arr_coc.types import TileGrid
from tests.support.models import FAMILIES, tiny_model

GRID = TileGrid.of(6 * 32, 9 * 32)


def noise_tiles(model: Any, grid: TileGrid, seed: int = 0) -> torch.Tensor:
    tile_px = 2 * model.config.vision_config.patch_size
    generator = torch.Generator().manual_seed(seed)
    shape = (grid.rows * tile_px, grid.cols * tile_px, 3)
    return to_tiles(torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator), tile_px)


def stock(model: Any, tiles: torch.Tensor, grid: TileGrid) -> Any:
    rows = to_patches(PixelNormalisation()(tiles))
    patches = rows.unflatten(-1, (3, 1, -1)).expand(-1, 3, 2, -1).flatten(1)
    return model.model.visual(patches, grid_thw=torch.tensor([[1, 2 * grid.rows, 2 * grid.cols]]))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_all_tiles_equal_the_stock_tower(family: str) -> None:
    model = tiny_model(family)
    tiles = noise_tiles(model, GRID)
    expected = stock(model, tiles, GRID)
    tokens = encode_regions(model.model.visual, tiles[None], grid_regions(GRID)[None], GRID)
    torch.testing.assert_close(tokens.embeds[0], expected.pooler_output, atol=1e-5, rtol=0)
    deepstack = getattr(expected, "deepstack_features", None) or []
    assert len(tokens.deepstack) == len(deepstack)
    for rows, expected_rows in zip(tokens.deepstack, deepstack, strict=True):
        torch.testing.assert_close(rows[0], expected_rows, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_batch_equals_its_images(family: str) -> None:
    model = tiny_model(family)
    pixels = torch.stack([noise_tiles(model, GRID, seed) for seed in range(2)])[:, :10]
    regions = torch.stack(
        [grid_regions(GRID)[:10], torch.tensor([[1, 0, 0], [2, 1, 1], *[[0, 5, c] for c in range(8)]])]
    )
    batch = encode_regions(model.model.visual, pixels, regions, GRID)
    for image in range(2):
        single = encode_regions(model.model.visual, pixels[image : image + 1], regions[image : image + 1], GRID)
        torch.testing.assert_close(batch.embeds[image], single.embeds[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_the_patch_weights(family: str) -> None:
    model = tiny_model(family)
    regions = torch.tensor([[[1, 0, 0], [0, 2, 3], [0, 5, 5]]])
    tokens = encode_regions(model.model.visual, noise_tiles(model, GRID)[None, :3], regions, GRID)
    tokens.embeds.square().sum().backward()
    assert model.model.visual.patch_embed.proj.weight.grad.abs().sum() > 0
    assert model.model.visual.blocks[0].attn.qkv.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("shape", "down", "across"), [(1, 2, 2), (6, 1, 2), (10, 2, 1)])
@torch.no_grad()
def test_larger_regions_stand_between_the_stock_positions(shape: int, down: int, across: int) -> None:
    """A frame covered by regions of one shape, against the stock tower set half-way between its places."""
    model = tiny_model("qwen3_vl")
    grid = TileGrid.of(4 * 32, 6 * 32)
    regions = torch.tensor([[[shape, row, col] for row in range(4 // down) for col in range(6 // across)]])
    tiles = noise_tiles(model, grid)[: regions.shape[1]]
    places = [
        (2 * down * row + down * inner_row + (down - 1) / 2, 2 * across * col + across * inner_col + (across - 1) / 2)
        for _, row, col in regions[0].tolist()
        for inner_row in range(2)
        for inner_col in range(2)
    ]
    indices, weights = zip(*(bilinear(row / 7 * 5, col / 11 * 5, side=6) for row, col in places), strict=True)
    rows = to_patches(PixelNormalisation()(tiles)).unflatten(-1, (3, 1, -1)).expand(-1, 3, 2, -1).flatten(1)
    expected = model.model.visual(
        rows,
        grid_thw=torch.tensor([[1, 4 // down * 2, 6 // across * 2]]),
        position_ids=torch.tensor(places),
        interp_indices=torch.tensor(indices),
        interp_weights=torch.tensor(weights),
    )
    tokens = encode_regions(model.model.visual, tiles[None], regions, grid)
    torch.testing.assert_close(tokens.embeds[0], expected.pooler_output, atol=1e-5, rtol=0)


def bilinear(row: float, col: float, side: int) -> tuple[list[int], list[float]]:
    """The four places of a square grid around a point, and their weights."""
    top, left = int(row), int(col)
    down, right = row - top, col - left
    corners = [(top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)]
    shares = [(1 - down) * (1 - right), (1 - down) * right, down * (1 - right), down * right]
    return [min(r, side - 1) * side + min(c, side - 1) for r, c in corners], shares


@torch.no_grad()
def test_a_region_beyond_the_edge_is_finite() -> None:
    tower = tiny_model("qwen3_vl").model.visual
    pixels = torch.zeros(1, 1, 3, 32, 32, dtype=torch.uint8)
    assert encode_regions(tower, pixels, torch.tensor([[[5, 0, 0]]]), TileGrid.of(32, 32)).embeds.isfinite().all()


def test_pixels_and_regions_must_match() -> None:
    with pytest.raises(ShapeError, match=r"\[1, 2, 3, 32, 32\] and \[1, 3, 3\]"):
        encode_regions(None, torch.zeros(1, 2, 3, 32, 32), torch.zeros(1, 3, 3), GRID)


def test_tiles_are_fitted_one_by_one() -> None:
    tiles = torch.randint(0, 256, (2, 3, 3, 32, 32), dtype=torch.uint8)
    fitted = fit_tiles(tiles, 28)
    assert fitted.shape == (2, 3, 3, 28, 28)
    torch.testing.assert_close(fitted[1, 2], fit_tiles(tiles[1:, 2:], 28)[0, 0])
    assert fit_tiles(tiles, 32) is tiles


WINDOWS_GRID = TileGrid.of(6 * 32, 9 * 32)
REGIONS = torch.cat([grid_regions(WINDOWS_GRID)[:40], torch.tensor([[1, 2, 3], [2, 1, 0]])])


def rows(seed: int) -> torch.Tensor:
    return torch.randn(1, 4 * len(REGIONS), 2, 8, generator=torch.Generator().manual_seed(seed))


def test_windows_hold_each_patch_once_and_only_their_own() -> None:
    regions = torch.stack([grid_regions(WINDOWS_GRID), grid_regions(WINDOWS_GRID).flip(0)])
    windows = AttentionWindows.over(regions, 4)
    assert windows.count == 2 * 2 * 3
    assert windows.size == 4 * 16
    assert len(set(windows.slots.tolist())) == 2 * WINDOWS_GRID.tiles * 4
    window = (windows.slots // windows.size).view(2, -1)
    assert window[0].unique().numel() == 6
    assert not set(window[0].tolist()) & set(window[1].tolist())


def test_full_windows_need_no_mask() -> None:
    assert AttentionWindows.over(grid_regions(TileGrid.of(256, 256))[None], 4).keys is None


def test_some_asking_get_what_they_got_among_all() -> None:
    query, key, value = rows(0), rows(1), rows(2)
    expected = AttentionWindows.over(REGIONS[None], 4).attend(query, key, value)[0].unflatten(0, (-1, 4))
    slots = torch.randperm(len(REGIONS), generator=torch.Generator().manual_seed(3))
    kept_key, kept_value = torch.empty_like(key[0]), torch.empty_like(value[0])
    for slot_rows, tensor in ((kept_key, key), (kept_value, value)):
        slot_rows.unflatten(0, (-1, 4))[slots] = tensor[0].unflatten(0, (-1, 4))
    asking = torch.tensor([1, 8, 9, 30, 40, 41])
    windows = CachedAttentionWindows.over(REGIONS, 4, asking, slots)
    assert windows.count < 6
    queries = query[0].unflatten(0, (-1, 4))[asking].flatten(0, 1)[None]
    mixed = windows.to(torch.device("cpu")).attend(queries, kept_key, kept_value)
    torch.testing.assert_close(mixed[0].unflatten(0, (-1, 4)), expected[asking], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch", "patches"), [(1, 1), (1, 90), (3, 40)])
def test_patches_are_rotated_in_blocks_to_the_same_numbers(dtype: torch.dtype, batch: int, patches: int) -> None:
    torch.manual_seed(0)
    rows = torch.randn(batch, patches, 3, 8, 128).to(dtype)[:, :, :2]
    assert patches == 1 or rows.numel() > 2 * BLOCK_NUMBERS, "several blocks"
    angles = torch.randn(batch, patches, 1, 1, 128)
    assert torch.equal(
        rotate_patches(rows, angles.cos(), angles.sin(), rows.dtype), rotate(rows, angles.cos(), angles.sin())
    )


def test_a_gradient_passes_through_the_rotation() -> None:
    rows = torch.randn(1, 8, 2, 2, 16, requires_grad=True)
    angles = torch.randn(1, 8, 1, 1, 16)
    rotate_patches(rows, angles.cos(), angles.sin(), rows.dtype).square().sum().backward()
    assert rows.grad is not None
    assert rows.grad.abs().min() > 0
    with torch.no_grad():
        assert not rotate_patches(rows, angles.cos(), angles.sin(), rows.dtype).requires_grad
