"""Attention by the compiled kernel: as close to exact as bfloat16 allows, for any number of rows."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from arr_coc.qwen import compiled_attention, onednn
from arr_coc.qwen.compiled_attention import KEYS, attend_by_tiles, kernel_for, kernel_or_none
from arr_coc.qwen.cpu_precision import has_amx
from tests.support.stores import require

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture
def kernel() -> ctypes.CDLL:
    if not has_amx():
        pytest.skip("the processor has no AMX")
    require("compiled")
    kernel = kernel_or_none()
    assert kernel is not None
    return kernel


def rows_of(queries: int, keys: int, size: int, *, images: int = 1, scale: float = 1.0) -> Rows:
    """Queries, keys and values of 3 heads, slices of one tensor as the vision tower has them."""
    torch.manual_seed(0)
    mixed = (scale * torch.randn(images, max(queries, keys), 3, 3, size)).bfloat16()
    query, key, value = mixed.unbind(2)
    return query[:, :queries], key[:, :keys], value[:, :keys]


def exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    heads = (part.double().transpose(1, 2) for part in (query, key, value))
    return F.scaled_dot_product_attention(*heads).transpose(1, 2)


def off_by(mixed: torch.Tensor, expected: torch.Tensor) -> float:
    assert (mixed.shape, mixed.dtype) == (expected.shape, torch.bfloat16)
    return float((mixed.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("size", [64, 72, 80, 128, 8, 33])
@pytest.mark.parametrize(
    ("queries", "keys"), [(1, 1), (1, 300), (16, 31), (32, 32), (33, 257), (70, 256), (300, 1), (45, 1100)]
)
def test_any_number_of_rows(kernel: ctypes.CDLL, queries: int, keys: int, size: int) -> None:
    rows = rows_of(queries, keys, size, images=2)
    assert off_by(attend_by_tiles(kernel, *rows), exact(*rows)) < 0.003


@pytest.mark.parametrize("scale", [0.01, 6.0, 40.0])
def test_scores_of_any_size(kernel: ctypes.CDLL, scale: float) -> None:
    rows = rows_of(50, 600, 64, scale=scale)
    assert off_by(attend_by_tiles(kernel, *rows), exact(*rows)) < 0.003


def test_one_huge_score_after_many_keys(kernel: ctypes.CDLL) -> None:
    """The largest score comes last for some queries and first for others; all others are negative."""
    query, key, value = (part.clone() for part in rows_of(64, 700, 64))
    query[:] = query.abs()
    key[:] = -key.abs()
    key[:, 699], query[:, ::2] = 50, 100 * query[:, ::2]
    mixed = attend_by_tiles(kernel, query, key, value)
    assert off_by(mixed, exact(query, key, value)) < 0.003
    assert torch.equal(mixed[:, ::2], value[:, 699:].expand(-1, 32, -1, -1))
    expected = exact(query, key[:, :1], value[:, :1])
    assert off_by(attend_by_tiles(kernel, query, key[:, :1], value[:, :1]), expected) == 0


def test_rows_in_any_layout(kernel: ctypes.CDLL) -> None:
    query, key, value = rows_of(40, 90, 64, images=2)
    expected = attend_by_tiles(kernel, *(part.contiguous() for part in (query, key, value)))
    heads_first = key.transpose(1, 2).contiguous().transpose(1, 2)
    backwards = value.transpose(1, 3).contiguous().transpose(1, 3)
    assert torch.equal(attend_by_tiles(kernel, query, heads_first, backwards), expected)


def test_rows_without_a_number_stay_so(kernel: ctypes.CDLL) -> None:
    query, key, value = (part.clone() for part in rows_of(40, 90, 64))
    query[0, 7, 1, 3] = float("nan")
    mixed = attend_by_tiles(kernel, query, key, value)
    assert mixed[0, 7, 1].isnan().all()
    assert mixed.isnan().sum() == 64
    key[0, 80, 0, 0] = float("inf")
    assert attend_by_tiles(kernel, query, key, value)[0, :, 0].isnan().any()


def test_threads_change_nothing(kernel: ctypes.CDLL) -> None:
    rows, threads = rows_of(130, 300, 64), torch.get_num_threads()
    torch.set_num_threads(1)
    by_one = attend_by_tiles(kernel, *rows)
    torch.set_num_threads(2)
    by_two = attend_by_tiles(kernel, *rows)
    torch.set_num_threads(threads)
    assert torch.equal(by_one, by_two)


def test_only_rows_that_gain_are_the_kernels(kernel: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(4, KEYS, 64)
    with torch.inference_mode():
        assert kernel_for(*rows) is kernel
        assert kernel_for(*rows_of(4, KEYS - 1, 64)) is None
        assert kernel_for(*(part.float() for part in rows)) is None
        assert kernel_for(*(part.to("meta") for part in rows)) is None
        assert torch.equal(onednn.attend_all(*rows), attend_by_tiles(kernel, *rows))
    assert kernel_for(*rows) is None
    monkeypatch.setenv("ARR_COC_KERNEL", "reference")
    with torch.inference_mode():
        assert kernel_for(*rows) is None


def test_other_processors_do_not_ask_for_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_attention, "kernel_path", lambda: Path("missing"))
    monkeypatch.setattr(compiled_attention, "has_amx", lambda: False)
    monkeypatch.setenv("ARR_COC_KERNEL", "compiled")
    assert kernel_or_none() is None
