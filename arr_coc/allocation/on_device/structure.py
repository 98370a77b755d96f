"""The guard against pictures without structure, as tensors; see `arr_coc.allocation.attending`."""

from __future__ import annotations

from functools import lru_cache

import torch

from arr_coc.allocation.attending import (
    COLOURS,
    COUNTING,
    EDGES,
    ENTROPY,
    LEAST_EDGES,
    LEAST_RANGES,
    LEAST_STEP,
    LEAST_TILES,
    VOID_RANGE,
    second_order_surfaces,
)


def map_structure(relevance: torch.Tensor) -> torch.Tensor:
    """The distance of a map [gh, gw] from noise, in [0, 1]: the larger of its coherence and its sparsity. A scalar."""
    if relevance.numel() < 4:
        return relevance.new_zeros(())
    found = torch.maximum(_coherence(relevance), _sparsity(relevance)).clamp(0, 1)
    flat = relevance.amax() - relevance.amin() < VOID_RANGE
    return torch.where(flat, torch.zeros_like(found), found)


def picture_structure(appearance: torch.Tensor) -> torch.Tensor:
    """The distance of a picture from a void, in [0, 1]. A scalar.

    `appearance` float32 [7, gh, gw]: red, green, blue, Sobel gx, gy and magnitude, and entropy of each tile.
    """
    rows, cols = appearance.shape[1:]
    if rows * cols < LEAST_TILES:
        return appearance.new_ones(())
    slopes = _surfaces(rows, cols, appearance.device)
    found = appearance.new_zeros(())
    for channel, least in zip(COUNTING, LEAST_RANGES, strict=True):
        values = appearance[channel].flatten()
        rest = (values - slopes @ (values @ slopes)).reshape(rows, cols)
        nothing = (rest.amax() - rest.amin() < least) | _is_light(channel, appearance)
        structure = torch.maximum(_coherence(rest), _sparsity(rest.abs()))
        found = torch.where(nothing, found, torch.maximum(found, structure))
    return found.clamp(max=1)


def _is_light(channel: int, appearance: torch.Tensor) -> torch.Tensor:
    """Whether slopes of light explain how a channel varies."""
    values = appearance[channel]
    if channel in COLOURS and min(values.shape) >= 3:
        around = values[:-2, 1:-1] + values[2:, 1:-1] + values[1:-1, :-2] + values[1:-1, 2:]
        return (values[1:-1, 1:-1] - around / 4).abs().amax() < LEAST_STEP
    if channel == ENTROPY:
        edges = appearance[EDGES]
        return edges.amax() - edges.amin() < LEAST_EDGES
    return torch.zeros((), dtype=torch.bool, device=appearance.device)


@lru_cache(maxsize=8)
def _surfaces(rows: int, cols: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(second_order_surfaces(rows, cols)).to(device)


def _coherence(relevance: torch.Tensor) -> torch.Tensor:
    deviation = relevance - relevance.mean()
    down, across = deviation[1:] * deviation[:-1], deviation[:, 1:] * deviation[:, :-1]
    pairs = down.numel() + across.numel()
    spread = deviation.square().sum()
    share = (down.sum() + across.sum()) / pairs * deviation.numel() / spread
    return torch.where(spread > 0, share, torch.zeros_like(share))


def _sparsity(relevance: torch.Tensor) -> torch.Tensor:
    values, middle = relevance.flatten().sort().values, relevance.numel() // 2
    median = values[middle] if relevance.numel() % 2 else (values[middle - 1] + values[middle]) / 2
    above = (values - median).clamp(min=0)
    norm, root = above.square().sum().sqrt(), relevance.numel() ** 0.5
    sparse = 2 * (root - above.sum() / norm) / (root - 1) - 1
    return torch.where(norm > 0, sparse, torch.zeros_like(sparse))
