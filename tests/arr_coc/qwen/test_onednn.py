"""Linear layers and attention by oneDNN: the same numbers, only if they gain, and not if a gradient is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arr_coc.qwen import onednn
from arr_coc.qwen.onednn import ATTENTION_ROWS, ROWS, OneDnnLinear, attend_all, gains_by_onednn, linear, use_onednn

AMD, INTEL = "processor\t: 0\nvendor_id\t: AuthenticAMD\n", "processor\t: 0\nvendor_id\t: GenuineIntel\n"


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    gains_by_onednn.cache_clear()
    yield
    gains_by_onednn.cache_clear()


def on(processor: str | None, vectors: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor that reports these facts, or none."""
    facts = folder / "cpuinfo"
    facts.unlink(missing_ok=True)
    if processor is not None:
        facts.write_text(processor)
    monkeypatch.setattr(onednn, "CPU_FACTS", facts)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    gains_by_onednn.cache_clear()


def test_it_gains_with_avx512_that_is_not_intels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for processor, vectors, expected in (
        (AMD, "AVX512", True),
        (INTEL, "AVX512", False),
        (AMD, "AVX2", False),
        ("processor\t: 0\nBogoMIPS\t: 50.0\n", "AVX512", False),
        (None, "AVX512", False),
    ):
        on(processor, vectors, tmp_path, monkeypatch)
        assert gains_by_onednn() == expected
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        use_onednn(model)
        assert isinstance(model[0], OneDnnLinear) == expected
    monkeypatch.setattr(onednn, "_product", lambda: None)
    on(AMD, "AVX512", tmp_path, monkeypatch)
    assert not gains_by_onednn()


def test_products_are_those_of_torch_and_only_those_that_gain_are_onednns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(AMD, "AVX512", tmp_path, monkeypatch)
    stock, shapes = onednn._product(), []

    def counted(rows: torch.Tensor, *others: object) -> torch.Tensor:
        shapes.append(tuple(rows.shape))
        return stock(rows, *others)

    monkeypatch.setattr(onednn, "_product", lambda: counted)
    layer, plain = nn.Linear(48, 24), nn.Linear(48, 24, bias=False)
    use_onednn(nn.ModuleList([layer, plain]))
    many, few = torch.randn(1, ROWS, 48), torch.randn(ROWS - 1, 48)
    with torch.inference_mode():
        for module in (layer, plain):
            for rows in (many, few, many[:, ::2]):
                torch.testing.assert_close(module(rows), F.linear(rows, module.weight, module.bias), atol=1e-5, rtol=0)
        linear(many.bfloat16(), layer.weight.bfloat16(), None)
    assert shapes == [many.shape] * 2
    layer(many).sum().backward()
    assert layer.weight.grad is not None
    assert shapes == [many.shape] * 2


def rows_of(count: int, dtype: torch.dtype = torch.float32, *, images: int = 2) -> torch.Tensor:
    return torch.randn(images, count, 3, 16).to(dtype)


def exact(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    heads = (part.double().transpose(1, 2) for part in (query, key, value))
    return F.scaled_dot_product_attention(*heads).transpose(1, 2)


@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize("queries", [3, ATTENTION_ROWS, ATTENTION_ROWS + 70])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
def test_attention(dtype: torch.dtype, most: float, queries: int, gains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    for name in ("gains_by_onednn", "multiplies_bfloat16"):
        monkeypatch.setattr(onednn, name, lambda: gains)
    monkeypatch.setattr(onednn, "kernel_for", lambda *rows: None)
    monkeypatch.setattr(onednn, "QUERIES", 100)
    calls: list[int] = []
    by_onednn = onednn._by_onednn

    def noted(query: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        calls.append(query.shape[1])
        return by_onednn(query, *others)

    monkeypatch.setattr(onednn, "_by_onednn", noted)
    query, key, value = (
        rows_of(queries, dtype),
        rows_of(ATTENTION_ROWS + 70, dtype),
        rows_of(ATTENTION_ROWS + 70, dtype),
    )
    with torch.inference_mode():
        mixed = attend_all(query, key, value)
    assert calls == ([queries] if gains and queries >= ATTENTION_ROWS else [])
    expected = exact(query, key, value)
    assert (mixed.shape, mixed.dtype) == (query.shape, dtype)
    assert float((mixed.double() - expected).norm() / expected.norm()) < most


def test_gradients_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "gains_by_onednn", lambda: True)
    query, key, value = (rows_of(ATTENTION_ROWS, images=1).requires_grad_() for _ in range(3))
    attend_all(query, key, value).sum().backward()
    assert value.grad is not None
    assert float(value.grad.sum()) == pytest.approx(value.numel(), rel=1e-3)
