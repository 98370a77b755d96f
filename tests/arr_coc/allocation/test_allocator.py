"""Relevant change since a moment: what came, and what has vanished."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.attending import Tensions
from arr_coc.allocation.frame import VOID_HYSTERESIS, RegionSelector, SelectorOptions
from arr_coc.allocation.structure import VOID_STRUCTURE, map_structure
from arr_coc.allocation.temporal import ChangeMeter
from arr_coc.budget import Budget, TokenLimits, adaptive_budget
from arr_coc.errors import BudgetError, NonFiniteError, StrategyError
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.types import Feedback, QueryEmbedding, TileVersions
from tests.support.motion import moved, pan
from tests.support.selection import chosen, feedback_on
from tests.support.video import PictureStream, scenery

ROWS, COLS = 12, 20
OPTIONS = AllocatorOptions("foveated", 64)


def noisy(picture: np.ndarray, sigma: float, rng: np.random.Generator) -> np.ndarray:
    return np.clip(picture + rng.normal(0, sigma, picture.shape), 0, 255).astype(np.uint8)


def test_a_frame_is_allocated_whole() -> None:
    frame = StreamAllocator(OPTIONS).allocate(PictureStream().show(scenery(ROWS, COLS)))
    assert 62 <= frame.allocation.tokens <= 64
    assert frame.relevance.shape == frame.levels.shape == (ROWS, COLS)
    assert frame.scores.shape == (3, ROWS, COLS)
    assert ((frame.scores >= 0) & (frame.scores <= 1)).all()
    assert frame.weights[2] == 0
    assert frame.jitter_share == 0
    assert frame.change_since == 1
    assert frame.strategy == "foveated"


def test_details_get_the_fine_tokens() -> None:
    picture = np.full((ROWS * 32, COLS * 32, 3), 90, np.uint8)
    picture[4 * 32 : 5 * 32, 13 * 32 : 15 * 32 : 4] = 250
    levels = StreamAllocator(OPTIONS).allocate(PictureStream().show(picture)).levels
    assert (levels[4, 13:15] == 0).all()
    assert (levels == 0).sum() < 40
    assert levels[10, 2] > 0


def test_a_still_picture_is_not_allocated_again() -> None:
    stream, allocator, picture = PictureStream(), StreamAllocator(OPTIONS), scenery(ROWS, COLS)
    first = allocator.allocate(stream.show(picture))
    second = allocator.allocate(stream.show(picture))
    assert second.allocation is first.allocation
    assert second.stamp.frame_index == 1


def shaken(index: int) -> np.ndarray:
    """A picture in which another block of tiles is new each time."""
    picture = scenery(ROWS, COLS)
    picture[64:160, 32 * (index % 12) : 32 * (index % 12) + 96] = 17 * index % 256
    return picture


@pytest.mark.parametrize("strategy", ["foveated", "mixed", "topk", "auto"])
def test_a_frame_that_is_asked_for_is_as_one_that_is_allocated(strategy: str) -> None:
    options = replace(OPTIONS, strategy=strategy)
    eager, lazy, stream, twin = StreamAllocator(options), StreamAllocator(options), PictureStream(), PictureStream()
    for index in range(8):
        frame, lazy_frame = eager.allocate(stream.show(shaken(index))), lazy.observe(twin.show(shaken(index)))
        assert (lazy_frame.tiles, lazy_frame.is_chosen, lazy_frame.jitter_share) == (ROWS * COLS, False, None)
        assert lazy_frame.tokens == 64
        assert lazy_frame.allocation.regions.equal(frame.allocation.regions)
        assert lazy_frame.relevance.equal(frame.relevance)
        assert lazy_frame.jitter_share == frame.jitter_share
        assert lazy_frame.tokens == frame.tokens
        if index % 3 == 1:
            eager.mark_answered()
            lazy.mark_answered()
            assert eager.change == lazy.change == 0


def test_frames_without_a_choice_count_in_relevance_and_change_alone() -> None:
    eager, lazy, stream, twin = StreamAllocator(OPTIONS), StreamAllocator(OPTIONS), PictureStream(), PictureStream()
    first, lazy_frame = eager.allocate(stream.show(shaken(0))), lazy.observe(twin.show(shaken(0)))
    assert lazy_frame.allocation.regions.equal(first.allocation.regions)
    for index in range(1, 6):
        frame, lazy_frame = eager.allocate(stream.show(shaken(index))), lazy.observe(twin.show(shaken(index)))
        assert lazy_frame.relevance.equal(frame.relevance)
        assert lazy_frame.change_since == frame.change_since
        assert lazy_frame.change_since_look == frame.change_since_look
    # the choice before is that of the first frame, not of an unviewed one
    assert (first.levels != lazy_frame.levels).mean() == lazy_frame.jitter_share


def test_a_frame_that_is_asked_for_late_has_its_own_regions_and_changes_no_others() -> None:
    frames = {}
    for late in (True, False):
        allocator, stream = StreamAllocator(OPTIONS), PictureStream()
        first_two = [allocator.observe(stream.show(shaken(index))) for index in range(2)]
        frames[late] = [first_two[0]] if late else []
        last = allocator.observe(stream.show(shaken(2)))
        assert all(frame.allocation.tokens > 60 for frame in frames[late])
        following = allocator.allocate(stream.show(shaken(3)))
        frames[late] += [last, following]
    fresh = StreamAllocator(OPTIONS).allocate(PictureStream().show(shaken(0)))
    assert frames[True][0].allocation.regions.equal(fresh.allocation.regions)
    for late_frame, frame in zip(frames[True][1:], frames[False], strict=True):
        assert late_frame.allocation.regions.equal(frame.allocation.regions)


def test_regions_that_were_never_chosen_were_not_shown() -> None:
    """An answer about a frame whose regions were never chosen leaves exploration unchanged."""
    eager, lazy, views = StreamAllocator(OPTIONS), StreamAllocator(OPTIONS), PictureStream()
    view = views.show(shaken(0))
    eager.allocate(view)
    lazy.observe(view)
    for allocator in (eager, lazy):
        allocator.mark_answered()
    frame, lazy_frame = eager.allocate(view), lazy.allocate(view)
    assert not frame.allocation.regions.equal(lazy_frame.allocation.regions)


@pytest.mark.parametrize("strategy", ["foveated", "mixed", "topk", "auto"])
def test_noise_on_a_static_scene_does_not_jitter(strategy: str) -> None:
    stream, allocator = PictureStream(), StreamAllocator(replace(OPTIONS, strategy=strategy))
    rng, picture, jitter = np.random.default_rng(0), scenery(ROWS, COLS), []
    for index in range(30):
        jitter.append(allocator.allocate(stream.show(noisy(picture, 5, rng))).jitter_share)
        if index % 10 == 9:
            allocator.mark_answered()
    assert np.mean(jitter) < 0.05


@pytest.mark.parametrize("strategy", ["foveated", "mixed"])
@pytest.mark.parametrize("speed", [3, 9, 16])
def test_a_pan_carries_its_allocation_along(strategy: str, speed: int) -> None:
    stream, allocator = PictureStream(), StreamAllocator(replace(OPTIONS, strategy=strategy))
    rng, wide, jitter = np.random.default_rng(0), scenery(ROWS, COLS + 20), []
    for index in range(30):
        picture = wide[:, index * speed : index * speed + COLS * 32]
        motion = pan((ROWS, COLS), 0, -speed) if index else None
        jitter.append(allocator.allocate(stream.show(noisy(picture, 2, rng)), motion).jitter_share)
        if index % 10 == 9:
            allocator.mark_answered()
    assert np.mean(jitter) < 0.2
    assert max(jitter) > 0


def test_nothing_is_remembered_across_a_cut() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    first = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    allocator.apply_feedback(feedback_on(first, 3, 3))
    allocator.allocate(stream.show(scenery(ROWS, COLS)))
    allocator.mark_answered()
    stream.cut()
    after = allocator.allocate(stream.show(scenery(ROWS, COLS, seed=7)), pan((ROWS, COLS), 0, 500))
    fresh = StreamAllocator(OPTIONS).allocate(PictureStream().show(scenery(ROWS, COLS, seed=7)))
    assert torch.equal(after.allocation.regions, fresh.allocation.regions)
    assert torch.equal(after.relevance, fresh.relevance)
    assert after.jitter_share == 0
    assert allocator.change == 1


def test_another_size_is_another_epoch() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    allocator.allocate(stream.show(scenery(ROWS, COLS)))
    stream.cut()
    assert allocator.allocate(stream.show(scenery(8, 9))).relevance.shape == (8, 9)


def test_the_same_stream_gives_the_same_allocations() -> None:
    def run() -> list[torch.Tensor]:
        stream, allocator, regions = PictureStream(), StreamAllocator(replace(OPTIONS, strategy="mixed")), []
        for index in range(12):
            frame = allocator.allocate(
                stream.show(scenery(ROWS, COLS, seed=index // 4)), pan((ROWS, COLS), 0, 7 * index)
            )
            if index % 5 == 4:
                allocator.mark_answered()
                allocator.apply_feedback(feedback_on(frame, 2, 2))
            regions.append(frame.allocation.regions)
        return regions

    assert all(torch.equal(first, second) for first, second in zip(run(), run(), strict=True))


def test_feedback_draws_later_allocations() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    first = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    row, col = np.argwhere(first.levels > 0)[-1].tolist()
    allocator.apply_feedback(feedback_on(first, row, col))
    for _ in range(10):
        taught = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    assert taught.weights[2] > 0
    assert taught.levels[row, col] < first.levels[row, col]


def test_new_content_on_tiles_that_were_not_looked_at_is_seen_at_once() -> None:
    """An answer looked at one tile alone; that holds for the frame it was about, not for what comes into another."""
    picture = scenery(ROWS, COLS)
    after = picture.copy()
    after[9 * 32 : 11 * 32, 15 * 32 : 17 * 32] = np.random.default_rng(0).integers(0, 256, (64, 64, 3))
    frames = []
    for teaches in (False, True):
        stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
        first = allocator.allocate(stream.show(picture))
        allocator.mark_answered()
        if teaches:
            allocator.apply_feedback(feedback_on(first, 1, 1))
        for _ in range(10):
            allocator.allocate(stream.show(picture))
        frames.append(allocator.allocate(stream.show(after)))
    untaught, taught = ((frame.levels[9:11, 15:17] == 0).mean() for frame in frames)
    assert taught >= untaught > 0
    relevance = [frame.relevance[9:11, 15:17].mean() for frame in frames]
    assert relevance[1] > relevance[0] / 2


def test_feedback_follows_the_camera() -> None:
    stream, allocator = PictureStream(), StreamAllocator(replace(OPTIONS, budget=ROWS * COLS))
    first = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    allocator.allocate(stream.show(scenery(ROWS, COLS)), pan((ROWS, COLS), 0, 96))
    allocator.apply_feedback(feedback_on(first, 5, 4))
    taught = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    assert taught.scores[2].argmax() == 5 * COLS + 7


def test_feedback_about_another_epoch_or_too_old_is_ignored() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    allocator.apply_feedback(Feedback(PictureStream().show(scenery(4, 4)).stamp, *(np.zeros((0, 3)),) * 3))
    first = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    for stamp in (replace(first.stamp, epoch=99), replace(first.stamp, frame_index=-1)):
        allocator.apply_feedback(replace(feedback_on(first, 5, 4), stamp=stamp))
        assert not allocator.allocate(stream.show(scenery(ROWS, COLS))).scores[2].any()


@pytest.mark.parametrize("strategy", ["foveated", "mixed", "topk"])
def test_a_floor_draws_tokens_at_once_and_leaves_no_trace(strategy: str) -> None:
    picture = scenery(ROWS, COLS)
    floor = np.zeros((ROWS, COLS), np.float32)
    floor[9:11, 2:5] = 1.0
    raised, plain = (StreamAllocator(replace(OPTIONS, strategy=strategy)) for _ in range(2))
    streams = PictureStream(), PictureStream()
    for index in range(4):
        raised.set_floor(floor if index in (1, 2) else None)
        with_floor = raised.allocate(streams[0].show(picture))
        without = plain.allocate(streams[1].show(picture))
        if index in (1, 2):
            assert (with_floor.relevance[9:11, 2:5] == 1).all()
            assert (with_floor.levels[9:11, 2:5] == 0).all()
        else:
            torch.testing.assert_close(with_floor.relevance, without.relevance, rtol=0, atol=0)


def test_another_question_forgets_what_answers_taught() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    query = QueryEmbedding("where?", np.zeros((3, 8), np.float32), "tiny")
    allocator.set_query(query)
    first = allocator.allocate(stream.show(scenery(ROWS, COLS)))
    allocator.apply_feedback(feedback_on(first, 5, 4))
    allocator.set_query(replace(query, tokens=query.tokens.copy()))
    assert allocator.allocate(stream.show(scenery(ROWS, COLS))).scores[2].any(), "the same one is no other"
    allocator.set_query(replace(query, text="where now?"))
    assert not allocator.allocate(stream.show(scenery(ROWS, COLS))).scores[2].any()


def test_questions_share_the_tokens_and_one_alone_changes_nothing() -> None:
    realiser = RelevanceRealiser(query_dim=8, trained_for="tiny", scorer="cross")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in realiser.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    random = np.random.default_rng(1)
    query, other = (
        QueryEmbedding(text, random.standard_normal((3, 8)).astype(np.float32), "tiny") for text in ("a?", "b?")
    )

    def relevance(*queries: QueryEmbedding, successors: tuple[QueryEmbedding, ...] = ()) -> torch.Tensor:
        stream, allocator = PictureStream(), StreamAllocator(OPTIONS, realiser)
        allocator.set_query(*queries)
        if successors:
            allocator.set_query(*successors)
        assert allocator.question == (successors or queries)[0].text
        allocator.allocate(stream.show(scenery(ROWS, COLS)))
        return allocator.allocate(stream.show(scenery(ROWS, COLS))).relevance

    singles, united = [relevance(query), relevance(other)], relevance(query, other)
    assert not torch.equal(united, singles[0])
    assert not torch.equal(united, singles[1])
    for single in singles:
        firsts = single.flatten().argsort(descending=True, stable=True)[:5].tolist()
        united_firsts = united.flatten().argsort(descending=True, stable=True)[:10].tolist()
        assert set(firsts) <= set(united_firsts)
    assert torch.equal(relevance(query, other, successors=(query,)), singles[0])
    unheard = replace(other, model_id="another")
    assert torch.equal(relevance(query, unheard), singles[0])
    copy = StreamAllocator(OPTIONS, realiser)
    copy.set_query(query, other)
    assert copy.copy_for_thread()._queries == (query, other)


def test_change_is_weighted_by_relevance_and_counts_from_the_last_answer() -> None:
    stream, allocator, picture = PictureStream(), StreamAllocator(OPTIONS), scenery(ROWS, COLS)
    assert allocator.change == 1
    allocator.mark_answered()
    allocator.allocate(stream.show(picture))
    assert allocator.change == 1
    allocator.mark_answered()
    assert allocator.change == 0
    assert allocator.allocate(stream.show(picture)).change_since == 0
    changed = picture.copy()
    changed[32:96, 32:128] = 255 - changed[32:96, 32:128]
    frame = allocator.allocate(stream.show(changed))
    weight = frame.relevance[1:3, 1:4].sum() / frame.relevance.sum()
    assert frame.change_since == allocator.change == pytest.approx(float(weight))
    assert allocator.allocate(stream.show(changed)).change_since > 0
    allocator.mark_answered()
    assert allocator.allocate(stream.show(changed)).change_since == 0


def test_change_since_a_look_counts_from_the_last_look() -> None:
    stream, allocator, picture = PictureStream(), StreamAllocator(OPTIONS), scenery(ROWS, COLS)
    assert allocator.allocate(stream.show(picture)).change_since_look == 1
    allocator.mark_looked()
    first = allocator.allocate(stream.show(picture))
    assert (first.change_since_look, first.change_since) == (0, 1)
    allocator.mark_answered()
    changed = picture.copy()
    changed[32:96, 32:128] = 255 - changed[32:96, 32:128]
    frame = allocator.allocate(stream.show(changed))
    assert 0 < frame.change_since_look == frame.change_since
    allocator.mark_looked()
    frame = allocator.allocate(stream.show(changed))
    assert frame.change_since_look == 0 < frame.change_since


def test_change_of_a_black_frame_counts_tiles() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    black = np.zeros((ROWS * 32, COLS * 32, 3), np.uint8)
    allocator.allocate(stream.show(black))
    allocator.mark_answered()
    dark = black.copy()
    dark[:32, :32] = 1
    frame = allocator.allocate(stream.show(dark))
    assert 0 < frame.change_since < 0.02


def test_exploration_shows_every_tile_in_the_end() -> None:
    options, picture = replace(OPTIONS, strategy="topk", budget=20), scenery(8, 9)
    stream, allocator, shown_tiles = PictureStream(), StreamAllocator(options), np.zeros((8, 9), bool)
    for _ in range(90):
        frame = allocator.allocate(stream.show(picture))
        shown_tiles |= frame.levels == 0
        allocator.mark_answered()
    assert shown_tiles[frame.scores[0].numpy() > 0.02].all()


def test_without_exploration_the_best_stay() -> None:
    stream, allocator, picture = PictureStream(), StreamAllocator(replace(OPTIONS, explore=0)), scenery(8, 9)
    first = allocator.allocate(stream.show(picture))
    allocator.mark_answered()
    assert (allocator.allocate(stream.show(picture)).levels == first.levels).all()


def test_a_budget_may_be_given_for_one_frame() -> None:
    stream, allocator, picture = (
        PictureStream(),
        StreamAllocator(replace(OPTIONS, strategy="topk")),
        scenery(ROWS, COLS),
    )
    assert allocator.allocate(stream.show(picture), budget=32).allocation.tokens == 32
    assert allocator.allocate(stream.show(picture)).allocation.tokens == 64
    assert 64 <= allocator.allocate(stream.show(picture), budget="adaptive").allocation.tokens <= 240


def test_a_frame_that_failed_leaves_nothing_of_another_size() -> None:
    stream, allocator = PictureStream(), StreamAllocator(OPTIONS)
    allocator.allocate(stream.show(scenery(ROWS, COLS)))
    stream.cut()
    with pytest.raises(BudgetError):
        allocator.allocate(stream.show(scenery(8, 9)), budget=0)
    allocator.mark_answered()
    assert allocator.allocate(stream.show(scenery(8, 9))).levels.shape == (8, 9)


@pytest.mark.parametrize(
    ("budget", "warned"),
    [("auto", "at least 64"), ("adaptive", "at least 64"), (273, "273"), ("27%", None), (20, None)],
)
def test_clamping_is_logged_once(budget: Budget, warned: str | None, caplog: pytest.LogCaptureFixture) -> None:
    stream, allocator = PictureStream(), StreamAllocator(AllocatorOptions(budget=budget))
    tokens = 5 if warned is None and budget == "27%" else 20
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert allocator.allocate(stream.show(scenery(4, 5))).allocation.tokens == tokens
            stream.cut()
    expected = (
        []
        if warned is None
        else [f"a budget of {warned} tokens is more than the frame's 20 tiles: all of them are shown"]
    )
    assert caplog.messages == expected


def test_the_limits_of_an_allocator_are_those_of_its_budget() -> None:
    for budget in ("auto", "adaptive"):
        allocator = StreamAllocator(AllocatorOptions(budget=budget, limits=TokenLimits(6, 8)))
        assert 6 <= allocator.allocate(PictureStream().show(scenery(6, 8))).tokens <= 8


def test_options_that_do_not_hold() -> None:
    with pytest.raises(StrategyError):
        StreamAllocator(AllocatorOptions(strategy="best"))
    with pytest.raises(BudgetError):
        StreamAllocator(AllocatorOptions(budget=0))
    with pytest.raises(ValueError, match="explore"):
        StreamAllocator(AllocatorOptions(explore=2))


def test_broken_weights_are_named() -> None:
    realiser = RelevanceRealiser()
    torch.nn.init.constant_(realiser.perspective.out.weight, float("nan"))
    with pytest.raises(NonFiniteError, match="perspectival"):
        StreamAllocator(OPTIONS, realiser).allocate(PictureStream().show(scenery(ROWS, COLS)))


PLAIN, THING = torch.tensor([[0.1, 0.1, 0.2]]), torch.tensor([[0.1, 0.7, 0.2]])


def versions(*frames: int, epoch: int = 1) -> TileVersions:
    return TileVersions(epoch, np.array([frames], np.int64))


@pytest.mark.parametrize("keep_vanished", [False, True])
def test_it_counts_from_the_mark(keep_vanished: bool) -> None:
    change = ChangeMeter(keep_vanished=keep_vanished)
    first = versions(0, 0, 0)
    assert change.measure(first, THING) == 1
    change.mark(first)
    assert change.measure(first, THING) == 0
    assert change.measure(versions(0, 5, 0), THING) == pytest.approx(0.7)
    assert change.measure(versions(5, 5, 5, epoch=2), THING) == 1


@pytest.mark.parametrize(("keep_vanished", "expected"), [(False, 0.25), (True, 0.7)])
def test_a_vanished_tile_counts_by_its_former_content(keep_vanished: bool, expected: float) -> None:
    change = ChangeMeter(keep_vanished=keep_vanished)
    change.measure(versions(0, 0, 0), PLAIN)
    change.mark(versions(0, 0, 0))
    change.measure(versions(0, 0, 0), THING)  # it became relevant later, as blending lets it
    assert change.measure(versions(0, 9, 0), PLAIN) == pytest.approx(expected)


def test_a_vanished_tile_counts_until_the_next_mark() -> None:
    change = ChangeMeter(keep_vanished=True)
    change.measure(versions(0, 0, 0), THING)
    change.mark(versions(0, 0, 0))
    change.measure(versions(0, 9, 0), PLAIN)
    change.mark(versions(0, 9, 0))
    assert change.measure(versions(0, 10, 0), PLAIN) == pytest.approx(0.25)


def test_another_grid_begins_anew() -> None:
    change = ChangeMeter(keep_vanished=True)
    change.measure(versions(0, 0, 0), THING)
    change.mark(versions(0, 0, 0))
    assert change.measure(versions(0, 0, epoch=2), torch.ones(1, 2)) == 1


def test_if_nothing_is_relevant_tiles_count() -> None:
    change = ChangeMeter()
    change.mark(versions(0, 0, 0, 0))
    assert change.measure(versions(1, 0, 0, 0), torch.zeros(1, 4)) == 0.25


def blob(height: float = 0.8, col: int = 30) -> torch.Tensor:
    rows, cols = np.indices((34, 60))
    values = 0.1 + height * np.exp(-((rows - 11) ** 2 + (cols - col) ** 2) / 30)
    return torch.from_numpy(values.astype(np.float32))


def noise(scale: float = 1) -> torch.Tensor:
    values = 0.5 + scale * (np.random.default_rng(0).random((34, 60)) - 0.5)
    return torch.from_numpy(values.astype(np.float32))


def selector_of(strategy: str, tensions: Tensions | None = None) -> RegionSelector:
    return RegionSelector(SelectorOptions(strategy, tensions or Tensions()))


def test_the_same_maps_keep_the_choice() -> None:
    selector, relevance, staleness = selector_of("foveated"), blob(), blob(col=5)
    first = chosen(selector, relevance, 273, staleness)
    second = chosen(selector, relevance, 273, staleness)
    assert second.allocation is first.allocation
    assert second.selection is chosen(selector, relevance, 273, staleness).selection
    for changed in ((blob(), 273, staleness), (relevance, 200, staleness), (relevance, 273, blob(col=50))):
        assert chosen(selector, *changed).allocation is not first.allocation


def test_jitter_is_counted_against_the_carried_map() -> None:
    selector = selector_of("topk", Tensions(explore=0))
    assert chosen(selector, blob(), 100, None).jitter_share == 0
    other = blob(col=40)
    assert 0.02 < chosen(selector, other, 100, None).jitter_share < 0.1
    assert chosen(selector, other, 100, None).jitter_share == 0
    assert chosen(selector, blob(col=40), 100, None).jitter_share == 0
    selector.follow(moved(blob().shape, 0, 5))
    assert chosen(selector, blob(col=45), 100, None).jitter_share == 0


def test_jitter_leaves_out_what_came_into_view() -> None:
    selector = selector_of("topk", Tensions(explore=0))
    first = chosen(selector, blob(), 2040)
    selector.follow(moved(blob().shape, 0, 59))
    assert chosen(selector, blob(), 1).jitter_share == 1
    selector.follow(moved(blob().shape, 0, 60))
    assert (chosen(selector, blob(), 2040).jitter_share, first.jitter_share) == (0, 0)


def test_carrying_before_the_first_frame_is_nothing() -> None:
    selector = selector_of("topk")
    selector.follow(moved(blob().shape, 1, 1))
    assert chosen(selector, blob(), 10, None).jitter_share == 0


def test_the_void_guard_does_not_flutter() -> None:
    selector = selector_of("auto")
    assert chosen(selector, noise(), 273, None).strategy == "grid"
    between = noise() + 1.5 * blob()
    assert VOID_STRUCTURE - VOID_HYSTERESIS < map_structure(between) < VOID_STRUCTURE + VOID_HYSTERESIS
    assert chosen(selector, between, 273, None).strategy == "grid"
    assert chosen(selector, blob(), 273, None).strategy == "topk"
    assert chosen(selector, between, 273, None).strategy == "topk"
    assert chosen(selector, noise(0.02), 273, None).strategy == "grid"


def test_a_limit_holds_whatever_the_budget_means_and_can_be_lifted() -> None:
    selector, wide = selector_of("topk", Tensions(budget="adaptive")), blob()
    free = adaptive_budget(wide)
    assert [chosen(selector, wide, "adaptive", None, limit).allocation.tokens for limit in (70, 400, None, 80)] == [
        70,
        free,
        free,
        80,
    ]
    assert chosen(selector, wide, 273, None, 100).allocation.tokens == 100
    with pytest.raises(BudgetError):
        chosen(selector, wide, "adaptive", None, 0)


def test_an_adaptive_budget_moves_only_for_a_reason() -> None:
    selector = selector_of("topk", Tensions(budget="adaptive"))
    first = chosen(selector, blob(), "adaptive", None)
    tokens = first.allocation.tokens
    assert tokens == adaptive_budget(blob())
    assert chosen(selector, blob(0.79), "adaptive", None).allocation.tokens == tokens
    wide = torch.maximum(blob(), torch.maximum(blob(col=5), blob(col=55)))
    assert chosen(selector, wide, "adaptive", None).allocation.tokens == adaptive_budget(wide) > 1.05 * tokens
    second = chosen(selector, wide, "adaptive", None)
    assert chosen(selector, wide, "adaptive", None).allocation.tokens == second.allocation.tokens


def test_budgets_that_are_none() -> None:
    with pytest.raises(BudgetError):
        chosen(selector_of("topk"), blob(), 0)
