from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.allocation.history import HistoryTracker
from arr_coc.allocation.warping import Warp
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.relevance.channels import TextureArray
from arr_coc.types import NS_PER_S, Feedback, FrameStamp, QueryEmbedding, TileVersions
from tests.support.motion import moved, pan
from tests.support.video import PictureStream, scenery

SHAPE = ROWS, COLS = 3, 4
STILL = np.zeros((7, *SHAPE), np.float32)
TEXTURE = TextureArray(torch.zeros(40, *SHAPE), torch.zeros(SHAPE))
MODEL = "a"


def versions(*changed: tuple[int, int], frame: int = 0) -> TileVersions:
    frames = np.zeros(SHAPE, np.int64)
    for place in changed:
        frames[place] = frame
    return TileVersions(1, frames)


def feedback(media_ns: int = 0, regions: list[tuple[int, int, int]] | None = None, seed: int = 0) -> Feedback:
    rng, places = np.random.default_rng(seed), regions or [(0, 1, 2), (1, 0, 0)]
    count = len(places)
    return Feedback(
        FrameStamp(0, media_ns, 0, 1),
        np.array(places, np.int32),
        np.linspace(1, 0.25, count, dtype=np.float32),
        np.zeros(count, np.float32),
        rng.uniform(-1, 1, (count, 16)).astype(np.float32),
    )


def observing() -> HistoryTracker:
    """A tracker that has seen one frame."""
    tracker = HistoryTracker()
    tracker.observe(versions(), None, 0)
    return tracker


def prior(trust: float = 1.0) -> np.ndarray:
    return np.stack([np.zeros(SHAPE), np.zeros(SHAPE), np.full(SHAPE, trust)]).astype(np.float32)


def test_time_since_a_tile_changed_grows_in_quarters_and_ends() -> None:
    tracker = observing()
    tracker.observe(versions((1, 2), frame=5), None, NS_PER_S)
    history = tracker.evaluate(int(2.3 * NS_PER_S), STILL, None, None)
    assert history.unchanged_s is not None
    assert history.unchanged_s[1, 2] == 1.25
    assert history.unchanged_s[0, 0] == 2.25
    assert tracker.evaluate(int(2.4 * NS_PER_S), STILL, None, None) is history
    final = tracker.evaluate(90 * NS_PER_S, STILL, None, None)
    assert (final.unchanged_s == 5).all()
    assert tracker.evaluate(900 * NS_PER_S, STILL, None, None) is final


def test_the_texture_is_filled_once_while_nothing_moves() -> None:
    tracker = observing()
    filled = tracker.fill(TEXTURE, 0, STILL, None, None)
    assert tracker.fill(TEXTURE, 1, STILL, None, None) is filled
    relevance = np.random.default_rng(0).random(SHAPE, np.float32)
    tracker.remember(relevance)
    assert tracker.fill(TEXTURE, 1, STILL, None, None) is filled
    tracker.observe(versions(), None, 2)
    second = tracker.fill(TEXTURE, 2, STILL, None, None)
    assert torch.equal(second.channels[34], torch.from_numpy(relevance))
    tracker.remember(relevance)
    tracker.observe(versions(), None, 3)
    assert tracker.fill(TEXTURE, 3, STILL, None, None) is second


def test_motion_is_that_of_the_newest_frame() -> None:
    tracker = HistoryTracker()
    tracker.observe(versions(), replace(pan(SHAPE, 3, 4), confidence=np.full(SHAPE, 0.5, np.float32)), 0)
    moving = tracker.evaluate(0, STILL, None, None)
    assert moving.motion is not None
    assert moving.motion[:, 1, 1].tolist() == [3, 4, 0.5]
    tracker.observe(versions(), None, 1)
    assert tracker.evaluate(1, STILL, None, None).motion is None


def test_relevance_is_carried_along_and_unknown_where_content_came_in() -> None:
    tracker = observing()
    relevance = np.arange(12, dtype=np.float32).reshape(SHAPE) / 12
    tracker.remember(relevance)
    tracker.follow(pan(SHAPE, 0, 32), moved(SHAPE, 0, 1), moved(SHAPE, 0, 1))
    history = tracker.evaluate(0, STILL, None, None)
    assert history.relevance is not None
    assert (history.relevance[0, :, 1:] == relevance[:, :-1]).all()
    assert history.relevance[1].tolist() == [[0, 1, 1, 1]] * ROWS
    assert not history.relevance[0, :, 0].any()


def test_the_same_relevance_held_after_a_move_is_not_moved_twice() -> None:
    tracker = observing()
    relevance = np.arange(12, dtype=np.float32).reshape(SHAPE) / 12
    tracker.remember(relevance)
    tracker.follow(pan(SHAPE, 0, 32), moved(SHAPE, 0, 1), moved(SHAPE, 0, 1))
    tracker.observe(versions(), pan(SHAPE, 0, 32), 1)
    tracker.remember(relevance)
    tracker.observe(versions(), None, 2)
    history = tracker.evaluate(2, STILL, None, None)
    assert history.relevance is not None
    assert (history.relevance[0] == relevance).all()
    assert (history.relevance[1] == 1).all()


def test_attention_is_that_of_the_last_answer_and_its_mean() -> None:
    tracker = observing()
    tracker.update(feedback(), SHAPE, Warp.identity(SHAPE), STILL)
    first = tracker.evaluate(0, STILL, prior(0.5), None).attention
    assert first is not None
    assert first[0, 1, 2] == 1
    assert first[0, 0, 0] == pytest.approx(0.25)  # a quarter of the attention, over four tiles, and its square root
    assert first[0, 2, 3] == 0
    assert (first[0] == first[1]).all()
    assert (first[2] == 0.5).all()
    tracker.update(feedback(5 * NS_PER_S, [(0, 2, 3)]), SHAPE, Warp.identity(SHAPE), STILL)
    second = tracker.evaluate(0, STILL, prior(), None).attention
    assert second is not None
    assert second[0, 1, 2] == 0
    assert second[1, 1, 2] == pytest.approx(np.exp(-1))
    assert second[1, 2, 3] == pytest.approx(1 - np.exp(-1))


def test_another_question_forgets_attention_and_keeps_embeddings() -> None:
    tracker = observing()
    tracker.update(feedback(), SHAPE, Warp.identity(SHAPE), STILL)
    tracker.forget_question()
    history = tracker.evaluate(0, STILL, prior(), None)
    assert history.attention is None
    assert history.embedding is not None


def test_embeddings_are_those_of_the_tokens_and_0_elsewhere() -> None:
    tracker, taught = observing(), feedback()
    tracker.update(taught, SHAPE, Warp.identity(SHAPE), STILL)
    before = tracker.evaluate(0, STILL, prior(), None).embedding
    assert before is not None
    assert taught.embedding is not None
    assert (before[:, 1, 2] == taught.embedding[0]).all()
    assert (before[:, :2, :2] == taught.embedding[1][:, None, None]).all()
    assert not before[:, 2].any()
    tracker.update(feedback(1, [(0, 0, 0)], seed=1), SHAPE, Warp.identity(SHAPE), STILL)
    mixed = tracker.evaluate(0, STILL, prior(), None).embedding
    assert mixed is not None
    assert (mixed[:, 1, 2] == before[:, 1, 2]).all()
    assert not (mixed[:, 0, 0] == before[:, 0, 0]).any()
    tracker.follow(pan(SHAPE, 32, 0), moved(SHAPE, 1, 0), moved(SHAPE, 1, 0))
    after = tracker.evaluate(0, np.concatenate([STILL[:, :1], STILL[:, :-1]], axis=1), prior(), None).embedding
    assert after is not None
    assert (after[:, 1:] == mixed[:, :-1]).all()
    assert not after[:, 0].any()


def test_an_embedding_fades_as_its_tile_looks_different() -> None:
    tracker = observing()
    tracker.update(feedback(), SHAPE, Warp.identity(SHAPE), STILL)
    full = tracker.evaluate(0, STILL, None, None).embedding
    looks = STILL.copy()
    looks[0, 1, 2], looks[1, 0, 0] = 0.125, 0.3
    faded = tracker.evaluate(0, looks, None, None).embedding
    assert full is not None
    assert faded is not None
    np.testing.assert_allclose(faded[:, 1, 2], full[:, 1, 2] / 2)
    assert not faded[:, 0, 0].any()
    assert (faded[:, 1, 1] == full[:, 1, 1]).all()


def full_realiser(seed: int = 0) -> RelevanceRealiser:
    """One whose scorers read every channel, also those of the past."""
    torch.manual_seed(seed)
    realiser = RelevanceRealiser(8, MODEL, channels="full40")
    assert realiser.participation.asked is not None
    torch.nn.init.normal_(realiser.participation.asked.near.weight, std=0.3)
    return realiser


OPTIONS = AllocatorOptions(budget=16, explore=0.0)


def asked_allocator() -> StreamAllocator:
    """An allocator with a question."""
    allocator = StreamAllocator(OPTIONS, full_realiser())
    allocator.set_query(
        QueryEmbedding("where?", np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32), MODEL)
    )
    return allocator


def test_a_stream_s_past_enters_its_relevance_and_a_cut_forgets_it() -> None:
    stream, allocator, picture = PictureStream(), asked_allocator(), scenery(6, 9)
    first = allocator.allocate(stream.show(picture))
    allocator.mark_answered()
    regions = first.allocation.regions.numpy().astype(np.int32)
    taught = Feedback(
        first.stamp,
        regions,
        np.ones(len(regions), np.float32),
        np.zeros(len(regions), np.float32),
        np.random.default_rng(1).uniform(-1, 1, (len(regions), 16)).astype(np.float32),
    )
    plain, embedded = (
        allocator_after(picture, replace(taught, embedding=embedding)) for embedding in (None, taught.embedding)
    )
    assert not torch.allclose(plain.scores[2], first.scores[2], atol=1e-3)
    assert not torch.allclose(plain.scores[2], embedded.scores[2], atol=1e-3)
    allocator.apply_feedback(taught)
    stream.cut()
    last = allocator.allocate(stream.show(picture))
    assert torch.equal(last.scores, first.scores)


def allocator_after(picture: np.ndarray, taught: Feedback):  # type: ignore[no-untyped-def]
    """The second frame of a stream whose first one was answered about."""
    stream, allocator = PictureStream(), asked_allocator()
    first = allocator.allocate(stream.show(picture))
    allocator.mark_answered()
    allocator.apply_feedback(replace(taught, stamp=first.stamp))
    return allocator.allocate(stream.show(picture))


def test_the_same_frames_give_the_same_allocations() -> None:
    runs = []
    for _ in range(2):
        stream, allocator, relevance = PictureStream(), StreamAllocator(OPTIONS, full_realiser()), []
        for index in range(8):
            picture = scenery(6, 9, seed=index // 3)
            relevance.append(allocator.allocate(stream.show(picture), pan((6, 9), 0, 7 * (index % 2))).relevance)
        runs.append(torch.stack(relevance))
    assert torch.equal(*runs)


def test_a_still_scene_settles() -> None:
    stream, allocator, picture = PictureStream(), asked_allocator(), scenery(6, 9)
    maps = [allocator.allocate(stream.show(picture)).relevance for _ in range(400)]
    assert maps[-1].data_ptr() == maps[-2].data_ptr() == maps[-40].data_ptr()


@pytest.mark.parametrize(("channels", "trained"), [("full40", "core13"), ("core13", "full40+text")])
def test_the_allocator_s_own_channels_win_with_a_warning(
    channels: str, trained: str, caplog: pytest.LogCaptureFixture
) -> None:
    allocator = StreamAllocator(replace(OPTIONS, channels=channels), RelevanceRealiser(channels=trained))
    allocator.allocate(PictureStream().show(scenery(6, 9)))
    assert caplog.messages == [
        f"the model's allocator was trained on the channels {trained}; it is given these, not {channels}"
    ]


@pytest.mark.parametrize("channels", ["auto", "core13", "full40"])
def test_channels_that_fit_are_not_spoken_of(channels: str, caplog: pytest.LogCaptureFixture) -> None:
    realiser = None if channels != "auto" else RelevanceRealiser(channels="full40")
    StreamAllocator(replace(OPTIONS, channels=channels), realiser).allocate(PictureStream().show(scenery(6, 9)))
    assert not caplog.messages
