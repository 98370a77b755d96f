"""The benchmark of memory layouts: every layout gives the same tokens, tiles and luma."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from arr_coc.types import TileGrid
from benchmarks.layouts import LAYOUTS, STEPS, Layouts, measure_layouts

GRID = TileGrid.of(100, 130)


def test_layouts_differ_in_nothing_but_time(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    layouts = Layouts(GRID, tmp_path)
    tiles = np.argwhere(np.ones(GRID.shape, bool)).astype(np.int32, order="C")
    outcomes = []
    for layout in LAYOUTS:
        layouts.step(layout, "update", tiles)
        outcome = []
        for step, name, size in (("gather", "tokens", 3072), ("channels", "luma", 256), ("gl", "packed", 4096)):
            layouts.step(layout, step, tiles)
            outcome.append(layouts.outcome(name, len(tiles) * size))
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert len(set(outcomes[0][0])) > 100
    medians = measure_layouts(layouts, tiles, 1)
    assert {step: set(times) for step, times in medians.items()} == {step: set(LAYOUTS) for step in STEPS}
