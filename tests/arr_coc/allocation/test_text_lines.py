"""Lines of text are found and shown in wide regions; what is no line is shown as before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.attending import Tensions, allocate_frame
from arr_coc.allocation.frame import RegionSelector, SelectorOptions
from arr_coc.allocation.packets import explain, packet_from
from arr_coc.allocation.strategies import AllocationHistory, AllocationRequest
from arr_coc.allocation.text_lines import LineTree, line_pairs, line_strength, line_tiles, line_tree
from arr_coc.backends.registry import open_store
from arr_coc.texture.covers import QuadTree, top_level
from arr_coc.texture.regions import ABSENT, first_tiles, shape_map, tile_boxes
from arr_coc.texture.store.base import TextureView
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.types import REGION_SHAPES, FramePlanes
from tests.support.selection import chosen
from tests.support.video import stamp

Picture = npt.NDArray[np.uint8]
GRID = (12, 24)
WIDE, TALL = (6, 7, 8, 9), (10, 11, 12, 13)


def print_of(*tops: int, height_px: int = 22) -> Picture:
    """Lines of words at `tops`, from tile 2 to about tile 18 of 24."""
    image = Image.new("RGB", (GRID[1] * 32, GRID[0] * 32), (226, 224, 220))
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(height_px)
    for top in tops:
        pen.text((64, top), "Sixty zippers were quickly picked from the woven jute bag", (40, 40, 60), font)
    return np.asarray(image)


@contextmanager
def view_of(picture: Picture) -> Iterator[TextureView]:
    planes = FramePlanes("rgb", (np.ascontiguousarray(picture),))
    store = open_store(PlaneFormat.of(planes), "cpu")
    store.update(planes, stamp(0))
    with store.lease() as view:
        yield view


def lines_of(picture: Picture) -> npt.NDArray[np.bool_]:
    with view_of(picture) as view:
        return line_tiles(line_strength(view), None)


def test_lines_are_found_in_their_places() -> None:
    along_rows, along_cols = lines_of(print_of(100, 230))
    assert along_rows[3, 4:16].all()
    assert along_rows[7, 4:16].all()
    assert not along_rows[[0, 1, 5, 9, 10, 11]].any()
    assert not along_rows[:, 21:].any()
    assert not along_cols.any()


def test_lines_that_run_down_are_found_too() -> None:
    along_rows, along_cols = lines_of(print_of(100, 230).transpose(1, 0, 2))
    assert along_cols[4:16, 3].all()
    assert not along_rows.any()


@pytest.mark.parametrize("kind", ["noise", "stripes", "edge", "plain", "boxes"])
def test_other_shapes_are_not_taken_for_lines(kind: str) -> None:
    rng = np.random.default_rng(0)
    picture = np.full((GRID[0] * 32, GRID[1] * 32, 3), 200, np.uint8)
    if kind == "noise":
        picture = rng.integers(0, 256, picture.shape, dtype=np.uint8)
    elif kind == "stripes":
        picture[np.arange(len(picture)) // 10 % 2 == 0] = 60
    elif kind == "edge":
        picture[:200] = 40
    elif kind == "boxes":
        for top, left in rng.integers(0, 350, (20, 2)):
            picture[top : top + 40, left * 2 : left * 2 + 60] = rng.integers(0, 256, 3)
    assert lines_of(picture).mean() < 0.03


def test_a_line_that_was_shown_stays_one_a_little_longer() -> None:
    strength = np.zeros((2, 1, 8), np.float32)
    strength[0] = 0.8
    before = line_tiles(strength * 2, None)
    assert before[0].all()
    assert not line_tiles(strength, None).any()
    assert not line_tiles(strength, np.zeros_like(before)).any()
    assert line_tiles(strength, before)[0].all()
    assert not line_tiles(strength * np.float32(0.8), before).any()


def test_two_tiles_are_no_line() -> None:
    strength = np.zeros((2, 3, 8), np.float32)
    strength[0, 1, 2:4] = 2
    strength[1, :, 6] = 2
    rows, cols = line_tiles(strength, None)
    assert not rows.any()
    assert cols[:, 6].all()


# covers

LINES = st.tuples(st.integers(1, 40), st.integers(1, 60), st.integers(0, 500))


def some_lines(rows: int, cols: int, seed: int) -> npt.NDArray[np.bool_]:
    rng = np.random.default_rng(seed)
    lines = rng.random((2, rows, cols)) < rng.choice([0.02, 0.3, 0.9])
    lines[1] &= ~lines[0]
    return lines


@given(LINES, st.integers(1, 300))
def test_covers_with_lines_are_disjoint_whole_and_use_the_budget(size: tuple[int, int, int], budget: int) -> None:
    rows, cols, seed = size
    shape, lines = (rows, cols), some_lines(*size)
    tree = line_tree(top_level(shape, budget), lines)
    if tree.roots > budget:
        return
    rng = np.random.default_rng(seed)
    worth = tree.split_worth(torch.from_numpy(rng.random(shape).astype(np.float32)), None, 0.25)
    inner = tree.parent[: tree.inner]
    assert (worth[inner >= 0] <= worth[inner[inner >= 0]]).all(), "a child's worth exceeds its parent's"
    leaves = tree.leaves(tree.refine(tree.root(), worth, budget))
    assert min(budget - 2, rows * cols) <= len(leaves) <= budget
    counted = np.zeros(shape, int)
    for top, left, bottom, right in tile_boxes(tree.regions[leaves], shape).tolist():
        counted[top:bottom, left:right] += 1
    assert (counted == 1).all()
    first = first_tiles(tree.regions[leaves])
    assert (np.diff(first[:, 0] * cols + first[:, 1]) > 0).all()


@given(st.integers(1, 20), st.integers(1, 30), st.integers(0, 3))
def test_without_lines_the_tree_is_the_quadtree(rows: int, cols: int, top: int) -> None:
    no_lines = np.zeros((2, rows, cols), bool)
    assert isinstance(line_tree(top, no_lines), QuadTree)
    tree, plain = LineTree((rows, cols), top, no_lines), QuadTree((rows, cols), top)
    relevance = torch.from_numpy(np.random.default_rng(rows).random((rows, cols)).astype(np.float32))
    for budget in (plain.roots, plain.roots + 7, rows * cols):
        covers = [
            cover.regions[cover.leaves(cover.refine(cover.root(), cover.split_worth(relevance, None, 0), budget))]
            for cover in (tree, plain)
        ]
        assert covers[0].tolist() == covers[1].tolist()


def test_a_line_takes_fewer_tokens_at_full_detail() -> None:
    """One row of tiles among dull ones: squares also show the rows beside it finely, stripes do not."""
    lines = np.zeros((2, 8, 16), bool)
    lines[0, 3, :] = True
    relevance = torch.from_numpy(lines[0].astype(np.float32))

    def tokens_needed(tree: QuadTree | LineTree) -> int:
        for budget in range(tree.roots, 128):
            split = tree.refine(tree.root(), tree.split_worth(relevance, None, 0), budget)
            if (shape_map(tree.regions[tree.leaves(split)], (8, 16))[3] == 0).all():
                return budget
        raise AssertionError("the line is never shown finely")

    squares, stripes = tokens_needed(QuadTree((8, 16), 2)), tokens_needed(LineTree((8, 16), 2, lines))
    assert stripes <= 0.75 * squares


def request_of(lines: npt.NDArray[np.bool_] | None, tokens: int, **memory: object) -> AllocationRequest:
    relevance = np.random.default_rng(1).random(GRID).astype(np.float32) * np.float32(0.2)
    relevance[5, 2:18] = 0.9
    history = AllocationHistory(**memory)
    return AllocationRequest(torch.from_numpy(relevance), tokens, 0.25, 0, history, lines=lines)


def one_line(row: int = 5) -> npt.NDArray[np.bool_]:
    lines = np.zeros((2, *GRID), bool)
    lines[0, row, 2:18] = True
    return lines


@pytest.mark.parametrize("strategy", ["foveated", "mixed"])
@pytest.mark.parametrize("tokens", [20, 40, 70, 150, 287])
def test_strategies_keep_their_budget_and_overlap_nowhere(strategy: str, tokens: int) -> None:
    staleness = torch.from_numpy(np.random.default_rng(2).random(GRID).astype(np.float32))
    regions = allocate_frame(request_of(one_line(), tokens, staleness=staleness, explore=0.1), strategy).regions.numpy()
    assert tokens - 2 * (strategy == "foveated") <= len(regions) <= tokens
    counted = np.zeros(GRID, int)
    for top, left, bottom, right in tile_boxes(regions, GRID).tolist():
        counted[top:bottom, left:right] += 1
    assert counted.max() == 1
    assert strategy == "mixed" or counted.min() == 1
    first = first_tiles(regions)
    assert (np.diff(first[:, 0] * GRID[1] + first[:, 1]) > 0).all()


def test_mixed_shows_more_of_a_line_for_the_same_tokens() -> None:
    tiles = [
        shape_map(allocate_frame(request_of(lines, 12), "mixed").regions.numpy(), GRID)[5, 2:18] != ABSENT
        for lines in (None, one_line())
    ]
    assert tiles[1].sum() > 1.5 * tiles[0].sum()
    pairs = line_pairs(one_line())
    assert pairs.tolist() == [[6, 5, col] for col in range(1, 9)]


def test_a_line_keeps_its_shapes_while_its_strength_wavers() -> None:
    selector = RegionSelector(SelectorOptions("foveated", Tensions()))
    relevance = request_of(None, 60).relevance
    strength = one_line().astype(np.float32)
    first = chosen(selector, relevance, 60, lines=strength)
    weaker = chosen(selector, relevance + 1e-4, 60, lines=strength * np.float32(0.8))
    assert np.isin(first.levels, WIDE).any()
    assert weaker.jitter_share == 0


# from the picture to the packet


def test_wide_tokens_reach_the_packet_and_the_reasons() -> None:
    with view_of(print_of(100, 230)) as view:
        allocator = StreamAllocator(AllocatorOptions("foveated", 70, wide=True))
        frame = allocator.allocate(view)
        regions = frame.allocation.regions.numpy()
        assert np.isin(regions[:, 0], WIDE).sum() >= 5
        packet = packet_from(view, frame)
        np.testing.assert_array_equal(packet.pixels, view.gather(regions))
        assert [(token.level, token.row, token.col) for token in explain(frame)] == list(map(tuple, regions.tolist()))
        plain = StreamAllocator(AllocatorOptions("foveated", 70)).allocate(view)
    assert plain.allocation.regions[:, 0].max() < 6
    assert {code for code, (rows, cols) in enumerate(REGION_SHAPES) if rows < cols} == set(WIDE)
