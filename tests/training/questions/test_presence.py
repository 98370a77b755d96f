"""Questions whether something is there, and what is fitted to a model's answers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.yes_no import Calibration
from tests.support.models import tiny_folder
from training.calibration import MeasuredOdds, fit, measure, write
from training.questions.presence import KINDS, UNSEEN, Kind, presence_scenes


def test_scenes_ask_one_question_of_each_kind_and_are_the_same_each_time() -> None:
    scenes = list(presence_scenes(4, "train", 5))
    for scene, repeat in zip(scenes, presence_scenes(4, "train", 5), strict=True):
        assert tuple(presence.kind for presence in scene.questions) == KINDS
        assert [presence.there for presence in scene.questions] == [True, False, False, False, False]
        assert scene.image.dtype == np.uint8
        assert np.array_equal(scene.image, repeat.image)
        assert scene.questions == repeat.questions
    assert not np.array_equal(scenes[0].image, next(presence_scenes(1, "test", 5)).image)


def test_unseen_words_are_the_splits() -> None:
    for scene in presence_scenes(6, "test", 6):
        questions = {presence.kind: presence.question for presence in scene.questions}
        for kind in ("colour", "shape", "absurd"):
            assert any(f" {word}" in questions[kind] for word in UNSEEN["test"][kind])  # type: ignore[index]


def found(present: list[float], absent: list[float]) -> list[MeasuredOdds]:
    return [MeasuredOdds("present", "?", odds) for odds in present] + [
        MeasuredOdds("absent", "?", odds) for odds in absent
    ]


def test_odds_that_are_too_high_are_lowered() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 3, 4000)
    is_present = rng.random(4000) < 1 / (1 + np.exp(-truth))
    model_odds = truth / 2 + 1.5  # half as sure, and leaning towards yes
    fitted = fit(found(model_odds[is_present].tolist(), model_odds[~is_present].tolist()))
    assert fitted.scale == pytest.approx(2.0, abs=0.3)
    assert fitted.bias == pytest.approx(-3.0, abs=0.6)


def test_a_fit_is_finite_if_nothing_overlaps() -> None:
    fitted = fit(found([9.0, 10.0], [-9.0, -10.0]))
    assert 0 < fitted.scale < 10
    assert abs(fitted.bias) < 1


def test_a_rare_kind_counts_as_much_as_another() -> None:
    many = [MeasuredOdds("absent", "?", -2.0)] * 90 + [MeasuredOdds("absurd", "?", 2.0)] * 10
    present = [MeasuredOdds("present", "?", 2.0)] * 100
    balanced = fit([*present, *many])
    few = fit([*present, *many[:10], *many[90:]])
    assert balanced.scale == pytest.approx(few.scale, abs=1e-3)
    assert balanced.bias == pytest.approx(few.bias, abs=1e-3)


def test_measured_odds_are_the_models_own(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    tokens = json.loads((folder / "tokenizer.json").read_text())
    vocabulary_size = len(tokens["model"]["vocab"])
    tokens["added_tokens"] += [
        {**tokens["added_tokens"][-1], "id": vocabulary_size + number, "content": word, "special": False}
        for number, word in enumerate(("yes", "no"))
    ]
    (folder / "tokenizer.json").write_text(json.dumps(tokens))
    plain = [measurement.log_odds for measurement in measure(load_qwen(folder), presence_scenes(1, "train", 1))]
    write(folder, Calibration(0.5, 3.0))
    qwen = load_qwen(folder)
    assert qwen.yes_no_calibration == Calibration(0.5, 3.0)
    assert [measurement.log_odds for measurement in measure(qwen, presence_scenes(1, "train", 1))] == plain
    assert len(plain) == len(KINDS)


def test_a_fit_is_the_likeliest_line_where_most_odds_are_far_from_even() -> None:
    draw = np.random.default_rng(1).normal
    kinds: dict[Kind, tuple[float, float]] = {"present": (5.0, 2.2), "absent": (-5.2, 2.5), "colour": (2.2, 2.3)}
    odds = [
        MeasuredOdds(kind, "?", float(value))
        for kind, (mean, spread) in kinds.items()
        for value in draw(mean, spread, 120)
    ]
    fitted = fit(odds)
    assert 0.5 < fitted.scale < 1.5
    assert -4 < fitted.bias < -1
