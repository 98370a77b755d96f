"""Words that a model of a small world has never seen."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.hub import bundled_model_path
from arr_coc.qwen.checkpoint import folder_token_ids, unseen_words
from arr_coc.qwen.loading import load_qwen
from stream.scenes.drawing import COLOURS, SHAPE_NAMES
from tests.support.models import tiny_qwen
from training.questions.presence import UNSEEN, presence_scenes

BUNDLED = folder_token_ids(bundled_model_path())


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("is there a red circle?", ()),
        ("Is there a purple elephant?", ("elephant",)),
        ("is there a Dog, a dog or a CAT on the left?", ("dog", "or")),
        ("is there a word STOP?", ()),
        ("I see 12 red squares!", ()),
        ("ist da ein Elefant?", ("ist", "da", "ein", "elefant")),
        ("есть ли кот?", ("есть", "ли", "кот")),
        ("", ()),
    ],
)
def test_words_that_take_several_tokens(question: str, words: tuple[str, ...]) -> None:
    assert unseen_words(question, BUNDLED) == words


def test_all_words_of_the_drawn_world_are_known() -> None:
    for colour in COLOURS:
        for shape in SHAPE_NAMES:
            assert unseen_words(f"Is there a {colour} {shape}? Do you see an {shape}?", BUNDLED) == ()


@pytest.mark.parametrize("split", ["train", "test"])
def test_unseen_words_of_the_suites_are_unseen(split: str) -> None:
    words = [word for kind in UNSEEN[split].values() for word in kind]  # type: ignore[index]
    assert [word for word in words if not unseen_words(word, BUNDLED)] == []
    assert not set(words) & {
        word for other, kinds in UNSEEN.items() if other != split for kind in kinds.values() for word in kind
    }


def test_questions_of_the_drawn_world_are_not_refused() -> None:
    for scene in presence_scenes(6, "test", 3):
        for item in scene.questions:
            refused = bool(unseen_words(item.question, BUNDLED))
            assert refused == (item.kind in ("colour", "shape", "absurd")), item


def test_a_general_model_knows_every_word() -> None:
    assert tiny_qwen().unseen_words("is there a purple elephant?") == ()
    bundled = load_qwen()
    assert bundled.unseen_words("is there a purple elephant?") == ("elephant",)
    assert np.array_equal(bundled.plain_token_ids(" purple"), BUNDLED(" purple"))
