"""The bundled model: loads without a warning, and is right about the drawn scenes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForImageTextToText, AutoTokenizer

from arr_coc.budget import DEFAULT_BUDGET
from arr_coc.model import ARRCOCQwen
from stream.config import DEFAULT_QUERY
from stream.scenes import Scene, load_scene
from training.model.tokenizer import scenes_tokenizer

FOLDER = Path(__file__).resolve().parents[2] / "models" / "scenes-tiny"
ANSWER_EVERY_S = 0.75


@pytest.fixture(scope="module")
def model() -> ARRCOCQwen:
    return ARRCOCQwen.from_pretrained(FOLDER)


def things_right(model: ARRCOCQwen, scene: Scene, budget: int) -> list[bool]:
    """For every thing at every answer point: whether the caption names its colour, shape and movement."""
    right = []
    for frame_index in range(0, scene.frames, round(ANSWER_EVERY_S * scene.fps)):
        text = model.generate(scene.render(frame_index), DEFAULT_QUERY, budget=budget).text
        right += [thing.phrase in text for thing in scene.facts(frame_index).things]
    return right


@pytest.mark.parametrize("budget", [64, DEFAULT_BUDGET])
def test_captions_of_the_demo_are_right_about_colour_shape_and_movement(model: ARRCOCQwen, budget: int) -> None:
    right = things_right(model, load_scene("demo"), budget)
    assert len(right) > 30
    assert np.mean(right) >= 0.9


@pytest.mark.parametrize("name", ["static", "noise", "pan", "cuts", "moving"])
def test_captions_of_the_other_scenes_are_mostly_right(model: ARRCOCQwen, name: str) -> None:
    assert np.mean(things_right(model, load_scene(name), 64)) >= 0.6


def test_questions_about_the_demo(model: ARRCOCQwen) -> None:
    scene = load_scene("demo")
    right = []
    for frame_index in range(6, 90, 12):
        image, facts = scene.render(frame_index), scene.facts(frame_index)
        circle = facts.things[0]
        for question, answer in (
            ("What is the blue thing?", "a square."),
            ("Where is the red circle?", f"{circle.place(facts.width_px, facts.height_px)}."),
            ("Which way does the circle move?", "it moves right."),
            ("How many things are there?", "two."),
            ("Is there a red circle?", "yes."),
        ):
            right.append(model.generate(image, question, budget=64).text == answer)
    assert np.mean(right) >= 0.85


def test_any_question_is_answered_without_an_error(model: ARRCOCQwen) -> None:
    image = np.zeros((200, 300, 3), np.uint8)
    for question in (".", "naïve 你好 🎉", "<|im_end|><|image_pad|>", "x" * 3000):
        assert isinstance(model.generate(image, question, max_tokens=8).text, str)


def test_transformers_loads_it_as_it_is(recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture) -> None:
    model, info = AutoModelForImageTextToText.from_pretrained(FOLDER, output_loading_info=True)
    assert not any(info[kind] for kind in info)
    assert not recwarn.list
    assert not caplog.records
    assert model.config.arr_coc_levels is True
    assert model.config.arr_coc_world == "drawn scenes"
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_its_tokenizer_is_the_one_that_training_makes() -> None:
    bundled, expected = AutoTokenizer.from_pretrained(FOLDER), scenes_tokenizer()
    assert bundled.get_vocab() == expected.get_vocab()
    assert bundled.chat_template == expected.chat_template
    text = "Say what happens. a red number 42 moves left."
    assert bundled(text)["input_ids"] == expected(text)["input_ids"]


def test_its_files_are_small_and_name_their_origin() -> None:
    shards = list(FOLDER.glob("*.safetensors"))
    assert shards
    for shard in shards:
        assert shard.stat().st_size <= 15e6
        with safe_open(shard, "pt") as weights:
            assert len(list(weights.keys())) > 0
    card = (FOLDER / "README.md").read_text("utf-8")
    assert card.startswith("---\n")
    assert "license: apache-2.0" in card
    assert json.loads((FOLDER / "preprocessor_config.json").read_text("utf-8"))["patch_size"] == 16
