"""Precision on a CPU: bfloat16 if it pays, and the product of one row that suits the processor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from arr_coc.hub import bundled_model_path
from arr_coc.qwen import cpu_precision
from arr_coc.qwen.cpu_precision import LARGE_PARAMETERS, dtype_on_cpu, has_amx, multiplies_bfloat16
from arr_coc.qwen.memory_estimate import ModelSpec

SMALL = ModelSpec.read(bundled_model_path(), "bundled")
LARGE = replace(SMALL, parameters=LARGE_PARAMETERS, checkpoint_bytes=2 * LARGE_PARAMETERS)


@pytest.mark.parametrize(
    ("facts", "multiplies", "expected"),
    [
        (LARGE, True, "bfloat16"),
        (LARGE, False, "float32"),
        (SMALL, True, "float32"),
        (replace(LARGE, checkpoint_bytes=4 * LARGE_PARAMETERS), True, "float32"),
    ],
)
def test_dtype_on_cpu(facts: ModelSpec, multiplies: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_precision, "multiplies_bfloat16", lambda: multiplies)
    assert dtype_on_cpu(facts) == expected


@pytest.fixture
def asked_anew() -> Iterator[None]:
    has_amx.cache_clear()
    yield
    has_amx.cache_clear()


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize(("amx", "avx512"), [(True, True), (False, True), (True, False), (False, False)])
def test_tiles_or_vectors_of_bfloat16_will_do(amx: bool, avx512: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512, raising=False)
    assert multiplies_bfloat16() == (amx or avx512)


@pytest.mark.usefixtures("asked_anew")
def test_a_torch_without_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    assert not multiplies_bfloat16()
