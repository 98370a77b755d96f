"""The allocator that comes with the bundled model: it is that model's own, and finds what is asked about."""

from __future__ import annotations

import pytest

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance import RelevanceRealiser
from training.allocator_cases import Embedder, cases_of, random_samples
from training.allocator_measure import measure

FIRST_CLIP = 9_500_000
CLIPS = 40


@pytest.fixture(scope="module")
def qwen() -> QwenVL:
    return load_qwen()


def test_it_was_trained_for_the_weights_that_are_bundled(qwen: QwenVL) -> None:
    """Otherwise train it again: `python -m training.allocator_compare --runs runs/allocator --ways boxes --ship`."""
    assert qwen.realiser is not None
    assert qwen.realiser.knows(qwen.model_id)


def test_it_finds_more_of_what_is_asked_than_the_untrained_one(qwen: QwenVL) -> None:
    assert qwen.realiser is not None
    cases, embed = list(cases_of(random_samples("test", FIRST_CLIP, CLIPS))), Embedder(qwen)
    untrained = measure(RelevanceRealiser(), cases, embed, levels=True)["all"]
    trained = measure(qwen.realiser, cases, embed, levels=True)["all"]
    assert trained["cases"] > 150
    assert trained["recall"] > untrained["recall"] + 0.15
    assert trained["recall_small"] > 1.5 * untrained["recall_small"]
    assert trained["matched_iou"] > 1.6 * untrained["matched_iou"]
