"""The most relevant tiles (`topk`), and beside them a share that is spread evenly (`mixed`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from arr_coc.allocation.choice import (
    STICKINESS,
    AllocationRequest,
    RegionChoice,
    Regions,
    best_tiles,
    of_regions,
    of_tiles,
)
from arr_coc.allocation.strategies.even import even_on, even_tiles
from arr_coc.allocation.text_lines import line_pairs
from arr_coc.texture.covers import DULL
from arr_coc.texture.regions import first_tiles, paint, region_mean, region_pool, region_sides, shape_map


def topk(request: AllocationRequest) -> RegionChoice:
    empty = torch.zeros_like(request.relevance, dtype=torch.bool)
    return of_tiles(request, _most_worth(request, empty, 0), request.tokens)


def mixed(request: AllocationRequest) -> RegionChoice:
    covering = round(request.coverage * request.tokens)
    if covering:
        tiles = even_tiles(request.shape, covering)
    else:
        tiles = np.zeros(request.shape, bool)
    if request.lines is None:
        pairs = _NO_PAIRS
    else:
        pairs = line_pairs(request.lines)
    if len(pairs):
        return of_regions(request, _tiles_and_pairs(request, tiles, pairs))
    if not covering:
        return topk(request)
    device_tiles = even_on(request.shape, covering, request.relevance.device)
    return of_tiles(request, _most_worth(request, device_tiles, int(tiles.sum())), request.tokens)


_NO_PAIRS = np.zeros((0, 3), np.int64)


def _tiles_and_pairs(request: AllocationRequest, tiles: npt.NDArray[np.bool_], pairs: Regions) -> Regions:
    """The tiles of the mask `tiles` and those of most worth; of lines, `pairs` of tiles in one token each."""
    single = np.argwhere(paint(pairs, np.zeros(len(pairs), bool), request.shape, True))
    regions = np.concatenate([pairs, np.insert(single, 0, 0, axis=1)])
    matter = region_mean(regions, request.relevance.numpy() + np.float32(DULL))
    if request.memory.previous is not None:
        same_shape = request.memory.previous.numpy() == shape_map(regions, request.shape)
        is_stable = region_pool(regions, same_shape.astype(np.int32), np.minimum) > 0
        matter = np.where(is_stable, matter * np.float32(1 + STICKINESS), matter)
    # worth of two tiles of a line in one token, of one tile: 24 px text is read at 97 % there (benchmarks/README.md).
    of_pairs = matter[: len(pairs)] * np.float32(1.5)
    worth = np.concatenate(
        [of_pairs, matter[len(pairs) :], 2 * matter[: len(pairs)] - of_pairs]
    )  # the last: of a split
    selection = np.concatenate([region_pool(regions, tiles.astype(np.int32)) > 0, np.zeros(len(pairs), bool)])
    remaining_tokens = max(0, request.tokens - int(selection.sum()))
    exploring = min(request.memory.exploring_tokens(request.tokens), remaining_tokens)
    selection = best_tiles(torch.from_numpy(worth), remaining_tokens - exploring, torch.from_numpy(selection)).numpy()
    split = selection[len(regions) :]
    selection = selection[: len(regions)]
    if exploring and request.memory.staleness is not None:
        stale = torch.from_numpy(region_pool(regions, request.memory.staleness.numpy(), np.maximum))
        selection = best_tiles(stale, exploring, torch.from_numpy(selection)).numpy()
    matter[: len(pairs)][split] = np.inf
    extra = int(split.sum()) + max(0, request.tokens - int(selection.sum()) - int(split.sum()))
    return _in_token_order(_pairs_split(regions[selection], matter[selection], extra), request.shape)


def _pairs_split(regions: Regions, worth: npt.NDArray[np.float32], count: int) -> Regions:
    """So many pairs, the best first, as two tiles each."""
    pairs = np.flatnonzero(regions[:, 0] > 0)
    best = pairs[np.argsort(-worth[pairs], kind="stable")][:count]
    if not len(best):
        return regions
    first = first_tiles(regions[best])
    sides = region_sides(regions[best])
    tiles = np.concatenate([first, first + sides - 1])
    split = np.concatenate([np.zeros((len(tiles), 1), np.int64), tiles], axis=1)
    return np.concatenate([np.delete(regions, best, axis=0), split])


def _in_token_order(regions: Regions, shape: tuple[int, int]) -> Regions:
    first = first_tiles(regions)
    return regions[np.argsort(first[:, 0] * shape[1] + first[:, 1], kind="stable")]


def _most_worth(request: AllocationRequest, selection: torch.Tensor, spent_tokens: int) -> torch.Tensor:
    """Fill `selection` up to the budget less `spent_tokens`: by relevance, then the exploring share by neglect."""
    memory = request.memory
    remaining_tokens = request.tokens - spent_tokens
    exploring = min(memory.exploring_tokens(request.tokens), remaining_tokens)
    worth = request.relevance
    if memory.previous is not None:
        matter = worth + DULL
        worth = torch.where(memory.previous == 0, matter * (1 + STICKINESS), matter)
    selection = best_tiles(worth, remaining_tokens - exploring, selection)
    if exploring and memory.staleness is not None:
        selection = best_tiles(memory.staleness, exploring, selection)
    return selection
