"""Drawn examples of the compare page, which texts are right about them, and the scene that is shown first."""

from __future__ import annotations

import pytest

from arr_coc.model import ARRCOCQwen
from stream.extensions.web.comparison.worker import is_right
from stream.scenes.catalogue import load_scene
from stream.scenes.stills import STILLS, KnownAnswer, Still


@pytest.fixture(scope="module")
def bundled() -> ARRCOCQwen:
    return ARRCOCQwen.from_pretrained()


@pytest.mark.parametrize("still", [still for still in STILLS if not still.general], ids=lambda still: still.name)
@pytest.mark.parametrize("encode", ["full", "sparse"])
def test_the_bundled_model_answers_the_first_examples_right(bundled: ARRCOCQwen, still: Still, encode: str) -> None:
    assert still.answer is not None
    text = bundled.generate(still.draw(), still.question, 48, encode=encode).text  # type: ignore[arg-type]
    assert is_right(text, still.answer), text


@pytest.mark.parametrize("budget", ["auto", 64])
def test_the_bundled_model_describes_the_demo_right(bundled: ARRCOCQwen, budget: int | str) -> None:
    scene = load_scene("demo")
    for start in (0, *scene.cuts):
        for frame in range(start, min([scene.frames, *(cut for cut in scene.cuts if cut > start)]), scene.fps):
            text = bundled.generate(scene.render(frame), "Say what happens.", 48, budget).text
            assert text == scene.facts(frame).caption, frame


def test_examples_for_larger_models_come_last() -> None:
    general = [still.general for still in STILLS]
    assert general == sorted(general)
    assert len({still.name for still in STILLS}) == len(STILLS)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Top left.", True),
        ("The star is in the upper-left corner.", True),
        ("left, and at the top", False),
        ("stop left", False),
        ("top left, or rather not", False),
        ("", False),
    ],
)
def test_a_text_is_right_if_it_has_every_part_and_nothing_denied(text: str, right: bool) -> None:
    assert is_right(text, KnownAnswer("top left", ("top left|upper left",), ("rather not",))) is right


def test_the_known_answer_is_right_itself() -> None:
    assert all(is_right(still.answer.text, still.answer) for still in STILLS if still.answer is not None)
