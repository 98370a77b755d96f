"""The bundled model answers a fixed sub-suite no worse than its record says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer import Typer
from typer.testing import CliRunner

from evaluation import regression
from evaluation.errors import ResultsError
from evaluation.regression import ALL, RECORD, fixed_suites, load_bundled, measure, read_record, regressions
from evaluation.runner import ModelUnderTest
from evaluation.strategies.catalogue import STRATEGIES
from tests.support.evaluation import suite
from tests.support.models import tiny_qwen


@pytest.mark.skipif(not RECORD.is_file(), reason=f"no {RECORD.name} yet: python -m evaluation.regression --write")
def test_accuracy_has_not_fallen_by_more_than_its_interval() -> None:
    assert regressions(measure(load_bundled(), fixed_suites()), read_record()) == []


@pytest.fixture
def asking() -> ModelUnderTest:
    return ModelUnderTest(tiny_qwen(), "tiny", max_tokens=2)


def record(**accuracy: float) -> dict[str, Any]:
    return {
        "suites": {
            name: {"hash": "h", "count": 50, "accuracy": share, "low": share - 0.1, "high": share + 0.1}
            for name, share in accuracy.items()
        }
    }


def test_a_fall_inside_the_interval_is_none_and_beyond_it_is_reported() -> None:
    before = record(still=0.9, text=0.8)
    assert regressions(record(still=0.81, text=0.99), before) == []
    (line,) = regressions(record(still=0.79, text=0.8), before)
    assert line == "still: 79.0% right of 50, was 90.0% (80.0% to 100.0%)"


def test_other_questions_cannot_be_compared() -> None:
    before, now = record(still=0.9, text=0.8), record(still=0.9)
    now["suites"]["still"]["hash"] = "changed"
    assert [line.split(":")[0] for line in regressions(now, before)] == ["still", "text"]
    assert all("--write" in line for line in regressions(now, before))


def test_all_suites_are_measured_apart_and_together(asking: ModelUnderTest) -> None:
    measured = measure(asking, [suite(3, "one"), suite(2, "two")])
    assert {name: now["count"] for name, now in measured["suites"].items()} == {"one": 3, "two": 2, ALL: 5}
    assert measured["suites"]["one"]["hash"] == "hash"
    assert regressions(measured, measured) == []


def test_the_command_writes_compares_and_fails(
    asking: ModelUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "regression.json"
    monkeypatch.setattr(regression, "RECORD", path)
    monkeypatch.setattr(regression.read_record, "__defaults__", (path,))
    monkeypatch.setattr(regression, "load_bundled", lambda: asking)
    monkeypatch.setattr(regression, "fixed_suites", lambda: [suite(2, "one")])
    app = Typer()
    app.command()(regression.main)

    absent = CliRunner().invoke(app, [])
    assert absent.exit_code == regression.BAD_INPUT
    assert "there is no regression.json to compare with; make it with `python -m evaluation.regression" in absent.stderr
    assert CliRunner().invoke(app, ["--write"]).exit_code == 0
    same = CliRunner().invoke(app, [])
    assert same.exit_code == 0
    assert "one: 0.0% right of 2" in same.stdout
    record = json.loads(path.read_text())
    record["suites"]["one"] |= {"accuracy": 1.0, "low": 0.3, "high": 1.0}
    path.write_text(json.dumps(record))
    worse = CliRunner().invoke(app, [])
    assert worse.exit_code == regression.FELL
    assert "one: 0.0% right of 2, was 100.0%" in worse.stderr
    path.write_text("{}")
    with pytest.raises(ResultsError, match="is no record of accuracy"):
        read_record(path)


def test_the_default_way_is_the_projects_own() -> None:
    assert regression.STRATEGY in STRATEGIES
    assert sum(regression.COUNTS.values()) >= 200
