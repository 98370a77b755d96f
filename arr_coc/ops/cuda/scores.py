"""The allocator's scores and its choice of tiles, on the device."""

from __future__ import annotations

import torch

from arr_coc.errors import BudgetError, ShapeError
from arr_coc.ops.cuda.device import find_device

THREADS = 256


def information_scores(channels: torch.Tensor, entropy: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """What `arr_coc.knowing.InformationScorer` gives, within 1e-6: entropy · sigmoid(weights · channels + bias).

    `channels` float32 [C, gh, gw], `entropy` float32 [gh, gw], `gate` float32 [C + 1]: the weights, then the bias;
    all contiguous and on the current CUDA device. Returns float32 [gh, gw] there, in the order of the current stream.

    Raises ShapeError where a tensor has another shape, dtype or place; BackendMissing without CUDA.
    """
    device = find_device()
    count = channels.shape[0] if channels.ndim == 3 else 0
    shapes = {"channels": (count, *entropy.shape), "entropy": tuple(entropy.shape), "gate": (count + 1,)}
    for (name, shape), tensor in zip(shapes.items(), (channels, entropy, gate), strict=True):
        device.check(tensor, name)
        if tuple(tensor.shape) != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ShapeError(f"{name} is contiguous float32 {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
    scores = device.empty(tuple(entropy.shape), torch.float32)
    tiles = entropy.numel()
    with device.current() as stream:
        pointers = (channels.data_ptr(), entropy.data_ptr(), gate.data_ptr())
        grid = (-(-tiles // THREADS), 1)
        device.kernels.launch("information_scores", grid, stream, *pointers, count, tiles, scores.data_ptr())
    return scores


def best_tiles(relevance: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of the `count` most relevant tiles, of equals the first: int64 [count], ascending, so in token order.

    `relevance` float32 [gh, gw] or [n], contiguous, on the current CUDA device; NaN counts as the least. The result
    lies there too, in the order of the current stream.

    Raises ShapeError where `relevance` is something else or lies elsewhere, BudgetError where there are not so many
    tiles; BackendMissing without CUDA.
    """
    device = find_device()
    device.check(relevance, "relevance")
    if relevance.ndim not in (1, 2) or relevance.dtype != torch.float32 or not relevance.is_contiguous():
        raise ShapeError(
            f"relevance is contiguous float32 [gh, gw] or [n], got {relevance.dtype} {list(relevance.shape)}"
        )
    if not 1 <= count <= relevance.numel():
        raise BudgetError(f"a budget of {count} tokens does not fit {relevance.numel()} tiles")
    chosen = device.empty((count,), torch.int64)
    with device.current() as stream:
        values = (relevance.data_ptr(), relevance.numel(), count, chosen.data_ptr())
        device.kernels.launch("top_k", (1, 1), stream, *values)
    return chosen


def tile_regions(tiles: torch.Tensor, cols: int) -> torch.Tensor:
    """Tiles int64 [K] of a grid that is `cols` wide, as regions int64 [K, 3] (level 0, row, col), where they lie."""
    return torch.stack((torch.zeros_like(tiles), tiles // cols, tiles % cols), dim=1)
