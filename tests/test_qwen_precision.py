"""Large models run in bfloat16 where the processor multiplies it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from arr_coc.qwen import precision
from arr_coc.qwen.footprint import ModelFacts
from arr_coc.qwen.hub import bundled_model_path
from arr_coc.qwen.precision import LARGE_PARAMETERS, dtype_on_cpu, multiplies_bfloat16

SMALL = ModelFacts.read(bundled_model_path(), "bundled")
LARGE = replace(SMALL, parameters=LARGE_PARAMETERS, checkpoint_bytes=2 * LARGE_PARAMETERS)


@pytest.mark.parametrize(
    ("facts", "amx", "expected"),
    [
        (LARGE, True, "bfloat16"),
        (LARGE, False, "float32"),
        (SMALL, True, "float32"),
        (replace(LARGE, checkpoint_bytes=4 * LARGE_PARAMETERS), True, "float32"),
    ],
)
def test_dtype_on_cpu(facts: ModelFacts, amx: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda: amx)
    assert dtype_on_cpu(facts) == expected


def test_a_torch_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert not multiplies_bfloat16()
