"""Fixtures that every test may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Keeps torch to one thread: small tensors gain nothing from more, and results stay the same everywhere."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def clips() -> Path:
    """The folder of real clips: `$ARR_COC_CLIPS`, or `../shared/clips` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "clips"
    folder = Path(os.environ.get("ARR_COC_CLIPS", beside))
    if not (folder / "manifest.json").is_file():
        pytest.skip(f"no real clips: {folder} has no manifest.json (set ARR_COC_CLIPS)")
    return folder
