"""Attention windows of Qwen2.5-VL: over all rows that are encoded together, and for a few rows among kept keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from arr_coc.ops.regions import token_positions
from arr_coc.qwen.positions import MERGE

PATCHES = MERGE * MERGE
"""Rows of the encoder that one region takes."""


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
        _, window, sizes = torch.unique(
            _names(regions, side_tiles).flatten().repeat_interleave(PATCHES), return_inverse=True, return_counts=True
        )
        size = int(sizes.max())
        full = _filled(sizes, size)
        slots = window * size + _ranks(window, sizes)
        return cls(slots, len(sizes), size, None if full.all() else full[:, None, None, :])

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention inside each window, over [B, N, heads, head_dim]; the result has that shape."""
        mixed = F.scaled_dot_product_attention(self._pad(query), self._pad(key), self._pad(value), attn_mask=self.keys)
        return mixed.transpose(1, 2).flatten(0, 1)[self.slots].view_as(query)

    def _pad(self, rows: torch.Tensor) -> torch.Tensor:
        return _padded(rows.flatten(0, 1), self.slots, self.count, self.size)


@dataclass(frozen=True, slots=True)
class KeptWindows:
    """The windows of a few regions, filled with the keys of all regions that are shown.

    `queries` int64 [4R]: each query's place among `count * size` padded ones. `rows` int64 [count * S]: which row of
    the kept keys stands in each window, padded to the fullest window's S; `keys` bool [count, 1, 1, S] is False there.
    """

    queries: torch.Tensor
    count: int
    size: int
    rows: torch.Tensor
    keys: torch.Tensor

    @classmethod
    def over(cls, regions: torch.Tensor, side_tiles: int, asking: torch.Tensor, slots: torch.Tensor) -> KeptWindows:
        """For the regions `asking` int64 [R] of all `regions` [K, 3], whose keys lie in `slots` int64 [K].

        All on the CPU, where this waits for no device.
        """
        names = _names(regions[None], side_tiles)[0]
        windows, window, sizes = torch.unique(names[asking], return_inverse=True, return_counts=True)
        size = int(sizes.max())
        places = _patches(window * size + _ranks(window, sizes))
        members = (names[:, None] == windows).nonzero()
        filled = torch.bincount(members[:, 1], minlength=len(windows))
        width = int(filled.max())
        rows = torch.zeros(len(windows) * width, dtype=torch.long)
        rows[members[:, 1] * width + _ranks(members[:, 1], filled)] = slots[members[:, 0]]
        keys = _filled(filled, width).repeat_interleave(PATCHES, dim=1)
        return cls(places, len(windows), size * PATCHES, _patches(rows), keys[:, None, None, :])

    def to(self, device: torch.device) -> KeptWindows:
        """The same on a device."""
        return KeptWindows(self.queries.to(device), self.count, self.size, self.rows.to(device), self.keys.to(device))

    def attend(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attention of `query` [1, 4R, heads, head_dim] over kept `keys` and `values` [rows, heads, head_dim]."""
        asked = _padded(query[0], self.queries, self.count, self.size)
        mixed = F.scaled_dot_product_attention(asked, self._kept(keys), self._kept(values), attn_mask=self.keys)
        return mixed.transpose(1, 2).flatten(0, 1)[self.queries].view_as(query)

    def _kept(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.index_select(0, self.rows).unflatten(0, (self.count, -1)).transpose(1, 2)


def _names(regions: torch.Tensor, side_tiles: int) -> torch.Tensor:
    """A number for each region's window, int64 [B, K]; images share none."""
    cell = torch.floor(token_positions(regions) / side_tiles).long()
    width = int(cell.max()) + 1
    image = torch.arange(regions.shape[0], device=regions.device)[:, None]
    return (image * width + cell[..., 0]) * width + cell[..., 1]


def _ranks(window: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """Each row's place inside its own window."""
    order = torch.argsort(window, stable=True)
    first = torch.cumsum(sizes, 0) - sizes
    rank = torch.empty_like(window)
    rank[order] = torch.arange(len(window), device=window.device) - first[window[order]]
    return rank


def _filled(sizes: torch.Tensor, width: int) -> torch.Tensor:
    return torch.arange(width, device=sizes.device) < sizes[:, None]


def _patches(regions: torch.Tensor) -> torch.Tensor:
    """Row numbers of the four patches of each region number."""
    return (regions[:, None] * PATCHES + torch.arange(PATCHES)).flatten()


def _padded(rows: torch.Tensor, places: torch.Tensor, count: int, size: int) -> torch.Tensor:
    """Rows [N, heads, head_dim] at their places in windows, zeros elsewhere: [count, heads, size, head_dim]."""
    padded = rows.new_zeros(count * size, *rows.shape[1:]).index_copy(0, places, rows)
    return padded.view(count, size, *rows.shape[1:]).transpose(1, 2)
