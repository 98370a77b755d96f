from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc.adaptation.trainer import new_layer
from arr_coc.qwen.qwenvl import QwenVL
from tests.support.models import tiny_qwen
from tests.support.video import scenery
from training.cases import cases_of, random_samples
from training.past import GlancedPast, fit_axes

QUESTION = "where is the star?"


@pytest.fixture(scope="module")
def qwen() -> QwenVL:
    return tiny_qwen()


def test_axes_are_fitted_to_the_model_s_own_embeddings(qwen: QwenVL) -> None:
    pictures = [scenery(6, 9, seed=seed) for seed in range(3)]
    first, repeat = (new_layer(qwen, channels="full40").realiser.axes for _ in range(2))
    assert first is not None
    assert repeat is not None
    initial_axes = first.axes.clone()
    for axes in (first, repeat):
        fit_axes(axes, qwen, pictures)
    assert torch.equal(first.axes, repeat.axes)
    assert not torch.allclose(first.axes, initial_axes)
    history, _ = GlancedPast(qwen, layer_with(qwen, first)).look(pictures[0], QUESTION)
    assert history.embedding is not None
    assert np.abs(history.embedding).mean() > 0.02


def layer_with(qwen: QwenVL, axes: torch.nn.Module):  # type: ignore[no-untyped-def]
    layer = new_layer(qwen, channels="full40")
    layer.realiser.axes = axes  # type: ignore[assignment]
    return layer


def test_a_glance_teaches_attention_embeddings_and_the_question(qwen: QwenVL) -> None:
    history, prior = GlancedPast(qwen, new_layer(qwen, channels="full40")).look(scenery(8, 12), QUESTION)
    assert prior.shape == (3, 8, 12)
    assert (prior[2] == 1).all()
    assert history.attention is not None
    assert history.attention[0].max() == 1
    assert (history.attention[0] == history.attention[1]).all()
    assert history.embedding is not None
    assert history.embedding.any(axis=0).all(), "an overview shows every tile"
    assert history.question is not None
    assert history.question.shape == (16,)


def test_thirteen_channels_get_attention_only(qwen: QwenVL) -> None:
    history, prior = GlancedPast(qwen, new_layer(qwen)).look(scenery(4, 5), QUESTION)
    assert history.embedding is None
    assert history.question is None
    assert prior[0].max() == 1


def test_a_case_comes_without_and_with_its_past(qwen: QwenVL) -> None:
    samples = list(random_samples("train", 0, 1))
    past = GlancedPast(qwen, new_layer(qwen, channels="full40"))
    cases = list(cases_of(samples, channels="full40", past=past))
    plain_cases = list(cases_of(samples, channels="full40"))
    assert len(cases) == 2 * len(plain_cases)
    for plain, after_glance, expected in zip(cases[0::2], cases[1::2], plain_cases, strict=True):
        assert torch.equal(plain.texture.channels, expected.texture.channels)
        assert plain.prior is None
        assert after_glance.prior is not None
        assert after_glance.question == plain.question
        assert not torch.equal(after_glance.texture.channels, plain.texture.channels)
        assert torch.equal(after_glance.texture.channels[:5], plain.texture.channels[:5])
