from __future__ import annotations

import numpy as np
import pytest

from arr_coc.structure import VOID_STRUCTURE, structure


def test_an_object_and_a_single_tile_are_structure() -> None:
    blob = np.full((34, 60), 0.1, np.float32)
    blob[10:20, 20:40] = 0.7
    spot = np.full((34, 60), 0.1, np.float32)
    spot[7, 8] = 0.9
    assert structure(blob) > 0.8
    assert structure(spot) > 0.8


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for noise in (rng.random((34, 60)), rng.normal(0.5, 0.1, (34, 60)), rng.random((6, 6))):
        assert structure(noise.astype(np.float32)) < VOID_STRUCTURE


def test_flat_maps_and_tiny_grids_have_none() -> None:
    assert structure(np.full((34, 60), 0.5, np.float32)) == 0
    assert structure(np.linspace(0.5, 0.54, 2040, dtype=np.float32).reshape(34, 60)) == 0
    assert structure(np.array([[0.0, 1.0, 0.0]], np.float32)) == 0


def test_a_map_that_only_dips_is_judged_by_its_coherence() -> None:
    dip = np.ones((8, 8), np.float32)
    dip[2:6, 2:6] = 0
    assert structure(dip) > VOID_STRUCTURE
