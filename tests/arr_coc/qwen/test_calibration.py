"""Calibration of a model's odds of yes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from arr_coc.errors import ModelError
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.yes_no import NEUTRAL, Calibration, YesNoTokens, score_logits
from tests.support.models import tiny_folder, tiny_qwen


def odds(log_odds: float) -> torch.Tensor:
    """Logits of yes, no and everything else."""
    return torch.tensor([log_odds, 0.0, -20.0], dtype=torch.float64)


@pytest.mark.parametrize("log_odds", [-3.0, 0.0, 2.0])
def test_the_odds_are_scaled_and_moved(log_odds: float) -> None:
    tokens = YesNoTokens((0,), (1,))
    score = score_logits(odds(log_odds), tokens, Calibration(scale=1.5, bias=-2.0))
    assert score.yes == pytest.approx(1 / (1 + math.exp(-(1.5 * log_odds - 2))))
    assert score.raw_log_odds == pytest.approx(log_odds)
    assert score.mass == score_logits(odds(log_odds), tokens).mass
    assert score_logits(odds(log_odds), tokens).yes == pytest.approx(1 / (1 + math.exp(-log_odds)))


def test_a_model_without_a_calibration_is_uncalibrated() -> None:
    assert tiny_qwen().yes_no_calibration == NEUTRAL


def test_a_calibration_is_loaded_with_the_model(tmp_path: Path) -> None:
    qwen = load_qwen(tiny_folder(tmp_path, arr_coc_yes_no={"scale": 2, "bias": -1.5}))
    assert qwen.yes_no_calibration == Calibration(2.0, -1.5)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [1, 2],
        "1",
        {"scale": 1},
        {"scale": 0, "bias": 0},
        {"scale": -1.0, "bias": 0},
        {"scale": "1", "bias": 0},
        {"scale": True, "bias": 0},
        {"scale": 1, "bias": math.nan},
        {"scale": math.inf, "bias": 0},
    ],
)
def test_an_invalid_calibration_is_refused(value: Any) -> None:
    with pytest.raises(ModelError, match=r"arr_coc_yes_no in the config\.json of m must be .*training\.calibration"):
        Calibration.read(value, "m")
