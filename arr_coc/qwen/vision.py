"""The vision encoder over any set of regions: all tiles of a frame, or only the chosen ones.

One loop over the stock tower's own blocks serves Qwen3-VL, Qwen2-VL and Qwen2.5-VL. It is batched and
differentiable, and with all tiles of level 0 it gives what the stock tower gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from arr_coc.errors import ShapeError
from arr_coc.qwen.positions import MERGE, patch_positions, token_positions
from arr_coc.qwen.preprocess import PixelScale, fit_tiles, to_patches
from arr_coc.types import TileGrid

ROTARY_THETA = 10_000.0
"""Base of the vision rotary frequencies, the same in all three families."""


@dataclass(frozen=True, slots=True)
class VisualTokens:
    """What the language model gets of a frame: `embeds` [B, K, D], and Qwen3-VL's `deepstack` rows, each [B, K, D]."""

    embeds: torch.Tensor
    deepstack: tuple[torch.Tensor, ...] = ()

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> VisualTokens:
        """The same change made to the embeddings and to every deepstack row."""
        return VisualTokens(change(self.embeds), tuple(change(rows) for rows in self.deepstack))


@dataclass(frozen=True, slots=True)
class Windows:
    """Patches sorted into attention windows, padded to the fullest.

    `slots` int64 [B * N]: each patch's place among `count * size` padded ones; `keys` bool [count, 1, 1, size], or
    None where no window is padded.
    """

    slots: torch.Tensor
    count: int
    size: int
    keys: torch.Tensor | None

    @classmethod
    def over(cls, regions: torch.Tensor, side_tiles: int) -> Windows:
        """Windows of `side_tiles` level-0 tiles a side; a region belongs to the one that holds its centre."""
        cell = torch.floor(token_positions(regions) / side_tiles).long()
        width = int(cell.max()) + 1
        image = torch.arange(regions.shape[0], device=regions.device)[:, None]
        name = ((image * width + cell[..., 0]) * width + cell[..., 1]).flatten().repeat_interleave(MERGE * MERGE)
        _, window, sizes = torch.unique(name, return_inverse=True, return_counts=True)
        order = torch.argsort(window, stable=True)
        first = torch.cumsum(sizes, 0) - sizes
        rank = torch.empty_like(window)
        rank[order] = torch.arange(len(window), device=window.device) - first[window[order]]
        size = int(sizes.max())
        keys = torch.arange(size, device=sizes.device) < sizes[:, None]
        return cls(window * size + rank, len(sizes), size, None if keys.all() else keys[:, None, None, :])

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention inside each window, over [B, N, heads, head_dim]; the result has that shape."""
        mixed = F.scaled_dot_product_attention(self._pad(query), self._pad(key), self._pad(value), attn_mask=self.keys)
        return mixed.transpose(1, 2).flatten(0, 1)[self.slots].view_as(query)

    def _pad(self, rows: torch.Tensor) -> torch.Tensor:
        heads, head_dim = rows.shape[-2:]
        padded = rows.new_zeros(self.count * self.size, heads, head_dim)
        padded = padded.index_copy(0, self.slots, rows.flatten(0, 1))
        return padded.view(self.count, self.size, heads, head_dim).transpose(1, 2)


def encode_regions(
    tower: Any, pixels: torch.Tensor, regions: torch.Tensor, grid: TileGrid, scale: PixelScale | None = None
) -> VisualTokens:
    """Encodes only the given regions, each attending to the others.

    `tower`: a stock vision tower (`model.model.visual`). `pixels` [B, K, 3, S, S] in 0..255, uint8 or float, of any
    side S (32 in packets). `regions` int [B, K, 3] (level, row, col), on `grid`. All on the tower's device.
    Returns embeddings [B, K, D] in the tower's dtype. Qwen2.5-VL's windowed layers keep their windows of 4×4 tiles: a
    region attends within the window that holds its centre.
    Raises ShapeError where pixels and regions do not match.
    """
    if regions.ndim != 3 or regions.shape[-1] != 3 or pixels.ndim != 5 or pixels.shape[:2] != regions.shape[:2]:
        raise ShapeError(
            f"expected pixels [B, K, 3, S, S] and regions [B, K, 3], got {list(pixels.shape)} and {list(regions.shape)}"
        )
    places = patch_positions(regions)
    tiles = fit_tiles(pixels, int(tower.config.patch_size) * MERGE)
    hidden = _embed_patches(tower, to_patches((scale or PixelScale())(tiles)))
    if hasattr(tower, "pos_embed"):
        hidden = hidden + _position_grid(tower, places, grid).to(hidden.dtype)
    return _run_blocks(tower, hidden, _rotary(tower, places), _windows(tower, regions))


def _run_blocks(
    tower: Any, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], windows: Windows | None
) -> VisualTokens:
    taps = list(getattr(tower, "deepstack_visual_indexes", ()))
    full_layers = getattr(tower, "fullatt_block_indexes", ())
    deepstack = []
    for index, block in enumerate(tower.blocks):
        inside = None if index in full_layers else windows
        hidden = hidden + _attend(block.attn, block.norm1(hidden), rotary, inside)
        hidden = hidden + block.mlp(block.norm2(hidden))
        if index in taps:
            deepstack.append(_merge(tower.deepstack_merger_list[taps.index(index)], hidden))
    return VisualTokens(_merge(tower.merger, hidden), tuple(deepstack))


def _merge(merger: Any, hidden: torch.Tensor) -> torch.Tensor:
    merged: torch.Tensor = merger(hidden.flatten(0, 1))
    return merged.unflatten(0, (hidden.shape[0], -1))


def _embed_patches(tower: Any, patches: torch.Tensor) -> torch.Tensor:
    """The patch convolution as a linear layer. A still frame fills both time steps, so their weights add up."""
    proj = tower.patch_embed.proj
    weight = proj.weight.sum(dim=2).flatten(1)
    return F.linear(patches.to(weight.dtype), weight, proj.bias)


def _position_grid(tower: Any, places: torch.Tensor, grid: TileGrid) -> torch.Tensor:
    """The learned square grid at float patch positions [B, N, 2]: bilinear, corners aligned, edges clamped."""
    side = int(tower.config.num_position_embeddings**0.5)
    last = places.new_tensor([max(grid.rows * MERGE - 1, 1), max(grid.cols * MERGE - 1, 1)])
    source = places * (side - 1) / last
    floor = torch.floor(source)
    part = source - floor
    low = floor.long().clamp(0, side - 1)
    high = (floor.long() + 1).clamp(0, side - 1)
    index = torch.stack([low, high])  # [tap, B, N, axis]
    weight = torch.stack([1 - part, part])
    taps = index[:, None, ..., 0] * side + index[None, ..., 1]
    weights = weight[:, None, ..., 0] * weight[None, ..., 1]
    return (tower.pos_embed(taps) * weights[..., None]).sum(dim=(0, 1))


def _rotary(tower: Any, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines float32 [B, N, 1, head_dim] of the rotation at float patch positions [B, N, 2]."""
    attention = tower.blocks[0].attn
    axis_dim = attention.qkv.in_features // attention.num_heads // 2
    steps = torch.arange(0, axis_dim, 2, device=places.device, dtype=torch.float32)
    angles = (places[..., None] * (1.0 / ROTARY_THETA ** (steps / axis_dim))).flatten(-2)
    angles = torch.cat([angles, angles], dim=-1).unsqueeze(-2)
    return angles.cos(), angles.sin()


def _attend(
    attention: Any, hidden: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor], windows: Windows | None
) -> torch.Tensor:
    batch, patches, _ = hidden.shape
    query, key, value = attention.qkv(hidden).view(batch, patches, 3, attention.num_heads, -1).unbind(2)
    query, key = _rotate(query, *rotary), _rotate(key, *rotary)
    if windows is not None:
        mixed = windows.attend(query, key, value)
    else:
        mixed = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
        mixed = mixed.transpose(1, 2)
    return attention.proj(mixed.reshape(batch, patches, -1))


def _rotate(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    wide = rows.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-second, first], dim=-1) * sin).to(rows.dtype)


def _windows(tower: Any, regions: torch.Tensor) -> Windows | None:
    if not hasattr(tower, "fullatt_block_indexes"):
        return None
    return Windows.over(regions, int(tower.config.window_size) // MERGE // int(tower.config.patch_size))
