"""Overviews in allocations and packets, what a glance teaches, and when one is due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.glance import LEAST_REGIONS, LEAST_S, UNKNOWN_SHARE, GlanceOptions, GlancePolicy
from arr_coc.allocation.packets import frame_packet_from, overview_packet, packet_from
from arr_coc.errors import BudgetError, OptionError
from arr_coc.relevance.contradiction import GLANCE_TRUST
from arr_coc.texture.regions import level_count, overview_regions, tile_counts
from arr_coc.types import NS_PER_S, Feedback, QueryEmbedding
from tests.support.motion import pan
from tests.support.video import PictureStream, scenery

ROWS, COLS = 12, 20
TILES = ROWS * COLS
OPTIONS = AllocatorOptions(budget=64, explore=0.0, glance=GlanceOptions(keep=True))
DROPPED = replace(OPTIONS, glance=GlanceOptions(keep=False))
QUESTION = QueryEmbedding("Is it red?", np.ones((3, 8), np.float32), "some model")
OTHER = QueryEmbedding("Is it round?", np.zeros((3, 8), np.float32), "some model")


def looked_at(frame: FrameAllocation, row: int, col: int) -> Feedback:
    """A glance that saw one tile's region, and nothing else."""
    regions = overview_regions((ROWS, COLS), frame.glance_tokens).astype(np.int32)
    is_target = (regions[:, 1] == row >> regions[:, 0]) & (regions[:, 2] == col >> regions[:, 0])
    attention = np.where(is_target, 1.0, 0.02).astype(np.float32)
    return Feedback(frame.stamp, regions, attention, np.zeros(len(regions), np.float32))


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (5, 7), (12, 20), (34, 60), (100, 200)])
@pytest.mark.parametrize("tokens", [1, 4, 16, 64, 400])
def test_an_overview_covers_every_tile_once_and_as_finely_as_its_tokens_allow(
    shape: tuple[int, int], tokens: int
) -> None:
    regions = overview_regions(shape, tokens)
    if not len(regions):
        assert level_count(shape, 5) > tokens
        return
    assert len(regions) <= tokens
    assert tile_counts(regions, shape).sum() == shape[0] * shape[1]
    level = int(regions[0, 0])
    assert level == 0 or level_count(shape, level - 1) > tokens


def test_the_overview_comes_first_and_is_paid_for() -> None:
    view = PictureStream().show(scenery(ROWS, COLS))
    frame = StreamAllocator(OPTIONS).allocate(view)
    assert frame.overview == frame.glance_tokens == 15
    assert frame.allocation.tokens == 64
    assert frame.strategy == "topk"
    packet = packet_from(view, frame)
    assert packet.overview == 15
    glance = overview_packet(view, frame.glance_tokens)
    assert glance.is_glance
    assert not packet.is_glance
    assert (packet.overview_part().pixels == glance.pixels).all()
    assert (packet.overview_part().regions == glance.regions).all()
    assert (packet.chosen_part().regions[:, 0] == 0).all()
    assert (frame.levels == 0).sum() == 64 - 15, "chosen over overview"
    assert set(np.unique(frame.levels)) == {0, 2}
    assert len(frame_packet_from(view, frame).regions) == 64 - 15


def test_a_dropped_overview_is_paid_for_where_a_glance_was_made() -> None:
    view = PictureStream().show(scenery(ROWS, COLS))
    allocator = StreamAllocator(DROPPED)
    frame = allocator.allocate(view)
    assert (frame.overview, frame.glance_tokens, frame.allocation.tokens) == (0, 15, 64)
    allocator.on_glance()
    allocator.apply_glance(looked_at(frame, 5, 7))
    assert allocator.reallocate(view).allocation.tokens == 64 - 15


def test_frames_without_glances_are_as_they_were() -> None:
    view = PictureStream().show(scenery(ROWS, COLS))
    frame = StreamAllocator(replace(OPTIONS, glance=None)).allocate(view)
    assert (frame.overview, frame.glance_tokens) == (0, 0)
    assert packet_from(view, frame).overview == 0


@pytest.mark.parametrize("budget", [TILES, "100%", 1])
def test_there_is_no_overview_if_all_is_shown_or_hardly_anything(budget: Any) -> None:
    allocator = StreamAllocator(replace(OPTIONS, budget=budget))
    frame = allocator.allocate(PictureStream().show(scenery(ROWS, COLS)))
    assert frame.glance_tokens == frame.overview == 0
    assert not allocator.glance_due(0)


def test_a_glance_draws_the_tokens_at_once() -> None:
    view, allocator = PictureStream().show(scenery(ROWS, COLS)), StreamAllocator(OPTIONS)
    before = allocator.allocate(view)
    sharp_tiles = {}
    for row, col in ((0, 0), (8, 16)):
        allocator.set_query(QUESTION if row else OTHER)
        allocator.on_glance()
        allocator.apply_glance(looked_at(before, row, col))
        frame = allocator.reallocate(view)
        sharp_tiles[row, col] = frame.levels == 0
        target = sharp_tiles[row, col][row : row + 4, col : col + 4]
        assert target.mean() > 2 * sharp_tiles[row, col].mean()
        assert frame.scores[2].max() > 0
        assert frame.stamp == before.stamp
    overlap = (sharp_tiles[0, 0] & sharp_tiles[8, 16]).sum() / (sharp_tiles[0, 0] | sharp_tiles[8, 16]).sum()
    assert overlap < 0.8


def test_the_same_glance_gives_the_same_frame_again() -> None:
    frames = []
    for _ in range(2):
        view, allocator = PictureStream().show(scenery(ROWS, COLS)), StreamAllocator(OPTIONS)
        first = allocator.allocate(view)
        allocator.on_glance()
        allocator.apply_glance(looked_at(first, 4, 4))
        frames.append(allocator.reallocate(view))
    assert frames[0].allocation.regions.equal(frames[1].allocation.regions)
    assert frames[0].relevance.equal(frames[1].relevance)


def test_reallocating_counts_a_frame_once() -> None:
    """Later frames are as if the frame had been allocated once, with the knowledge that it was reallocated with."""
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    view = stream.show(scenery(ROWS, COLS))
    first = allocator.allocate(view)
    second = allocator.reallocate(view)
    assert second.allocation.regions.equal(first.allocation.regions)
    assert second.jitter_share == 0
    assert allocator.allocate(stream.show(scenery(ROWS, COLS))).jitter_share == 0


def test_another_frame_than_the_last_cannot_be_allocated_again() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    view = stream.show(scenery(ROWS, COLS))
    with pytest.raises(ValueError, match="allocated last"):
        allocator.reallocate(view)
    allocator.allocate(view)
    with pytest.raises(ValueError, match="allocated last"):
        allocator.reallocate(stream.show(scenery(ROWS, COLS)))


def test_glanced_relevance_moves_along_and_fades() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    wide = scenery(ROWS, COLS + 4)
    frame = allocator.allocate(stream.show(wide[:, : COLS * 32]))
    allocator.on_glance()
    allocator.apply_glance(looked_at(frame, 5, 9))
    view = stream.show(wide[:, 64 : (COLS + 2) * 32])
    frame = allocator.allocate(view, pan(view.grid.shape, 0, -64))
    participation = frame.scores[2]
    assert participation[4:8, 6:10].min() > participation[4:8, 10:14].max()
    prior, looks = allocator._memory.prior, frame.maps.looks
    trust = [prior.evaluate(round(at_s * NS_PER_S), looks)[2].max() for at_s in (0.1, 10.0)]
    assert trust[0] == pytest.approx(GLANCE_TRUST)
    assert trust[1] < GLANCE_TRUST / 5


def test_a_glance_is_due_for_a_new_question_and_until_its_feedback() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    assert not allocator.glance_due(0)
    frame = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    assert allocator.glance_due(0)
    allocator.on_glance()
    assert allocator.glance_due(0), "it may be lost"
    allocator.apply_glance(looked_at(frame, 5, 9))
    assert not allocator.glance_due(0)
    allocator.set_query(QUESTION)
    assert allocator.glance_due(0)
    allocator.apply_glance(None)
    assert not allocator.glance_due(0), "it cannot be made"


def test_a_glance_at_another_epoch_teaches_nothing() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    frame = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    allocator.on_glance()
    other = replace(frame.stamp, epoch=frame.stamp.epoch + 1)
    allocator.apply_glance(replace(looked_at(frame, 5, 9), stamp=other))
    assert allocator.glance_due(0)


def test_a_glance_is_due_again_after_a_while_and_where_much_is_unknown() -> None:
    policy = GlancePolicy(every_s=20.0)
    assert policy.due(0, 1.0)
    policy.on_glance(NS_PER_S)
    least_ns, every_ns = round((1 + LEAST_S) * NS_PER_S), 21 * NS_PER_S
    assert not policy.due(least_ns - 1, 1.0)
    assert policy.due(least_ns, UNKNOWN_SHARE)
    assert not policy.due(every_ns - 1, UNKNOWN_SHARE - 0.01)
    assert policy.due(every_ns, 0.0)
    policy.reset()
    assert policy.due(0, 0.0)


@pytest.mark.parametrize("options", [{"tokens": 0}, {"tokens": True}, {"every_s": 0}, {"every_s": float("nan")}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        GlanceOptions(**options)


def test_an_overview_of_few_regions_is_made_only_on_request() -> None:
    assert len(GlanceOptions().overview(30, (ROWS, COLS))) == 15
    assert len(GlanceOptions().overview(29, (ROWS, COLS))) == LEAST_REGIONS == 6
    assert len(GlanceOptions().overview(11, (ROWS, COLS))) == 0, "two regions hardly distinguish places"
    assert len(GlanceOptions(tokens=5).overview(11, (ROWS, COLS))) == 2
    small = GlanceOptions().overview(17, (8, 8))
    assert small[:, 0].tolist() == [2, 2, 2, 2], "four distinguish places if each shows 4×4 tiles"
    assert len(GlanceOptions().overview(17, (16, 16))) == 0


@pytest.mark.parametrize(("tokens", "overview_tokens"), [("auto", 0), (4, 4)])
def test_an_overview_of_four_regions_is_shown_with_the_frame_that_was_glanced_at_only(
    tokens: Any, overview_tokens: int
) -> None:
    stream, allocator = PictureStream(), StreamAllocator(replace(OPTIONS, budget=17, glance=GlanceOptions(tokens)))
    frame = allocator.allocate(stream.show(scenery(8, 8)))
    assert (frame.overview, frame.glance_tokens, frame.allocation.tokens) == (overview_tokens, 4, 17)
    view = stream.show(scenery(8, 8))
    allocator.allocate(view)
    allocator.on_glance()
    regions = overview_regions((8, 8), 4).astype(np.int32)
    attention = np.array([0.02, 0.02, 1.0, 0.02], np.float32)
    allocator.apply_glance(Feedback(view.stamp, regions, attention, np.zeros(4, np.float32)))
    second = allocator.reallocate(view)
    assert (second.overview, second.allocation.tokens) == (4, 17)
    third = allocator.allocate(stream.show(255 - scenery(8, 8)))
    assert (third.overview, third.allocation.tokens) == (overview_tokens, 17)


def test_an_overview_larger_than_the_budget_is_refused_in_one_line() -> None:
    allocator = StreamAllocator(replace(OPTIONS, budget=20, glance=GlanceOptions(tokens=20)))
    view = PictureStream().show(scenery(ROWS, COLS))
    with pytest.raises(
        BudgetError, match="an overview of 20 tokens leaves nothing of a budget of 20; raise the budget"
    ):
        allocator.allocate(view)
    with pytest.raises(BudgetError, match="an overview of this frame takes at least 1 token, got 0; raise the budget"):
        overview_packet(view, 0)
