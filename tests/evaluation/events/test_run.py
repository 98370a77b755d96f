"""Runs of the suite: each strategy and condition answers at each point."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import TILE_PX
from evaluation.errors import ChoiceError
from evaluation.events.asking import zone_of
from evaluation.events.run import Way, answer_clip, main
from evaluation.events.sets import set_clips
from evaluation.events.strategies import CONDITIONS, Condition, begin
from evaluation.strategies.base import Budget

BUDGET = Budget.parse("27%")


@pytest.fixture(scope="module")
def qwen() -> QwenVL:
    return load_qwen(None, device="cpu")


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("strategy", ["memory", "snapshot"])
def test_a_clip_is_answered_at_each_point(qwen: QwenVL, strategy: str, condition: Condition) -> None:
    clips = set_clips("choose", ("leaves",))
    number, clip = next((number, clip) for number, clip in clips if zone_of(clip, TILE_PX) is not None)
    rows = answer_clip(qwen, Way(strategy, BUDGET, condition), clip, number)
    assert [row["frame"] for row in rows] == list(clip.schedule.answers)
    assert all(row["text"] and row["condition"] == condition for row in rows)


def test_other_suites_strategies_see_the_answered_frames(qwen: QwenVL) -> None:
    ((number, clip),) = set_clips("choose", ("comes",), 1)
    rows = answer_clip(qwen, Way("full", BUDGET, "watch"), clip, number)
    assert [row["frame"] for row in rows] == list(clip.schedule.answers)


def test_a_strategy_that_does_not_know_a_condition_is_refused(qwen: QwenVL) -> None:
    with pytest.raises(ChoiceError, match="grid does not know zone"):
        begin(qwen, "grid", BUDGET, "zone", None, "")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--set", "other", "--set knows choose, report"), ("--kind", "jumps", "--kind knows moves")],
)
def test_unknown_names_are_refused(option: str, value: str, message: str, tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, [option, value, "--out", str(tmp_path / "out.json")])
    assert result.exit_code == 2
    assert message in result.output
