"""Recap by a scripted model: bounded pieces, and times that are the file's whatever the model writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from stream.extensions.past import recap as recapping
from stream.extensions.past.moments import MATCH, OUTAGE
from stream.extensions.past.recap import (
    PIECES_MAX,
    STATEMENTS_MAX,
    Recap,
    RecapProgress,
    Statement,
    day_time,
    read_moments,
)
from stream.extensions.past.search import FoundMoment, PastReader, Search
from tests.support.past import BEGIN_MS, DOOR, HOUR_MS, moment, written


@dataclass
class ScriptedModel:
    """A token is a word; answers are numbered, and contain a time that the model invents."""

    prompt_tokens: int = 3000
    name: str = "scripted"
    known_world: str | None = None
    prompts: list[str] = field(default_factory=list)

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def complete(self, prompt: str) -> str:
        assert self.count_tokens(prompt) <= self.prompt_tokens
        self.prompts.append(prompt)
        return f"statement {len(self.prompts)}\nat 99:99"


def moments_of(path: Path, *moments: object) -> list[FoundMoment]:
    file = written(path / "past.sqlite", moments)  # type: ignore[arg-type]
    with closing(PastReader(file)) as reader:
        return read_moments(reader, Search())[0]


def noted(prompt: str) -> list[str]:
    return re.findall(r"^\d\d:\d\d.*$", prompt, re.MULTILINE)


def test_a_short_time_is_one_statement_with_the_times_of_its_moments(tmp_path: Path) -> None:
    model = ScriptedModel()
    moments = moments_of(tmp_path, *(moment(number, f"car {number}") for number in range(1, 4)))
    assert list(Recap(moments, model).statements()) == [
        Statement("yard", BEGIN_MS + 1000, BEGIN_MS + 3000, 3, "statement 1 at 99:99")
    ]
    (prompt,) = model.prompts
    assert 'the camera "yard"' in prompt
    assert noted(prompt) == [f"{day_time(BEGIN_MS)} car {number}" for number in range(1, 4)]


def test_kinds_are_marked_and_long_texts_are_cut(tmp_path: Path) -> None:
    model = ScriptedModel()
    moments = moments_of(
        tmp_path,
        moment(1, "gate: open?", kind=MATCH),
        moment(2, "source lost: gone", kind=OUTAGE),
        moment(3, "word\n" * 500),
    )
    list(Recap(moments, model).statements())
    match, outage, answer = noted(model.prompts[0])
    assert match.endswith("(event) gate: open?")
    assert outage.endswith("(no picture) source lost: gone")
    assert len(answer) < 420
    assert answer.endswith("…")


def test_long_times_are_pieces_that_fit_the_model(tmp_path: Path) -> None:
    model = ScriptedModel(prompt_tokens=100)
    moments = moments_of(tmp_path, *(moment(60 * number, f"a red car number {number}") for number in range(1, 51)))
    statements = list(Recap(moments, model).statements())
    pieces = [statement for statement in statements if statement.level == "piece"]
    assert 3 < len(pieces) <= STATEMENTS_MAX
    assert sum(statement.moments for statement in pieces) == 50
    assert all(before.until_ms < after.since_ms for before, after in pairwise(pieces))
    total = statements[-1]
    assert (total.level, total.camera, total.moments) == ("all", "", 50)
    assert (total.since_ms, total.until_ms) == (pieces[0].since_ms, pieces[-1].until_ms)


def test_an_hour_without_a_moment_begins_a_new_piece(tmp_path: Path) -> None:
    late_ms = BEGIN_MS + 2 * HOUR_MS
    moments = moments_of(tmp_path, moment(1), moment(2), moment(3, unix_ms=late_ms))
    statements = list(Recap(moments, ScriptedModel()).statements())
    assert [(statement.since_ms, statement.moments) for statement in statements[:-1]] == [
        (BEGIN_MS + 1000, 2),
        (late_ms, 1),
    ]


def test_each_camera_has_its_own_statements(tmp_path: Path) -> None:
    model = ScriptedModel()
    moments = moments_of(tmp_path, moment(1, "car"), moment(2, "person", DOOR), moment(3, "dog"))
    statements = list(Recap(moments, model).statements())
    assert [(statement.camera, statement.moments, statement.level) for statement in statements] == [
        ("door", 1, "piece"),
        ("yard", 2, "piece"),
        ("", 3, "all"),
    ]
    assert "person" not in model.prompts[1]
    assert "door: statement 1 at 99:99" in model.prompts[2]


def test_too_many_statements_are_summarised_again_with_their_times(tmp_path: Path) -> None:
    moments = moments_of(
        tmp_path, *(moment(number, unix_ms=BEGIN_MS + 2 * HOUR_MS * number) for number in range(1, 31))
    )
    model, progress = ScriptedModel(), list[RecapProgress]()
    statements = list(Recap(moments, model, progress.append).statements())
    pieces = [statement for statement in statements if statement.level == "piece"]
    assert len(pieces) <= STATEMENTS_MAX
    assert sum(statement.moments for statement in statements[:-1]) == 30
    assert [statement.since_ms for statement in pieces] == sorted(statement.since_ms for statement in pieces)
    assert (pieces[0].since_ms, pieces[-1].until_ms) == (moments[0].unix_ms, moments[-1].last_ms)
    assert [statement.replies for statement in progress] == [*range(len(model.prompts))]
    assert progress[-1].requests == len(model.prompts)


def test_of_very_many_moments_some_are_left_out_evenly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recapping, "PIECES_MAX", 4)
    assert PIECES_MAX > 4
    moments = moments_of(tmp_path, *(moment(60 * number, "word " * 20) for number in range(1, 201)))
    model = ScriptedModel(prompt_tokens=150)
    recap = Recap(moments, model)
    statements = list(recap.statements())
    assert recap.left_out > 100
    assert sum(statement.moments for statement in statements[:-1]) + recap.left_out == 200
    assert statements[0].since_ms == moments[0].unix_ms
    assert statements[-1].until_ms > moments[-20].unix_ms


def test_the_statement_about_everything_fits_the_model_too(tmp_path: Path) -> None:
    moments = moments_of(tmp_path, *(moment(number, unix_ms=BEGIN_MS + 2 * HOUR_MS * number) for number in range(1, 9)))
    model = ScriptedModel(prompt_tokens=75)
    statements = list(Recap(moments, model).statements())
    assert statements[-1].level == "all"
    assert statements[-1].moments == 8
    assert (statements[-1].since_ms, statements[-1].until_ms) == (moments[0].unix_ms, moments[-1].last_ms)


@pytest.mark.parametrize("most", [2500, 2000])
def test_moments_are_read_page_by_page_up_to_a_limit(
    tmp_path: Path, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recapping, "MOMENTS_MAX", most)
    path = written(tmp_path / "past.sqlite", [moment(number) for number in range(2500)])
    with closing(PastReader(path)) as reader:
        moments, has_more = read_moments(reader, Search())
    assert [item.unix_ms for item in moments] == [BEGIN_MS + 1000 * number for number in range(2500 - most, 2500)]
    assert has_more == (most < 2500)


def test_braces_and_instructions_in_a_text_stay_text(tmp_path: Path) -> None:
    model = ScriptedModel()
    list(Recap(moments_of(tmp_path, moment(1, "{notes} {camera} {0}")), model).statements())
    assert "{notes} {camera} {0}" in model.prompts[0]


def test_a_failure_of_the_model_ends_the_recap(tmp_path: Path) -> None:
    def fail(_: str) -> str:
        raise ValueError("no")

    model: ScriptedModel = ScriptedModel()
    failing: Callable[[str], str] = fail
    model.complete = failing  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="no"):
        list(Recap(moments_of(tmp_path, moment(1)), model).statements())
