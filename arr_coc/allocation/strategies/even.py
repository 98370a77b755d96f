"""Regions that no map decides: every n-th tile (`grid`), one level evenly (`uniform`), or drawn tiles (`random`)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.choice import AllocationRequest, RegionChoice
from arr_coc.texture.covers import pyramid_means
from arr_coc.texture.regions import level_count, level_shape, shape_map
from arr_coc.types import LEVELS

_GOLDEN = 0.381966  # 1 − 1/φ: successive rows of the grid are shifted by this share of the step, so it has no stripes


@lru_cache(maxsize=64)
def even_tiles(shape: tuple[int, int], count: int) -> npt.NDArray[np.bool_]:
    """Every n-th tile, n the smallest that gives at most `count` (≥ 1) tiles, the middle one among them: bool [gh,
    gw]."""
    rows, cols = np.indices(shape, sparse=True)
    step = -(-shape[0] * shape[1] // count)
    while True:
        tiles = (cols - shape[1] // 2 + (rows - shape[0] // 2) * round(step * _GOLDEN)) % step == 0
        if tiles.sum() <= count:
            tiles.flags.writeable = False
            return tiles
        step += 1


@lru_cache(maxsize=16)
def even_on(shape: tuple[int, int], count: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(even_tiles(shape, count).copy()).to(device)


def grid(request: AllocationRequest) -> RegionChoice:
    return _of_table(request, "grid")


def uniform(request: AllocationRequest) -> RegionChoice:
    return _of_table(request, "uniform")


def random(request: AllocationRequest) -> RegionChoice:
    return _of_table(request, "random")


def _of_table(request: AllocationRequest, strategy: str) -> RegionChoice:
    """A strategy that looks at no map: its regions are of one level, and the host chooses them once for all frames."""
    seed = request.seed if strategy == "random" else 0
    regions, levels, level = _table_of(strategy, request.shape, request.tokens, seed, request.relevance.device)
    means = pyramid_means(request.relevance, level)[-1][regions[:, 1], regions[:, 2]]
    return RegionChoice(regions, torch.ones_like(means, dtype=torch.bool), means, levels)


@lru_cache(maxsize=16)
def _table_of(
    strategy: str, shape: tuple[int, int], tokens: int, seed: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Regions [K, 3], the map of their shapes, and their level."""
    level = 0
    if strategy == "grid":
        rows, cols = np.nonzero(even_tiles(shape, tokens))
    elif strategy == "random":
        indices = np.sort(np.random.default_rng(seed).permutation(shape[0] * shape[1])[:tokens])
        rows, cols = np.divmod(indices, shape[1])
    else:
        level = max(level for level in range(LEVELS) if level == 0 or level_count(shape, level) >= tokens)
        count = level_count(shape, level)
        samples = min(tokens, count)
        indices = (2 * np.arange(samples) + 1) * count // (2 * samples)
        rows, cols = np.divmod(indices, level_shape(shape, level)[1])
    regions = np.stack([np.full_like(rows, level), rows, cols], axis=1)
    return torch.from_numpy(regions).to(device), torch.from_numpy(shape_map(regions, shape)).to(device), level
