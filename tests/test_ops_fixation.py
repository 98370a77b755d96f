from __future__ import annotations

import numpy as np
import pytest

from arr_coc.ops.fixation import fixation_cover, fixation_point
from arr_coc.ops.regions import level_map


def formula(region: list[int], shape: tuple[int, int], fixation: tuple[float, float], e0: float) -> float:
    """The level that cortical magnification asks for at the nearest point of a region."""
    level, *start = region
    away = [
        max((first << level) - place, place - min((first + 1) << level, tiles), 0)
        for first, place, tiles in zip(start, fixation, shape, strict=True)
    ]
    return float(np.log2((np.hypot(*away) / shape[1] + e0) / e0))


@pytest.mark.parametrize("budget", [140, 273, 600])
def test_levels_follow_cortical_magnification(budget: int) -> None:
    shape, fixation = (32, 64), (10.5, 40.5)
    regions, e0 = fixation_cover(shape, budget, fixation)
    assert budget - 2 <= len(regions) <= budget
    coarsest = int(regions[:, 0].max())
    for level, row, col in regions.tolist():
        assert level == 0 or formula([level, row, col], shape, fixation, e0) >= level - 1e-4
        if level < coarsest:
            assert formula([level + 1, row // 2, col // 2], shape, fixation, e0) <= level + 1 + 1e-4


def test_detail_falls_off_with_distance() -> None:
    levels = level_map(fixation_cover((34, 60), 273, (10.5, 40.5))[0], (34, 60))
    assert levels[10, 40] == 0
    assert (np.diff(levels[10, 40:]) >= 0).all()
    assert (np.diff(levels[10, :41]) <= 0).all()


def test_a_larger_budget_means_a_larger_e0() -> None:
    e0 = [fixation_cover((34, 60), budget, (17.0, 30.0))[1] for budget in (150, 273, 500)]
    assert 0 < e0[0] < e0[1] < e0[2]
    assert fixation_cover((34, 60), 135, (17.0, 30.0))[1] > 0
    assert fixation_cover((2, 2), 1, (0.5, 0.5))[1] == 0


def test_a_fixation_is_the_middle_of_the_only_relevant_tile() -> None:
    relevance = np.zeros((4, 5), np.float32)
    relevance[2, 3] = 1
    assert fixation_point(relevance) == (2.5, 3.5)
    assert fixation_point(relevance, np.ones_like(relevance)) == (2.5, 3.5)


def test_a_fixation_goes_where_most_relevance_lies_not_to_one_tile() -> None:
    relevance = np.zeros((20, 30), np.float32)
    relevance[3, 25] = 0.6
    relevance[10:14, 5:10] = 0.5
    row, col = fixation_point(relevance)
    assert 10 <= row <= 14
    assert 5 <= col <= 10


def test_a_fixation_is_never_on_what_holds_nothing() -> None:
    relevance, entropy = np.full((20, 30), 0.1, np.float32), np.zeros((20, 30), np.float32)
    relevance[1, 1], entropy[12:15, 18:24] = 1.0, 0.3
    row, col = fixation_point(relevance, entropy)
    assert entropy[int(row), int(col)] > 0


def test_where_nothing_is_relevant_the_middle_is_looked_at() -> None:
    assert fixation_point(np.zeros((8, 12), np.float32)) in {(3.5, 5.5), (3.5, 6.5), (4.5, 5.5), (4.5, 6.5)}
    assert fixation_point(np.ones((20, 30), np.float32), np.zeros((20, 30), np.float32))[0] in (9.5, 10.5)
