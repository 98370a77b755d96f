"""The allocator that comes with the bundled model: it is that model's own, and finds what is asked about."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from picture_stream import PictureStream

from arr_coc.allocator import AllocatorOptions, StreamAllocator
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


def grain(rng: np.random.Generator) -> np.ndarray:
    """White noise of 4 pixels, gray: uint8 [384, 640, 3]."""
    values = rng.integers(0, 256, (96, 160, 1), dtype=np.uint8)
    return np.tile(values.repeat(4, axis=0).repeat(4, axis=1), 3)


def test_the_void_guard_judges_the_picture_not_what_was_learned_of_its_places(qwen: QwenVL) -> None:
    """The trained scorers make structured maps of white noise."""
    rng = np.random.default_rng(5)
    thing = np.full((384, 640, 3), 120, np.uint8)
    thing[100:150, 400:450] = (220, 40, 40)
    for picture, strategy in [
        *((grain(rng), "grid") for _ in range(3)),
        (thing, "foveated"),
    ]:
        allocator = StreamAllocator(AllocatorOptions(budget=64, levels=True), qwen.realiser)
        allocator.set_query(qwen.embed_query("Say what happens."))
        assert allocator.allocate(PictureStream().show(picture)).strategy == strategy


def document(seed: int) -> np.ndarray:
    """A page with broad margins, a heading and paragraphs: uint8 [960, 1280, 3]."""
    rng, page = np.random.default_rng(seed), np.full((960, 1280, 3), 250, np.uint8)
    cv2.putText(page, "A HEADING", (160, 180), cv2.FONT_HERSHEY_DUPLEX, 1.2, (20, 20, 20), 2, cv2.LINE_AA)
    for y in range(230, 800, 21):
        letters = "".join(chr(97 + int(code)) for code in rng.integers(0, 26, 85))
        cv2.putText(page, letters, (160, y), cv2.FONT_HERSHEY_SIMPLEX, 0.6, (30, 30, 30), 1, cv2.LINE_AA)
    return page


@pytest.mark.parametrize(
    "question", ["What does the text say?", "What colour is the circle?", "How many words are there?"]
)
def test_fixation_looks_at_the_print_of_a_document_not_at_its_margins(qwen: QwenVL, question: str) -> None:
    for seed in (0, 1):
        page = document(seed)
        allocator = StreamAllocator(AllocatorOptions("fixation", budget=100, levels=True), qwen.realiser)
        allocator.set_query(qwen.embed_query(question))
        levels = allocator.allocate(PictureStream().show(page)).levels
        printed = page.reshape(30, 32, 40, 32, 3).min(axis=(1, 3, 4)) < 128
        assert printed[levels == 0].mean() > 0.55
