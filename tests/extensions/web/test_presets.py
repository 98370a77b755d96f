"""Questions that the live page offers: those for a model of drawn scenes are answered right by the bundled one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stream.extensions.web
from arr_coc.model import ARRCOCQwen
from stream.answer.agreement import words_of
from stream.config import AnswerConfig, Config
from stream.events import Started
from stream.monitor.health import RunMonitor
from stream.scenes.catalogue import load_scene
from tests.support.web import ServedPage, Visit

PAGE = Path(stream.extensions.web.__file__).parent / "page" / "live.html"

ANSWERS = {
    "Say what happens.": ("a red circle moves right and a blue square stays still.", "a green star moves up and"),
    "How many things are there?": ("two.", "two."),
    "Where is the square?": ("bottom right.", "right."),
    "What colour is the square?": ("blue.", "black."),
    "Is there a red circle?": ("yes.", "no."),
    "What shape is blue?": ("a square.", "nothing is blue."),
}
"""Questions, and how the answers begin: about the first and the second shot of `scene:demo`."""

SHOTS_S = (1.0, 5.5)


def presets(name: str) -> list[str]:
    (options,) = re.findall(f'<datalist id="{name}">(.*?)</datalist>', PAGE.read_text(encoding="utf-8"))
    return re.findall('value="(.*?)"', options)


def test_the_bundled_model_answers_each_preset_right() -> None:
    assert presets("scene-presets") == list(ANSWERS)
    model, scene = ARRCOCQwen.from_pretrained(), load_scene("demo")
    for question, expected in ANSWERS.items():
        for at_s, beginning in zip(SHOTS_S, expected, strict=True):
            text = model.generate(scene.render(round(at_s * scene.fps)), question).text
            assert words_of(text)[: len(words_of(beginning))] == words_of(beginning), (question, text)


@pytest.mark.parametrize(("model", "name"), [(None, "scene-presets"), ("owner/model", "presets")])
def test_the_page_offers_what_the_model_knows(run: ServedPage, visit: Visit, model: str | None, name: str) -> None:
    run.monitor = RunMonitor(Config(answer=AnswerConfig(model=model)))
    run.hub.begin(run.monitor)
    run.emit(Started(source="camera", model="fake", query="What?", backend="cpu"))
    visit.page.goto(run.url)
    visit.page.locator("#facts", has_text="fake").wait_for()
    assert visit.page.locator("#question").get_attribute("list") == name
