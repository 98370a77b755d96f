"""Fixtures of the tests of models."""

from __future__ import annotations

import pytest

from arr_coc.qwen.small_weights import layers
from tests.support.stores import require


@pytest.fixture(params=["kernel", "torch"])
def multiplier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What multiplies small weights: the compiled kernel, or torch."""
    if request.param == "kernel":
        require("compiled")
    else:
        monkeypatch.setattr(layers, "kernel_or_none", lambda: None)
    return str(request.param)
