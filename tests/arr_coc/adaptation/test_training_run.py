"""The course of a training run: its rate, its figures, and its curve after a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from arr_coc.adaptation.training_run import CHECKPOINT, CURVE, Length, Means, TrainingRun, schedule
from arr_coc.errors import ModelError


def course(folder: Path, purpose: str = "one") -> TrainingRun:
    return TrainingRun(folder, Length(minutes=1.0), {"layer": nn.Linear(2, 2)}, {"how": purpose})


def test_the_rate_rises_then_falls() -> None:
    rates = [schedule(share / 100) for share in range(101)]
    assert rates[0] < 0.1
    assert max(rates) == rates[1] == pytest.approx(1.0)
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[-1] == pytest.approx(0.01)


def test_the_rate_may_stay_until_the_last_part() -> None:
    rates = [schedule(share / 100, falls_from=0.7) for share in range(101)]
    assert rates[1:71] == [pytest.approx(1.0)] * 70
    assert rates[70:] == sorted(rates[70:], reverse=True)
    assert rates[85] == pytest.approx(0.505, abs=0.01)
    assert rates[-1] == pytest.approx(0.01)


def test_a_course_may_be_counted_in_steps(tmp_path: Path) -> None:
    counted = TrainingRun(tmp_path, Length(minutes=1e-9, steps=4), {}, {})
    for step in range(4):
        assert counted.progress == step / 4
        with counted.step():
            pass
    assert counted.progress == 1


def test_means_leave_out_what_is_not_there() -> None:
    means = Means()
    means.add(answer=2.0, token=1.0)
    means.add(answer=None, token=3.0)
    assert means.take() == {"answer": 2.0, "token": 2.0}
    assert means.take() == {}


@pytest.mark.parametrize("name", [CHECKPOINT, CURVE])
def test_a_run_does_not_begin_over_an_earlier_one(tmp_path: Path, name: str) -> None:
    course(tmp_path).begin()
    (tmp_path / name).write_bytes(b"days of work")
    with pytest.raises(ModelError, match=f"holds the {name} of an earlier run; give --resume, or a new folder"):
        course(tmp_path).begin()
    assert (tmp_path / name).read_bytes() == b"days of work"


def test_a_resumed_curve_holds_what_the_checkpoint_holds(tmp_path: Path) -> None:
    before = course(tmp_path)
    for loss in (3.0, 2.0, 1.0):
        with before.step():
            pass
        before.note({"loss": loss})
        if loss == 2.0:
            before.save()
    after = course(tmp_path)
    after.resume()
    assert (after.steps, after.progress) == (2, pytest.approx(after.spent_s / 60))
    assert [json.loads(line)["loss"] for line in (tmp_path / CURVE).read_text().splitlines()] == [3.0, 2.0]


def test_a_checkpoint_made_for_something_else_is_refused_and_leaves_the_curve(tmp_path: Path) -> None:
    run = course(tmp_path)
    run.save()
    with run.step():
        pass
    run.note({"loss": 1.0})
    with pytest.raises(ModelError, match="made in another way"):
        course(tmp_path, purpose="another").resume()
    torch.save([1, 2], tmp_path / CHECKPOINT)
    with pytest.raises(ModelError, match="begin anew in another folder"):
        course(tmp_path).resume()
    assert (tmp_path / CURVE).read_text().count("\n") == 1
