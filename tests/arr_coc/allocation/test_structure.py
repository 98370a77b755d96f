"""The guard against maps and pictures without structure."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest
import torch

from arr_coc.allocation.structure import VOID_STRUCTURE, map_structure, picture_structure
from arr_coc.relevance.channels import image_texture

ROWS, COLS = 12, 20


def test_an_object_and_a_single_tile_are_structure() -> None:
    blob = np.full((34, 60), 0.1, np.float32)
    blob[10:20, 20:40] = 0.7
    spot = np.full((34, 60), 0.1, np.float32)
    spot[7, 8] = 0.9
    assert map_structure(torch.from_numpy(blob)) > 0.8
    assert map_structure(torch.from_numpy(spot)) > 0.8


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_none(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for noise in (rng.random((34, 60)), rng.normal(0.5, 0.1, (34, 60)), rng.random((6, 6))):
        assert map_structure(torch.from_numpy(noise.astype(np.float32))) < VOID_STRUCTURE


def test_flat_maps_and_tiny_grids_have_none() -> None:
    assert map_structure(torch.full((34, 60), 0.5)) == 0
    assert map_structure(torch.linspace(0.5, 0.54, 2040).reshape(34, 60)) == 0
    assert map_structure(torch.tensor([[0.0, 1.0, 0.0]])) == 0


def test_a_map_that_only_dips_is_judged_by_its_coherence() -> None:
    dip = torch.ones(8, 8)
    dip[2:6, 2:6] = 0
    assert map_structure(dip) > VOID_STRUCTURE


def looks_of(picture: np.ndarray) -> torch.Tensor:
    """Appearance of a picture uint8 [H, W, 3] that the guard judges: float32 [7, gh, gw]."""
    return image_texture(torch.from_numpy(picture).permute(2, 0, 1)[None]).looks[0]


def drops(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    picture = np.full((ROWS * 32, COLS * 32, 3), 200, np.uint8)
    for _ in range(1500):
        centre = (int(rng.integers(COLS * 32)), int(rng.integers(ROWS * 32)))
        cv2.circle(picture, centre, int(rng.integers(1, 10)), [int(v) for v in rng.integers(0, 256, 3)], -1)
    return picture


def slope(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.arange(COLS * 32), np.arange(ROWS * 32))
    light = 40 + 120 * x / x.max() + rng.uniform(0, 60) * y / y.max()
    return np.clip(light[..., None] + rng.normal(0, 3, (*light.shape, 3)), 0, 255).astype(np.uint8)


def spot(seed: int) -> np.ndarray:
    """Light that falls off from a place as a cone, which no surface of second order fits."""
    rng = np.random.default_rng(seed)
    x, y = np.meshgrid(np.linspace(-1, 1, COLS * 32), np.linspace(-1, 1, ROWS * 32))
    light = 230 - 90 * np.hypot(x - rng.uniform(-0.4, 0.4), y - rng.uniform(-0.4, 0.4))
    return np.clip(light[..., None] + rng.normal(0, 2, (*light.shape, 3)), 0, 255).astype(np.uint8)


def white_noise(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (ROWS * 32, COLS * 32, 3), dtype=np.uint8)


def blank(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.clip(rng.normal(rng.uniform(20, 230), 3, (ROWS * 32, COLS * 32, 3)), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("picture", [white_noise, drops, slope, spot, blank])
def test_voids_have_no_structure(picture: Callable[[int], np.ndarray], seed: int) -> None:
    assert picture_structure(looks_of(picture(seed))) < VOID_STRUCTURE - 0.05


@pytest.mark.parametrize("ground", [slope, blank])
def test_one_small_thing_on_a_void_is_structure(ground: Callable[[int], np.ndarray]) -> None:
    picture = ground(0)
    cv2.circle(picture, (COLS * 20, ROWS * 12), 18, (230, 40, 40), -1)
    assert picture_structure(looks_of(picture)) > VOID_STRUCTURE + 0.05


def test_a_page_of_print_is_structure_though_its_relevance_is_even() -> None:
    rng = np.random.default_rng(0)
    picture = np.full((ROWS * 32, COLS * 32, 3), 240, np.uint8)
    for y in range(40, ROWS * 32 - 40, 14):
        x = 40
        while x < COLS * 32 - 40:
            word = int(rng.integers(12, 60))
            picture[y : y + 8, x : min(x + word, COLS * 32 - 40) : 3] = 30
            x += word + 8
    assert picture_structure(looks_of(picture)) > VOID_STRUCTURE + 0.05


def test_a_picture_of_few_tiles_is_not_judged() -> None:
    assert picture_structure(torch.zeros(7, 6, 6)) == 1


@pytest.mark.parametrize("shape", [(2, 40), (40, 2), (1, 64), (64, 1)])
def test_a_strip_can_be_judged(shape: tuple[int, int]) -> None:
    appearance = torch.from_numpy(np.random.default_rng(0).random((7, *shape), np.float32))
    assert 0 <= picture_structure(appearance) <= 1
