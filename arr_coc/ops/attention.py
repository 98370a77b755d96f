"""Hierarchical attention: coarse keys for all, fine keys for the best cells."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from arr_coc.errors import OptionError, ShapeError
from arr_coc.texture.pictures import check_finite, check_tensor
from arr_coc.texture.regions import level_shape


@dataclass(frozen=True, slots=True)
class Cells:
    """Division of a grid of keys into cells of 2^level × 2^level, cut off at the grid's edge.

    `members` int64 [cells, 4^level], each cell's keys (row by row over the grid), 0 if `valid` bool is False.
    """

    members: torch.Tensor
    valid: torch.Tensor

    @property
    def sizes(self) -> torch.Tensor:
        """Number of keys of each cell: int64 [cells]."""
        return self.valid.sum(dim=1)


def hierarchical_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    grid: tuple[int, int],
    share: float,
    level: int = 1,
    block: int = 1,
) -> torch.Tensor:
    """Softmax attention in which most keys are seen through their cell's mean, and the best cells key by key.

    Keys and values are averaged over cells of 2^level × 2^level, as a mipmap's level is (at the grid's edge over what
    is there). Each `block` consecutive queries choose the `share` of all cells with the largest scores, those of the
    block's queries added up as probabilities; these cells are attended to key by key. Every other cell counts as all of
    its keys would if each equalled their mean: with that logit, plus the logarithm of their number.

    With share = 1 this is full attention; with 0 it is attention to the coarse level alone. Differentiable but for the
    choice. Order queries so that neighbours share a block; each block gathers its fine keys once, so larger blocks cost
    less memory and choose less well. The two levels follow Quadtree Attention (Tang et al., ICLR 2022), with coarse
    cells kept in the same softmax instead of added up level by level.

    Args:
        query: [..., Q, D], floating point; `key` and `value` have its dtype, device and leading axes. All are strided
            as they like.
        key: [..., N, D], N = rows · cols of `grid`, row by row.
        value: [..., N, V].
        grid: Rows and columns of the keys.
        share: Share of the cells that is attended to key by key, in [0, 1].
        level: Edge of a cell as a power of two, 0 or more.
        block: Number of consecutive queries that choose together, 1 or more.

    Returns:
        [..., Q, V].

    Raises:
        ShapeError: Tensors that do not fit together.
        OptionError: A share, level or block out of its range.
        NonFiniteError: NaN or Inf.
    """
    _check(query, key, value, grid)
    if not 0 <= share <= 1:
        raise OptionError(f"share, the part of the cells that is seen key by key, lies in [0, 1], got {share!r}")
    if level < 0 or block < 1:
        raise OptionError(f"level is at least 0 and block at least 1, got {level!r} and {block!r}")
    cells = _cells(grid, level)
    members = cells.members.to(key.device)
    valid = cells.valid.to(key.device)
    scaled = query / math.sqrt(query.shape[-1])
    coarse_key, coarse_value = (_means(fine, members, valid) for fine in (key, value))
    logits = scaled @ coarse_key.transpose(-1, -2) + valid.sum(dim=1).to(query.dtype).log()
    count = math.ceil(share * len(members))
    if count == 0:
        return logits.softmax(dim=-1) @ coarse_value
    blocks = -(-query.shape[-2] // block)
    best_cells = _best_cells(logits.detach(), block, count)
    fine_key, fine_value = (_picked(fine, members, best_cells) for fine in (key, value))
    fine_logits = _blocked(scaled, block) @ fine_key.transpose(-1, -2)
    fine_logits = fine_logits.masked_fill(~valid[best_cells].flatten(-2).unsqueeze(-2), -math.inf)
    is_fine = torch.zeros(*best_cells.shape[:-1], len(members), dtype=torch.bool, device=key.device)
    is_fine = is_fine.scatter(-1, best_cells, True).unsqueeze(-2)
    coarse_logits = _blocked(logits, block).masked_fill(is_fine, -math.inf)
    weights = torch.cat((coarse_logits, fine_logits), dim=-1).softmax(dim=-1)
    coarse, fine = weights.split((len(members), fine_logits.shape[-1]), dim=-1)
    mixed = (coarse.flatten(-3, -2) @ coarse_value).unflatten(-2, (blocks, block)) + fine @ fine_value
    return mixed.flatten(-3, -2)[..., : query.shape[-2], :]


def multiply_adds(
    queries: int, grid: tuple[int, int], dims: tuple[int, int], *, share: float = 1.0, level: int | None = None
) -> int:
    """Count multiplications and additions of one head's attention, as pairs.

    Softmax and averaging, which cost N·D additions, are left out; cells are counted as whole ones.

    Args:
        queries: Their number.
        grid: Rows and columns of the keys.
        dims: Widths of keys and values.
        share: As `hierarchical_attention`.
        level: As `hierarchical_attention`; None for full attention.
    """
    if level is None:
        return queries * grid[0] * grid[1] * sum(dims)
    rows, cols = level_shape(grid, level)
    fine = math.ceil(share * rows * cols) << (2 * level)
    return queries * (rows * cols + fine) * sum(dims)


@lru_cache(maxsize=32)
def _cells(grid: tuple[int, int], level: int) -> Cells:
    rows, cols = level_shape(grid, level)
    side = torch.arange(1 << level)
    row = (torch.arange(rows) << level)[:, None, None, None] + side[:, None]
    col = (torch.arange(cols) << level)[:, None, None] + side
    valid = (row < grid[0]) & (col < grid[1])
    members = torch.where(valid, row * grid[1] + col, 0)
    return Cells(members.reshape(rows * cols, -1), valid.reshape(rows * cols, -1))


def _means(fine: torch.Tensor, members: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return each cell's mean: [..., N, D] → [..., cells, D]."""
    weights = (valid / valid.sum(dim=1, keepdim=True)).to(fine.dtype)
    return (fine[..., members, :] * weights.unsqueeze(-1)).sum(dim=-2)


def _best_cells(logits: torch.Tensor, block: int, count: int) -> torch.Tensor:
    """Return the cells that each block of queries gives most weight to: [..., Q, cells] → int64 [..., blocks,
    count]."""
    weights = _blocked(logits.softmax(dim=-1), block).sum(dim=-2)
    return weights.topk(count, dim=-1, sorted=False).indices


def _blocked(rows: torch.Tensor, block: int) -> torch.Tensor:
    """Return the blocks of consecutive rows, the last filled up with zeros: [..., Q, D] → [..., blocks, block, D]."""
    missing = -rows.shape[-2] % block
    if missing:
        rows = torch.cat((rows, rows.new_zeros(*rows.shape[:-2], missing, rows.shape[-1])), dim=-2)
    return rows.unflatten(-2, (-1, block))


def _picked(fine: torch.Tensor, members: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
    """Return the rows of the chosen cells: [..., N, D] → [..., blocks, count · 4^level, D]."""
    index = members[cells].flatten(-2)
    flat = index.flatten(-2).unsqueeze(-1).expand(*index.shape[:-2], -1, fine.shape[-1])
    return fine.gather(-2, flat).unflatten(-2, index.shape[-2:])


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grid: tuple[int, int]) -> None:
    for tensor, name in ((query, "query"), (key, "key"), (value, "value")):
        check_tensor(tensor, name)
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    tensors = (query, key, value)
    if not all(tensor.ndim >= 2 and tensor.dtype == query.dtype for tensor in tensors) or not query.is_floating_point():
        raise ShapeError(f"attention takes floats [..., rows, width] of one dtype, got {shapes} of {query.dtype}")
    if query.shape[:-2] != key.shape[:-2] or key.shape[:-1] != value.shape[:-1] or query.shape[-1] != key.shape[-1]:
        raise ShapeError(f"query [..., Q, D], key [..., N, D] and value [..., N, V] do not fit together: {shapes}")
    if key.shape[-2] != grid[0] * grid[1] or min(grid) < 1:
        raise ShapeError(f"a grid of {grid} has {grid[0] * grid[1]} keys, got {key.shape[-2]}")
    for tensor, name in zip(tensors, ("query", "key", "value"), strict=True):
        check_finite(tensor, name)
