"""One frame's choice of regions: what a strategy is given, and what it returns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.texture.regions import ABSENT, region_mean, shape_map

Map = npt.NDArray[np.float32]

Regions = npt.NDArray[np.int64]

STICKINESS = 0.25
"""Bonus of a region that was shown (as finely) before, so that near-equals do not take turns."""


@dataclass(frozen=True, slots=True)
class AllocationHistory:
    """Input of an allocation from earlier frames; all of it optional.

    `previous`: the level map that was shown last, carried along with motion, int8 [gh, gw]. `staleness`: how much each
    tile deserves a look for its own sake, float32 [gh, gw]. `explore`: share of the budget that goes by `staleness`.
    `change`: by how much each tile changed since the frame that was shown before, float32 [gh, gw]; for `evs`.
    """

    previous: torch.Tensor | None = None
    staleness: torch.Tensor | None = None
    explore: float = 0.0
    change: torch.Tensor | None = None

    def exploring_tokens(self, tokens: int) -> int:
        if self.staleness is None:
            return 0
        return round(self.explore * tokens)


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """One frame's worth of choosing: a finite map, a budget in tokens, and the strategy's own settings.

    `entropy` float32 [gh, gw], that of each tile, if known; `lines` bool [2, gh, gw], the tiles of lines of text along
    rows and along columns (`line_tiles`), if wide and tall regions may be chosen. `within` bool [gh, gw]: the tiles
    that the question is about; every region shows some of them. Maps lie on one device; `lines`, `within` and the
    strategy `fixation` are of host memory.
    """

    relevance: torch.Tensor
    tokens: int
    coverage: float
    seed: int
    memory: AllocationHistory
    entropy: torch.Tensor | None = None
    lines: npt.NDArray[np.bool_] | None = None
    within: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        rows, cols = self.relevance.shape
        return rows, cols


@dataclass(frozen=True, slots=True)
class RegionChoice:
    """The regions of one frame, on the device of its relevance.

    `regions` int64 [K, 3] in token order, `relevance` float32 [K], mean over a region's tiles; `levels` int8 [gh, gw],
    the shape of the region that shows each tile, −1 if none does. A device does not say how many regions there are:
    K is then what was planned, and `mask` bool [K] is False for the padding behind them.
    """

    regions: torch.Tensor
    mask: torch.Tensor
    relevance: torch.Tensor
    levels: torch.Tensor

    def or_else(self, other: RegionChoice, condition: torch.Tensor) -> RegionChoice:
        """This choice, or `other` if `condition` (a scalar bool) is False."""
        count = max(len(self.mask), len(other.mask))
        choice = self._padded(count)
        fallback = other._padded(count)
        return RegionChoice(
            torch.where(condition, choice.regions, fallback.regions),
            torch.where(condition, choice.mask, fallback.mask),
            torch.where(condition, choice.relevance, fallback.relevance),
            torch.where(condition, choice.levels, fallback.levels),
        )

    def _padded(self, count: int) -> RegionChoice:
        padding = count - len(self.mask)
        return RegionChoice(
            torch.cat([self.regions, self.regions.new_zeros(padding, 3)]),
            torch.cat([self.mask, self.mask.new_zeros(padding)]),
            torch.cat([self.relevance, self.relevance.new_zeros(padding)]),
            self.levels,
        )


def first_true(mask: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the True entries of `mask` bool [N], in order; on a device, which is not asked how many there are,
    always `count` of them: others behind."""
    if mask.is_cpu:
        return mask.nonzero()[:, 0]
    return (~mask).to(torch.uint8).argsort(stable=True)[:count]


def of_tiles(request: AllocationRequest, tiles: torch.Tensor, count: int) -> RegionChoice:
    """The `count` tiles of the mask `tiles` bool [gh, gw], in token order."""
    flat = tiles.flatten()
    cols = request.shape[1]
    index = first_true(flat, count)
    regions = torch.stack([torch.zeros_like(index), index // cols, index % cols], dim=1)
    levels = torch.where(tiles, 0, ABSENT).to(torch.int8)
    return RegionChoice(regions, flat[index], request.relevance.flatten()[index], levels)


def of_regions(request: AllocationRequest, regions: Regions) -> RegionChoice:
    """Regions [K, 3] in token order that the host chose."""
    return RegionChoice(
        torch.from_numpy(regions),
        torch.ones(len(regions), dtype=torch.bool),
        torch.from_numpy(region_mean(regions, request.relevance.numpy())),
        torch.from_numpy(shape_map(regions, request.shape)),
    )


def best_tiles(worth: torch.Tensor, count: int, selection: torch.Tensor) -> torch.Tensor:
    """`selection` with the `count` tiles of highest worth (of equals, the first) beside."""
    order = torch.where(selection, math.inf, -worth).flatten().argsort(stable=True)[:count]
    return selection.flatten().scatter(0, order, True).reshape(selection.shape)
