"""`bench` on the command line: its options, and the mistakes that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stream.cli import main
from stream.errors import StageDied
from stream.extensions.bench.measure import BenchPlan, BenchResult
from stream.extensions.bench.report import report
from stream.extensions.bench.series import Series
from tests.extensions.bench.test_report import recorded


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[BenchPlan]:
    """The plans that are asked for; each is answered with runs that were made by hand."""
    recorded_plans: list[BenchPlan] = []

    def measure(plan: BenchPlan, on_run: Any) -> BenchResult:
        recorded_plans.append(plan)
        for number, name in plan.turns():
            on_run(number, name)
        runs = tuple(report(recorded(101)) for _ in range(plan.runs))
        return BenchResult(tuple(Series(name, config, runs) for name, config in plan.configs.items()), False)

    monkeypatch.setattr("stream.extensions.bench.measure.measure", measure)
    return recorded_plans


def test_one_run_of_one_configuration_is_the_default(
    plans: list[BenchPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "scene:demo"]) == 0
    (plan,) = plans
    assert (list(plan.configs), plan.runs, plan.limit_s, plan.warmup_s) == (["A"], 1, None, 1.0)
    assert plan.configs["A"].pipeline.answers == "newest"
    assert "run 1" not in capsys.readouterr().err


def test_runs_limit_and_warm_up_are_taken(plans: list[BenchPlan], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scene:demo", "--runs", "3", "--for", "1m", "--warmup", "2s"]) == 0
    assert (plans[0].runs, plans[0].limit_s, plans[0].warmup_s) == (3, 60, 2)
    assert "run 3 of 3\n" in capsys.readouterr().err


def test_a_comparison_changes_keys_of_the_same_configuration(
    plans: list[BenchPlan], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, report_path = tmp_path / "other.toml", tmp_path / "b.json"
    other.write_text("[allocate]\nbudget = 64\nstrategy = 'topk'\n", encoding="utf-8")
    options = [
        "--every",
        "1",
        "--against",
        str(other),
        "--against-set",
        "allocate.budget=32",
        "--json",
        str(report_path),
    ]
    assert main(["bench", "scene:demo", *options]) == 0
    a, b = plans[0].configs["A"], plans[0].configs["B"]
    assert (a.allocate.budget, a.allocate.strategy) == ("auto", "auto")
    assert (b.allocate.budget, b.allocate.strategy, b.answer.every_s) == (32, "topk", 1)
    assert plans[0].runs == 5
    document = json.loads(report_path.read_text(encoding="utf-8"))
    assert [series["name"] for series in document["series"]] == ["A", "B"]
    captured = capsys.readouterr()
    assert "run 5 of 5 of B\n" in captured.err
    assert "allocate.budget: A auto, B 32" in captured.out


def test_files_to_compare_with_are_merged_and_the_last_wins(plans: list[BenchPlan], tmp_path: Path) -> None:
    first_file, second_file = tmp_path / "one.toml", tmp_path / "two.toml"
    first_file.write_text("[allocate]\nbudget = 64\nstrategy = 'topk'\n", encoding="utf-8")
    second_file.write_text("[allocate]\nbudget = 32\n", encoding="utf-8")
    assert main(["bench", "scene:demo", "--against", str(first_file), "--against", str(second_file)]) == 0
    b = plans[0].configs["B"]
    assert (b.allocate.budget, b.allocate.strategy) == (32, "topk")


@pytest.mark.parametrize("option", ["-c", "--against"])
def test_no_configuration_file_is_overwritten(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first_file, second_file = tmp_path / "one.toml", tmp_path / "two.toml"
    for path in (first_file, second_file):
        path.write_text("[allocate]\nbudget = 64\n", encoding="utf-8")
    assert (
        main(["bench", "scene:demo", option, str(first_file), option, str(second_file), "--json", str(second_file)])
        == 2
    )
    assert "is the input; it would be overwritten" in capsys.readouterr().err
    assert second_file.read_text(encoding="utf-8").startswith("[allocate]")


def test_figures_before_a_failure_are_shown_and_the_failure_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(plan: BenchPlan, on_run: Any) -> BenchResult:
        series = Series("A", plan.configs["A"], (report(recorded(101)),))
        return BenchResult((series,), False, failure=StageDied("answer", "it fell"))

    monkeypatch.setattr("stream.extensions.bench.measure.measure", measure)
    assert main(["bench", "scene:demo", "--runs", "2"]) == 1
    captured = capsys.readouterr()
    assert "fps" in captured.out
    assert captured.err.splitlines()[-1] == "error: the answer stage died: it fell"


def test_a_stopped_measurement_has_the_status_of_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(plan: BenchPlan, on_run: Any) -> BenchResult:
        return BenchResult((Series("A", plan.configs["A"], (report(recorded(9)),)),), False, interrupted=True)

    monkeypatch.setattr("stream.extensions.bench.measure.measure", measure)
    assert main(["bench", "scene:demo"]) == 130


def test_a_picture_needs_matplotlib(
    plans: list[BenchPlan], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stream.extensions.bench.command.find_spec", lambda name: None)
    assert main(["bench", "scene:demo", "--png", "x.png"]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert plans == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-", "--runs", "2"], "standard input can be read only once, not 2 times"),
        (["-", "--against-set", "allocate.budget=64"], "standard input can be read only once, not 10 times"),
        (["scene:demo", "--runs", "0"], "--runs needs a whole number of at least 1; got '0'"),
        (["scene:demo", "--for", "soon"], "--for needs a length of time above 0"),
        (
            ["scene:demo", "--json", "one.png", "--png", "./one.png"],
            "output './one.png' is given twice, as 'one.png' and './one.png'",
        ),
        (["scene:demo", "--png", "x.foo"], "output 'x.foo' has suffix '.foo'; the picture can be .png"),
        (["scene:demo", "--png", "x"], "output 'x' has no suffix; the picture can be .png"),
        (["scene:demo", "--png", "/no/such/x.png"], "there is no folder '/no/such'"),
        (["scene:demo", "--json", "/"], "cannot write '/': it is a folder"),
        (["scene:demo", "--against-set", "answer.every_s=2.0"], "nothing to compare: --against changes no key"),
        (["scene:demo", "--budget", "9", "-c", "file", "--against", "file"], "nothing to compare"),
        (["scene:demo", "--warmup", "-1"], "--warmup needs a length of time above 0"),
        (["scene:demo", "--against", "absent.toml"], "no configuration file 'absent.toml'"),
        (["scene:demo", "--against-set", "budget"], "--against-set needs KEY=VALUE"),
        (["scene:demo", "--against-set", "allocate.budgt=3"], "did you mean allocate.budget?"),
    ],
)
def test_invalid_options_are_reported_in_one_line_before_any_run(
    options: list[str], message: str, plans: list[BenchPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *options]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert plans == []
