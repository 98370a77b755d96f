""""""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.texture.covers import (
    QuadTree,
    fixation_cover,
    fixation_point,
    pyramid_means,
    quadtree,
    top_level,
)
from arr_coc.texture.regions import (
    ABSENT,
    exist_on,
    first_tiles,
    level_count,
    level_shape,
    paint,
    region_mean,
    region_scales,
    region_sides,
    shape_grid,
    shape_map,
    shape_pool,
    spread,
    tile_boxes,
    tile_counts,
    token_positions,
)
from arr_coc.types import LEVELS, REGION_SHAPES


def formula(region: list[int], shape: tuple[int, int], fixation: tuple[float, float], e0: float) -> float:
    """The level that cortical magnification asks for at the nearest point of a region."""
    level, *start = region
    offsets = [
        max((first << level) - place, place - min((first + 1) << level, tiles), 0)
        for first, place, tiles in zip(start, fixation, shape, strict=True)
    ]
    return float(np.log2((np.hypot(*offsets) / shape[1] + e0) / e0))


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
    levels = shape_map(fixation_cover((34, 60), 273, (10.5, 40.5))[0], (34, 60))
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


def test_if_nothing_is_relevant_the_middle_is_looked_at() -> None:
    assert fixation_point(np.zeros((8, 12), np.float32)) in {(3.5, 5.5), (3.5, 6.5), (4.5, 5.5), (4.5, 6.5)}
    assert fixation_point(np.ones((20, 30), np.float32), np.zeros((20, 30), np.float32))[0] in (9.5, 10.5)


def test_top_level_takes_at_most_half_the_budget() -> None:
    assert top_level((34, 60), 273) == 2
    assert top_level((34, 60), 269) == 3
    assert top_level((34, 60), 4080) == 0
    assert top_level((6, 6), 16) == 2


def test_top_level_of_budgets_that_pay_no_half_cover() -> None:
    assert top_level((6, 6), 1) == 3
    assert top_level((200, 300), 60) == 5


@given(
    rows=st.integers(1, 20),
    cols=st.integers(1, 30),
    budget=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
def test_covers_are_disjoint_whole_and_nearly_use_the_budget(rows: int, cols: int, budget: int, seed: int) -> None:
    shape = (rows, cols)
    top = top_level(shape, budget)
    if level_count(shape, top) > budget:
        return
    tree = quadtree(shape, top)
    worth = tree.pyramid(torch.from_numpy(np.random.default_rng(seed).random(shape).astype(np.float32) ** 4))
    split = tree.refine(tree.root(), worth, budget)
    leaves = tree.leaves(split)
    assert tree.tokens(split) == len(leaves) <= budget
    assert len(leaves) >= min(budget - 2, rows * cols)
    level, row, col = tree.regions[leaves].T
    counted = np.zeros(shape, int)
    for depth, down, right in zip(level, row, col, strict=True):
        counted[down << depth : (down + 1) << depth, right << depth : (right + 1) << depth] += 1
    assert (counted == 1).all()
    assert int(tile_counts(tree.regions[leaves], shape).sum()) == rows * cols
    order = (row << level) * cols + (col << level)
    assert (np.diff(order) > 0).all()


def test_the_best_tile_becomes_fine_and_the_rest_stays_coarse() -> None:
    relevance = np.zeros((16, 16), np.float32)
    relevance[5, 9] = 1
    tree = quadtree((16, 16), 2)
    split = tree.refine(tree.root(), tree.split_worth(torch.from_numpy(relevance), None, 0), 16 + 6)
    levels = shape_map(tree.regions[tree.leaves(split)], (16, 16))
    assert levels[5, 9] == 0
    assert (levels == 0).sum() == 4
    assert (levels == 1).sum() == 12


def test_refining_keeps_what_was_split_and_follows_the_second_worth() -> None:
    tree = quadtree((16, 16), 2)
    first = np.zeros((16, 16), np.float32)
    first[8, 8] = 1
    second = np.zeros((16, 16), np.float32)
    second[15, 15] = 1
    split = tree.refine(tree.root(), tree.pyramid(torch.from_numpy(first)), 22)
    refinement = tree.refine(split, tree.pyramid(torch.from_numpy(second), largest=True), 28)
    levels = shape_map(tree.regions[tree.leaves(refinement)], (16, 16))
    assert levels[8, 8] == levels[15, 15] == 0
    assert tree.tokens(refinement) == 28
    assert refinement[split].all()


def test_a_region_with_one_child_is_split_for_nothing() -> None:
    tree = quadtree((5, 5), 2)
    levels = shape_map(tree.regions[tree.leaves(tree.refine(tree.root(), tree.pyramid(torch.zeros(5, 5)), 4))], (5, 5))
    assert levels[4, 4] == 0
    assert levels[0, 0] == 2


def test_a_region_that_was_split_before_wins_against_its_equal() -> None:
    relevance = torch.full((4, 8), 0.5)
    relevance[:, 4:] = 0.52
    tree = quadtree((4, 8), 2)

    def finest(previous: torch.Tensor | None) -> list[int]:
        split = tree.refine(tree.root(), tree.split_worth(relevance, previous, 0.25), 5)
        levels = shape_map(tree.regions[tree.leaves(split)], (4, 8))
        return [int(levels[0, 0]), int(levels[0, 7])]

    before = torch.full((4, 8), 2, dtype=torch.int8)
    before[:, :4] = 1
    assert finest(None) == [2, 1]
    assert finest(before) == [1, 2]
    assert finest(torch.full((4, 8), -1, dtype=torch.int8)) == [2, 1]


@given(rows=st.integers(1, 40), cols=st.integers(1, 40), seed=st.integers(0, 1000))
def test_means_and_shapes_of_a_tree_are_those_of_its_regions(rows: int, cols: int, seed: int) -> None:
    tree, relevance = quadtree((rows, cols), 4), np.random.default_rng(seed).random((rows, cols), np.float32)
    np.testing.assert_array_equal(tree.means(torch.from_numpy(relevance)), region_mean(tree.regions, relevance))
    split = tree.refine(tree.root(), tree.pyramid(torch.from_numpy(relevance)), 40)
    np.testing.assert_array_equal(tree.shapes(split), shape_map(tree.regions[tree.leaves(split)], (rows, cols)))
    squares = tree.regions[tree.regions[:, 0] == 2]
    means = pyramid_means(torch.from_numpy(relevance), 2)[-1]
    np.testing.assert_array_equal(means.flatten(), region_mean(squares, relevance))


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (34, 60)])
def test_parents_cover_their_children(shape: tuple[int, int]) -> None:
    tree = QuadTree(shape, 3)
    for index, parent in enumerate(tree.parent.tolist()):
        level, row, col = tree.regions[index].tolist()
        if parent >= 0:
            assert tree.regions[parent].tolist() == [level + 1, row // 2, col // 2]
    children = np.bincount(tree.parent[tree.roots :], minlength=tree.inner)
    assert (children - 1 == tree.cost[: tree.inner]).all()


SHAPES = st.tuples(st.integers(1, 40), st.integers(1, 70))


def test_level_shapes_of_1080p() -> None:
    assert [level_shape((34, 60), level) for level in range(6)] == [(34, 60), (17, 30), (9, 15), (5, 8), (3, 4), (2, 2)]
    assert level_count((34, 60), 2) == 135


@given(shape=SHAPES, seed=st.integers(0, 99))
def test_pooling_keeps_sums_and_maxima(shape: tuple[int, int], seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 100, shape).astype(np.float32)
    sums, largest = shape_pool(values, 1), shape_pool(values, 1, np.maximum)
    assert sums.shape == largest.shape == level_shape(shape, 1)
    assert sums.sum() == values.sum()
    for row in range(sums.shape[0]):
        for col in range(sums.shape[1]):
            cell = values[2 * row : 2 * row + 2, 2 * col : 2 * col + 2]
            assert sums[row, col] == cell.sum()
            assert largest[row, col] == cell.max()


@given(shape=SHAPES, level=st.integers(0, 5))
def test_tiles_are_counted_as_they_are_painted(shape: tuple[int, int], level: int) -> None:
    rows, cols = level_shape(shape, level)
    regions = np.array([(level, row, col) for row in range(rows) for col in range(cols)], np.int32)
    painted = paint(regions, np.arange(len(regions)), shape, ABSENT)
    assert tile_counts(regions, shape).tolist() == np.bincount(painted.ravel()).tolist()


def test_spread_is_cut_off_at_the_edge() -> None:
    coarse = np.array([[1, 2], [3, 4]])
    assert spread(coarse, 1, (3, 3)).tolist() == [[1, 1, 2], [1, 1, 2], [3, 3, 4]]


def test_painting_and_means_of_mixed_levels() -> None:
    regions = np.array([[1, 0, 0], [0, 0, 2], [0, 2, 2]])
    painted = paint(regions, np.array([5.0, 6.0, 7.0], np.float32), (3, 3), -1)
    assert painted.tolist() == [[5, 5, 6], [5, 5, -1], [-1, -1, 7]]
    assert shape_map(regions, (3, 3)).tolist() == [[1, 1, 0], [1, 1, ABSENT], [ABSENT, ABSENT, 0]]
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert region_mean(regions, values).tolist() == [2.0, 2.0, 8.0]


def test_a_region_at_the_edge_means_over_its_own_tiles() -> None:
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    assert region_mean(np.array([[1, 1, 1], [1, 0, 1]]), values).tolist() == [8.0, 3.5]


def any_regions(shape: tuple[int, int], seed: int) -> npt.NDArray[np.int64]:
    """A few regions of every shape on a grid, which may overlap."""
    rng = np.random.default_rng(seed)
    return np.array(
        [
            (code, rng.integers(rows), rng.integers(cols))
            for code in range(len(REGION_SHAPES))
            for rows, cols in [shape_grid(shape, code)] * 2
        ]
    )


def tiles_of(region: list[int], shape: tuple[int, int]) -> tuple[slice, slice]:
    code, row, col = region
    a, b = REGION_SHAPES[code]
    return slice(row << a, min((row + 1) << a, shape[0])), slice(col << b, min((col + 1) << b, shape[1]))


def test_the_first_shapes_are_the_squares_of_the_levels_and_the_last_the_wide_ones_turned() -> None:
    assert REGION_SHAPES[:6] == tuple((level, level) for level in range(6))
    wide, tall = REGION_SHAPES[6:10], REGION_SHAPES[10:]
    assert all(rows < cols for rows, cols in wide)
    assert tall == tuple((cols, rows) for rows, cols in wide)
    assert len(set(REGION_SHAPES)) == len(REGION_SHAPES)
    assert max(map(max, REGION_SHAPES)) < LEVELS


@given(shape=SHAPES, seed=st.integers(0, 99))
def test_regions_of_any_shape_cover_their_tiles(shape: tuple[int, int], seed: int) -> None:
    regions = any_regions(shape, seed)
    values = np.random.default_rng(seed).random(shape).astype(np.float32)
    places = [tiles_of(region, shape) for region in regions.tolist()]
    assert exist_on(regions, shape).all()
    assert tile_counts(regions, shape).tolist() == [values[place].size for place in places]
    np.testing.assert_allclose(region_mean(regions, values), [values[place].mean() for place in places], rtol=1e-5)
    for region, place, box in zip(regions, places, tile_boxes(regions, shape).tolist(), strict=True):
        assert box == [place[0].start, place[1].start, place[0].stop, place[1].stop]
        painted = np.full(shape, ABSENT)
        painted[place] = region[0]
        np.testing.assert_array_equal(shape_map(region[None], shape), painted)


@given(shape=SHAPES, code=st.integers(0, len(REGION_SHAPES) - 1))
def test_all_regions_of_one_shape_are_a_disjoint_cover(shape: tuple[int, int], code: int) -> None:
    rows, cols = shape_grid(shape, code)
    regions = np.array([(code, row, col) for row in range(rows) for col in range(cols)])
    assert exist_on(regions, shape).all()
    assert tile_counts(regions, shape).sum() == shape[0] * shape[1]
    assert (shape_map(regions, shape) == code).all()
    assert not exist_on(np.array([(code, rows, 0), (code, 0, cols), (code, -1, 0)]), shape).any()
    assert not exist_on(np.array([(len(REGION_SHAPES), 0, 0), (-1, 0, 0)]), shape).any()


@given(shape=SHAPES, seed=st.integers(0, 99))
def test_positions_are_the_middles_of_regions_for_tensors_and_arrays(shape: tuple[int, int], seed: int) -> None:
    regions = any_regions(shape, seed)
    tensor = torch.from_numpy(regions)
    scales = np.array([REGION_SHAPES[code] for code in regions[:, 0]])
    assert region_scales(regions).tolist() == region_scales(tensor).tolist() == scales.tolist()
    assert region_sides(regions).tolist() == region_sides(tensor).tolist() == (2**scales).tolist()
    assert first_tiles(regions).tolist() == first_tiles(tensor).tolist() == (regions[:, 1:] << scales).tolist()
    middles = [
        [(row << a) + (2**a - 1) / 2, (col << b) + (2**b - 1) / 2]
        for (_, row, col), (a, b) in zip(regions.tolist(), scales.tolist(), strict=True)
    ]
    assert token_positions(regions).tolist() == middles
    assert token_positions(tensor).dtype == torch.float32
    assert token_positions(tensor).tolist() == middles


@pytest.mark.parametrize("level", range(6))
def test_positions_of_squares_are_what_their_level_says(level: int) -> None:
    places = torch.arange(200).view(-1, 2)
    regions = torch.cat([torch.full((100, 1), level), places], dim=1)
    side = 2.0 ** regions[:, :1]
    assert torch.equal(token_positions(regions), places * side + (side - 1) / 2)
