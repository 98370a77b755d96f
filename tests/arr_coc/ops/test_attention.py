"""Attention in two levels of detail, against full attention and against a plain loop."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from arr_coc.errors import NonFiniteError, OptionError, ShapeError
from arr_coc.ops.attention import hierarchical_attention, multiply_adds

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def tensors(grid: tuple[int, int], queries: int, *, lead: tuple[int, ...] = (2,), dtype: Any = torch.float64) -> Three:
    generator = torch.manual_seed(grid[0] * 100 + queries)
    count = grid[0] * grid[1]
    shapes = ((queries, 8), (count, 8), (count, 5))
    query, key, value = (torch.randn(*lead, *shape, dtype=dtype, generator=generator) for shape in shapes)
    return 2 * query, key, value


def by_loop(three: Three, grid: tuple[int, int], share: float, level: int, block: int) -> torch.Tensor:
    """The definition, query by query, for tensors without leading axes."""
    query, key, value = three
    side = 1 << level
    cells = [
        [r * grid[1] + c for r in range(top, min(top + side, grid[0])) for c in range(left, min(left + side, grid[1]))]
        for top in range(0, grid[0], side)
        for left in range(0, grid[1], side)
    ]
    scale = 1 / math.sqrt(query.shape[1])
    coarse = torch.stack([key[cell].mean(dim=0) for cell in cells])
    size = torch.tensor([len(cell) for cell in cells], dtype=key.dtype)
    logits = query @ coarse.T * scale + size.log()
    result = []
    for index, row in enumerate(query):
        mates = logits[index // block * block : (index // block + 1) * block]
        best = set(mates.softmax(1).sum(0).topk(math.ceil(share * len(cells))).indices.tolist())
        weights, values = [], []
        for number, cell in enumerate(cells):
            if number in best:
                weights.extend((row @ key[member] * scale).exp() for member in cell)
                values.extend(value[member] for member in cell)
            else:
                weights.append(logits[index, number].exp())
                values.append(value[cell].mean(dim=0))
        weight = torch.stack(weights)
        result.append(weight @ torch.stack(values) / weight.sum())
    return torch.stack(result)


@pytest.mark.parametrize("grid", [(8, 8), (7, 10), (1, 3)])
@pytest.mark.parametrize(("share", "level", "block"), [(0.25, 1, 1), (0.1, 2, 4), (0.6, 1, 3), (0.0, 1, 1)])
def test_it_is_what_it_says(grid: tuple[int, int], share: float, level: int, block: int) -> None:
    three = tensors(grid, 10, lead=())
    mixed = hierarchical_attention(*three, grid=grid, share=share, level=level, block=block)
    torch.testing.assert_close(mixed, by_loop(three, grid, share, level, block))


@pytest.mark.parametrize("grid", [(8, 8), (5, 9)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_all_cells_fine_is_full_attention(grid: tuple[int, int], dtype: torch.dtype) -> None:
    three = tensors(grid, 7, lead=(2, 3), dtype=dtype)
    for level, block in ((1, 1), (2, 4), (0, 1)):
        mixed = hierarchical_attention(*three, grid=grid, share=1.0, level=level, block=block)
        assert mixed.dtype == dtype
        close = {"atol": 0.02, "rtol": 0.02} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(mixed, F.scaled_dot_product_attention(*three), **close)


def test_level_0_needs_no_fine_cells() -> None:
    three = tensors((5, 9), 7)
    mixed = hierarchical_attention(*three, grid=(5, 9), share=0.0, level=0)
    torch.testing.assert_close(mixed, F.scaled_dot_product_attention(*three))


def test_keys_that_are_equal_within_cells_lose_nothing() -> None:
    query, key, value = tensors((4, 4), 6)
    key, value = (
        rows.unflatten(1, (4, 4)).repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1, 2) for rows in (key, value)
    )
    mixed = hierarchical_attention(query, key, value, grid=(8, 8), share=0.1)
    torch.testing.assert_close(mixed, F.scaled_dot_product_attention(query, key, value))


def test_the_error_falls_with_the_fine_share() -> None:
    three = tensors((16, 16), 40)
    full = F.scaled_dot_product_attention(*three)
    errors = [
        float((hierarchical_attention(*three, grid=(16, 16), share=share) - full).norm() / full.norm())
        for share in (0, 0.1, 0.25, 0.5, 1)
    ]
    assert all(finer < 0.95 * coarser for coarser, finer in itertools.pairwise(errors)), errors


@pytest.mark.parametrize(("share", "block"), [(0.3, 1), (0.3, 4), (0.0, 1)])
def test_gradients_to_all_three(share: float, block: int) -> None:
    three = tuple(tensor.requires_grad_() for tensor in tensors((3, 5), 5, lead=()))
    assert torch.autograd.gradcheck(
        lambda q, k, v: hierarchical_attention(q, k, v, grid=(3, 5), share=share, block=block), three
    )


def test_multiply_adds_count_what_is_multiplied() -> None:
    full = multiply_adds(4096, (64, 64), (64, 64))
    assert full == 2 * 4096 * 4096 * 64
    assert multiply_adds(4096, (64, 64), (64, 64), share=0.0, level=1) == full // 4
    assert multiply_adds(4096, (64, 64), (64, 64), share=0.125, level=2) == full * (1 / 16 + 1 / 8)
    assert multiply_adds(4096, (64, 64), (64, 64), share=1.0, level=2) > full


GOOD: dict[str, Any] = {"grid": (2, 3), "share": 0.5}


@pytest.mark.parametrize(
    ("shapes", "options", "error", "words"),
    [
        (((4, 8), (6, 8), (6, 8)), {"share": 1.5}, OptionError, r"lies in \[0, 1\], got 1.5"),
        (((4, 8), (6, 8), (6, 8)), {"share": float("nan")}, OptionError, "got nan"),
        (((4, 8), (6, 8), (6, 8)), {"level": -1}, OptionError, "got -1 and 1"),
        (((4, 8), (6, 8), (6, 8)), {"block": 0}, OptionError, "got 1 and 0"),
        (((4, 8), (6, 7), (6, 8)), {}, ShapeError, "do not fit together"),
        (((4, 8), (6, 8), (5, 8)), {}, ShapeError, "do not fit together"),
        (((2, 4, 8), (6, 8), (6, 8)), {}, ShapeError, "do not fit together"),
        (((8,), (6, 8), (6, 8)), {}, ShapeError, "floats"),
        (((4, 8), (6, 8), (6, 8)), {"grid": (2, 4)}, ShapeError, r"a grid of \(2, 4\) has 8 keys, got 6"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    shapes: tuple[tuple[int, ...], ...], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    query, key, value = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(error, match=words):
        hierarchical_attention(query, key, value, **{**GOOD, **options})


def test_integers_and_nan_are_refused() -> None:
    rows, nan = torch.zeros(6, 8), torch.full((6, 8), float("nan"))
    with pytest.raises(ShapeError, match=r"of torch\.int64"):
        hierarchical_attention(rows.long(), rows.long(), rows.long(), **GOOD)
    for index, name in enumerate(("query", "key", "value")):
        three = [nan if place == index else rows for place in range(3)]
        with pytest.raises(NonFiniteError, match=f"{name} holds NaN"):
            hierarchical_attention(*three, **GOOD)
