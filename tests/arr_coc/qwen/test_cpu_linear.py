"""Linear layers by oneDNN: the same numbers, only where they gain, and not where a gradient is wanted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from arr_coc.qwen import cpu_linear
from arr_coc.qwen.cpu_linear import ROWS, OneDnnLinear, gains_by_onednn, linear, use_onednn

AMD, INTEL = "processor\t: 0\nvendor_id\t: AuthenticAMD\n", "processor\t: 0\nvendor_id\t: GenuineIntel\n"


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    gains_by_onednn.cache_clear()
    yield
    gains_by_onednn.cache_clear()


def on(processor: str | None, vectors: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor that tells this of itself, or nothing."""
    facts = folder / "cpuinfo"
    facts.unlink(missing_ok=True)
    if processor is not None:
        facts.write_text(processor)
    monkeypatch.setattr(cpu_linear, "CPU_FACTS", facts)
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
    monkeypatch.setattr(cpu_linear, "_product", lambda: None)
    on(AMD, "AVX512", tmp_path, monkeypatch)
    assert not gains_by_onednn()


def test_products_are_those_of_torch_and_only_those_that_gain_are_onednns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on(AMD, "AVX512", tmp_path, monkeypatch)
    stock, shapes = cpu_linear._product(), []

    def counted(rows: torch.Tensor, *others: object) -> torch.Tensor:
        shapes.append(tuple(rows.shape))
        return stock(rows, *others)

    monkeypatch.setattr(cpu_linear, "_product", lambda: counted)
    layer, plain = nn.Linear(48, 24), nn.Linear(48, 24, bias=False)
    use_onednn(nn.ModuleList([layer, plain]))
    many, few = torch.randn(1, ROWS, 48), torch.randn(ROWS - 1, 48)
    with torch.inference_mode():
        for made in (layer, plain):
            for rows in (many, few, many[:, ::2]):
                torch.testing.assert_close(made(rows), F.linear(rows, made.weight, made.bias), atol=1e-5, rtol=0)
        linear(many.bfloat16(), layer.weight.bfloat16(), None)
    assert shapes == [many.shape] * 2
    layer(many).sum().backward()
    assert layer.weight.grad is not None
    assert shapes == [many.shape] * 2
