from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc.errors import ShapeError
from arr_coc.relevance.channels import texture_array
from arr_coc.relevance.history import (
    ATTENTION,
    ECCENTRICITY,
    EMBEDDING,
    HISTORY,
    MOTION,
    PREVIOUS,
    QUESTION,
    FrameHistory,
    eccentricity,
    with_embeddings,
    with_history,
)
from tests.support.video import PictureStream, scenery

SHAPE = ROWS, COLS = 4, 6


def full_history(seed: int = 0) -> FrameHistory:
    rng = np.random.default_rng(seed)
    return FrameHistory(
        motion=np.stack([rng.normal(size=SHAPE) * 9, rng.normal(size=SHAPE) * 9, rng.random(SHAPE)]).astype(np.float32),
        relevance=rng.random((2, *SHAPE), np.float32),
        unchanged_s=rng.uniform(0, 9, SHAPE).astype(np.float32),
        attention=rng.random((3, *SHAPE), np.float32),
        embedding=rng.uniform(-1, 1, (16, *SHAPE)).astype(np.float32),
        question=rng.uniform(-1, 1, 16).astype(np.float32),
    )


def test_nothing_known_is_nothing_but_zeros() -> None:
    assert not FrameHistory().channels(SHAPE).any()


def test_each_part_fills_its_own_channels() -> None:
    channels = full_history().channels(SHAPE)
    picture = [index for index in range(40) if index not in HISTORY]
    assert not channels[picture].any()
    assert all(channels[index].any() for index in HISTORY)
    signed = [*range(40)[EMBEDDING], QUESTION]
    assert ((channels >= -1) & (channels <= 1)).all()
    assert (np.delete(channels, signed, axis=0) >= 0).all()


def test_motion_counts_as_far_as_it_is_trusted() -> None:
    motion = np.zeros((3, *SHAPE), np.float32)
    motion[:, 0, 0], motion[:, 1, 1], motion[:, 2, 2] = (3, 4, 1), (300, 0, 0.5), (300, 0, 0)
    speed = FrameHistory(motion=motion).channels(SHAPE)[MOTION]
    assert speed[0, 0] == pytest.approx(5 / 32)
    assert speed[1, 1] == 0.5
    assert speed[2, 2] == speed[3, 3] == 0


def test_eccentricity_grows_with_distance_from_the_peak() -> None:
    relevance = np.zeros(SHAPE, np.float32)
    assert not eccentricity(relevance).any()
    relevance[0, 0] = 1
    distance = eccentricity(relevance)
    assert distance[0, 0] == 0
    assert distance[-1, -1] == pytest.approx(1)
    assert distance[3, 4] == pytest.approx(5 / np.hypot(3, 5))
    channels = FrameHistory(relevance=np.stack([relevance, np.ones_like(relevance)])).channels(SHAPE)
    assert (channels[ECCENTRICITY] == distance).all()
    assert (channels[PREVIOUS][:2] == np.stack([relevance, np.ones_like(relevance)])).all()


def test_time_and_attention_have_their_places() -> None:
    history = full_history()
    channels = history.channels(SHAPE)
    assert history.unchanged_s is not None
    np.testing.assert_allclose(channels[PREVIOUS][2], np.minimum(history.unchanged_s / 5, 1), rtol=1e-6)
    assert (channels[ATTENTION] == history.attention).all()


def test_the_cosine_is_that_of_components_and_question() -> None:
    history = full_history()
    assert history.embedding is not None
    assert history.question is not None
    expected = torch.cosine_similarity(
        torch.from_numpy(history.embedding), torch.from_numpy(history.question)[:, None, None], dim=0
    )
    np.testing.assert_allclose(history.channels(SHAPE)[QUESTION], expected, atol=1e-5)
    blank = FrameHistory(embedding=np.zeros_like(history.embedding), question=history.question)
    assert not blank.channels(SHAPE).any()


def test_a_texture_gets_its_past_and_keeps_its_picture() -> None:
    view = PictureStream().show(scenery(ROWS, COLS))
    core, full, history = texture_array(view), texture_array(view, "full40"), full_history()
    assert with_history(core, history) is core
    assert with_history(full, None) is full
    filled, before = with_history(full, history), full.channels.clone()
    assert torch.equal(full.channels, before)
    assert torch.equal(filled.channels, before + torch.from_numpy(history.channels(SHAPE)))
    assert torch.equal(filled.appearance, core.appearance)


@pytest.mark.parametrize("name", ["motion", "relevance", "unchanged_s", "attention", "embedding"])
def test_a_history_of_another_grid_is_refused(name: str) -> None:
    with pytest.raises(ShapeError, match=rf"history's {name} is of a grid of \(4, 6\)"):
        FrameHistory(**{name: getattr(full_history(), name)}).channels((6, 4))


def test_known_embeddings_of_a_batch_are_those_of_a_history() -> None:
    full, history = texture_array(PictureStream().show(scenery(ROWS, COLS)), "full40"), full_history()
    assert history.embedding is not None
    assert history.question is not None
    embedding_history = FrameHistory(embedding=history.embedding, question=history.question)
    batch = type(full)(full.channels[None], full.entropy[None])
    components = torch.from_numpy(history.embedding)[None].requires_grad_()
    filled = with_embeddings(batch, components, torch.from_numpy(history.question)[None])
    assert torch.allclose(filled.channels[0], with_history(full, embedding_history).channels, atol=1e-5)
    filled.channels.sum().backward()
    assert components.grad is not None
    unasked = with_embeddings(batch, components, None)
    assert not unasked.channels[:, QUESTION].any()
