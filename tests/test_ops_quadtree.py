from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.ops.quadtree import QuadTree, quadtree, split_worth, top_level
from arr_coc.ops.regions import level_count, level_map, pool_max


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
    worth = tree.pyramid(np.random.default_rng(seed).random(shape).astype(np.float32) ** 4)
    split = tree.refine(tree.root(), worth, budget)
    leaves = tree.leaves(split)
    assert tree.tokens(split) == len(leaves) <= budget
    assert len(leaves) >= min(budget - 2, rows * cols)
    level, row, col = tree.regions[leaves].T
    counted = np.zeros(shape, int)
    for depth, down, right in zip(level, row, col, strict=True):
        counted[down << depth : (down + 1) << depth, right << depth : (right + 1) << depth] += 1
    assert (counted == 1).all()
    assert int(tree.tiles[leaves].sum()) == rows * cols
    order = (row << level) * cols + (col << level)
    assert (np.diff(order) > 0).all()


def test_the_best_tile_becomes_fine_and_the_rest_stays_coarse() -> None:
    relevance = np.zeros((16, 16), np.float32)
    relevance[5, 9] = 1
    tree = quadtree((16, 16), 2)
    split = tree.refine(tree.root(), split_worth(tree, relevance, None, 0), 16 + 6)
    levels = level_map(tree.regions[tree.leaves(split)], (16, 16))
    assert levels[5, 9] == 0
    assert (levels == 0).sum() == 4
    assert (levels == 1).sum() == 12


def test_refining_keeps_what_was_split_and_follows_the_second_worth() -> None:
    tree = quadtree((16, 16), 2)
    first = np.zeros((16, 16), np.float32)
    first[8, 8] = 1
    second = np.zeros((16, 16), np.float32)
    second[15, 15] = 1
    split = tree.refine(tree.root(), tree.pyramid(first), 22)
    both = tree.refine(split, tree.pyramid(second, pool_max), 28)
    levels = level_map(tree.regions[tree.leaves(both)], (16, 16))
    assert levels[8, 8] == levels[15, 15] == 0
    assert tree.tokens(both) == 28
    assert both[split].all()


def test_a_region_with_one_child_is_split_for_nothing() -> None:
    tree = quadtree((5, 5), 2)
    levels = level_map(tree.regions[tree.leaves(tree.refine(tree.root(), tree.pyramid(np.zeros((5, 5))), 4))], (5, 5))
    assert levels[4, 4] == 0
    assert levels[0, 0] == 2


def test_what_was_split_before_wins_against_its_equal() -> None:
    relevance = np.full((4, 8), 0.5, np.float32)
    relevance[:, 4:] = 0.52
    tree = quadtree((4, 8), 2)

    def finest(previous: np.ndarray | None) -> list[int]:
        split = tree.refine(tree.root(), split_worth(tree, relevance, previous, 0.25), 5)
        levels = level_map(tree.regions[tree.leaves(split)], (4, 8))
        return [int(levels[0, 0]), int(levels[0, 7])]

    before = np.full((4, 8), 2, np.int8)
    before[:, :4] = 1
    assert finest(None) == [2, 1]
    assert finest(before) == [1, 2]
    assert finest(np.full((4, 8), -1, np.int8)) == [2, 1]


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (34, 60)])
def test_parents_cover_their_children(shape: tuple[int, int]) -> None:
    tree = QuadTree(shape, 3)
    for index, parent in enumerate(tree.parent.tolist()):
        level, row, col = tree.regions[index].tolist()
        if parent >= 0:
            assert tree.regions[parent].tolist() == [level + 1, row // 2, col // 2]
    children = np.bincount(tree.parent[tree.roots :], minlength=tree.inner)
    assert (children - 1 == tree.cost[: tree.inner]).all()
