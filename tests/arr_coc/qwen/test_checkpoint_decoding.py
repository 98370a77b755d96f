"""Decoding as a model's folder asks for it, and what a user's own options leave of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arr_coc.errors import ModelError
from arr_coc.hub import bundled_model_path
from arr_coc.qwen.checkpoint import check_folder
from arr_coc.qwen.checkpoint_decoding import CheckpointDecoding
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import Decoding
from arr_coc.types import Question
from stream.answer.model import CONFIGURED, ClientQuestion, ask_alone, load_answer_model
from stream.answer.qwen import QwenAnswerModel
from stream.config import AnswerConfig, Config
from tests.arr_coc.qwen.test_session import QUERY, packet
from tests.support.models import tiny_folder

QWEN2_5 = {"do_sample": True, "repetition_penalty": 1.05, "temperature": 1e-06, "top_p": 0.001, "top_k": 1}
QWEN3 = {"do_sample": True, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.0, "temperature": 0.7}
SAMPLING = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}


def completed(generation: dict[str, Any], chosen: dict[str, Any], source: Any = "auto") -> dict[str, Any]:
    return CheckpointDecoding.read(generation, "tiny").completed(chosen, source)


@pytest.mark.parametrize(
    ("chosen", "source", "expected"),
    [
        ({}, "auto", {}),
        ({"temperature": 0.0}, "auto", {"temperature": 0.0}),
        ({"temperature": 0.3}, "auto", SAMPLING | {"temperature": 0.3}),
        ({"temperature": 0.3, "top_p": 1.0, "top_k": 0}, "auto", {"temperature": 0.3, "top_p": 1.0, "top_k": 0}),
        ({}, "checkpoint", SAMPLING),
        ({"temperature": 0.0, "top_p": None}, "checkpoint", SAMPLING),
        ({"temperature": 0.3, "top_k": 5}, "checkpoint", SAMPLING | {"temperature": 0.3, "top_k": 5}),
        ({"top_k": 5}, "checkpoint", SAMPLING | {"top_k": 5}),
        ({"temperature": 0.3, "top_k": None}, "plain", {"temperature": 0.3}),
    ],
)
def test_sampling_of_the_folder(chosen: dict[str, Any], source: str, expected: dict[str, Any]) -> None:
    assert completed(QWEN3, chosen, source) == expected


@pytest.mark.parametrize(
    ("chosen", "source", "expected"),
    [
        ({}, "auto", {"repetition_penalty": 1.05}),
        ({}, "checkpoint", {"repetition_penalty": 1.05}),
        ({}, "plain", {}),
        ({"repetition_penalty": 1.0}, "auto", {"repetition_penalty": 1.0}),
        ({"temperature": 0.7}, "auto", {"repetition_penalty": 1.05, "temperature": 0.7}),
    ],
)
def test_penalties_of_the_folder(chosen: dict[str, Any], source: str, expected: dict[str, Any]) -> None:
    """Its `top_k` of 1 is not taken with a temperature: each draw would be the likeliest token."""
    assert completed(QWEN2_5, chosen, source) == expected


def test_penalties_of_presence_and_frequency_are_the_folders() -> None:
    own = {"presence_penalty": 1.5, "frequency_penalty": -0.5}
    assert completed(own, {"presence_penalty": None}) == own
    assert completed(own, {"presence_penalty": 0.0}) == {**own, "presence_penalty": 0.0}
    assert completed(own, {}, "plain") == {}
    assert completed({"presence_penalty": 0, "frequency_penalty": 0.0}, {}) == {}
    notice = CheckpointDecoding.read(own, "tiny").notice
    assert notice.endswith("unless answer.* does: presence_penalty 1.5, frequency_penalty -0.5")


@pytest.mark.parametrize("generation", [{}, {"do_sample": True, "top_k": -1, "top_p": 1.0}, {"min_p": None}])
def test_a_folder_that_asks_for_nothing(generation: dict[str, Any]) -> None:
    assert completed(generation, {}, "checkpoint") == {}
    assert CheckpointDecoding.read(generation, "tiny").notice == ""


def test_sampling_without_a_temperature_is_at_1() -> None:
    assert completed({"do_sample": True, "top_k": 20}, {}, "checkpoint") == {"temperature": 1.0, "top_k": 20}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("repetition_penalty", 0),
        ("repetition_penalty", "1.05"),
        ("repetition_penalty", True),
        ("presence_penalty", 2.5),
        ("frequency_penalty", "0.5"),
        ("temperature", -1),
        ("top_p", 1.5),
        ("top_k", 2.5),
        ("min_p", float("nan")),
        ("no_repeat_ngram_size", [3]),
    ],
)
def test_values_that_cannot_be_used_are_refused_with_the_folder(tmp_path: Path, key: str, value: object) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, key: value}))
    with pytest.raises(ModelError, match=f"^{key} in generation_config.json of tiny ") as refusal:
        check_folder(folder, "tiny")
    assert "\n" not in str(refusal.value)


def test_the_bundled_model_asks_for_nothing() -> None:
    assert check_folder(bundled_model_path(), "bundled").notices == ()
    assert load_qwen().checkpoint_decoding == CheckpointDecoding()


def loaded(folder: Path, **options: object) -> QwenAnswerModel:
    answer = AnswerConfig.model_validate({"model": str(folder), "max_tokens": 12, **options})
    model = load_answer_model(CONFIGURED, Config(answer=answer))
    assert isinstance(model, QwenAnswerModel)
    return model


def spoken(model: QwenAnswerModel) -> str:
    """The text of an answer, as a client gets it."""
    question = ClientQuestion(b"one", packet(), Question(QUERY))
    return ask_alone(model, question)


def test_a_run_decodes_as_its_folder_asks(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    plain = spoken(loaded(folder))
    own = QWEN3 | {"repetition_penalty": 1.3, "temperature": 1.9, "top_p": 0.95, "top_k": 40}
    (folder / "generation_config.json").write_text(json.dumps(own))
    penalised = spoken(loaded(folder))
    sampled = spoken(loaded(folder, decoding="checkpoint"))
    assert len({plain, penalised, sampled}) == 3
    assert spoken(loaded(folder, decoding="plain")) == plain
    assert spoken(loaded(folder, repetition_penalty=1.0)) == plain
    assert spoken(loaded(folder, decoding="checkpoint")) == sampled
    assert spoken(loaded(folder, decoding="checkpoint", seed=1)) != sampled
    model = loaded(folder)
    assert "repetition_penalty 1.3; generation_config.json asks for sampling" in model.notice
    assert "\n" not in model.notice


def test_a_run_has_the_folders_penalty_of_presence(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    (folder / "generation_config.json").write_text(json.dumps({"presence_penalty": 1.5}))
    assert loaded(folder)._session.options.decoding.presence_penalty == 1.5
    assert loaded(folder, presence_penalty=0.0)._session.options.decoding.presence_penalty == 0


def test_a_runs_own_options_are_those_of_its_answers(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "temperature": 0.7,
        "top_p": 0.8,
        "top_k": 20,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "presence_penalty": 1.5,
        "frequency_penalty": 0.5,
        "no_repeat_ngram_size": 4,
        "seed": 3,
        "stop_loops": False,
    }
    model = loaded(tiny_folder(tmp_path / "tiny"), **options)
    assert model._session.options.decoding == Decoding(12, **options)
    assert loaded(tmp_path / "tiny")._session.options.decoding == Decoding(12, stop_loops=True)
