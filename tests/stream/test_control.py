"""How a run is told to stop, and what its failures are called."""

from __future__ import annotations

import pytest

from arr_coc.errors import ModelError, ModelNotFound, NonFiniteError
from stream.control import FOUND, CancelledError, RunControl, describe, failure_of, remote_error
from stream.errors import SourceError, SourceNotFound, StageDied


def test_a_control_knows_how_the_run_ends() -> None:
    control = RunControl()
    assert control.outcome == "finished"
    control.check()
    control.end()
    assert control.outcome == "interrupted"
    control.check()
    control.cancel()
    assert control.outcome == "cancelled"
    with pytest.raises(CancelledError):
        control.check()


def test_a_run_that_found_what_it_watched_for_ends_with_that() -> None:
    control = RunControl()
    control.end(FOUND)
    assert control.ending
    assert control.outcome == "found"


def test_a_run_that_was_asked_to_end_before_was_interrupted() -> None:
    control = RunControl()
    control.end()
    control.end(FOUND)
    assert control.outcome == "interrupted"
    assert not control.found
    control.cancel()
    assert control.outcome == "cancelled"


def test_the_first_failure_is_the_one_that_is_reported() -> None:
    control = RunControl()
    first = StageDied("texture", "first")
    control.fail(first)
    control.fail(StageDied("allocate", "second"))
    assert control.failure is first
    assert control.outcome == "error"


def test_a_failure_after_a_cancel_follows_from_it() -> None:
    control = RunControl()
    control.cancel()
    control.fail(StageDied("texture", "x"))
    assert control.failure is None
    assert control.outcome == "cancelled"


@pytest.mark.parametrize("error", [SourceError("gone"), ModelError("gated"), StageDied("answer", "x")])
def test_what_the_user_can_put_right_is_reported_as_it_is(error: Exception) -> None:
    assert failure_of("capture", error) is error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ZeroDivisionError(), "ZeroDivisionError"),
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (NonFiniteError("NaN in x"), "NaN in x"),
    ],
)
def test_other_errors_name_the_stage_that_died(error: Exception, line: str) -> None:
    failure = failure_of("allocate", error)
    assert isinstance(failure, StageDied)
    assert str(failure) == f"the allocate stage died: {line}"
    assert failure.__cause__ is error
    assert describe(error) == line


@pytest.mark.parametrize("kind", [ModelNotFound, SourceNotFound])
def test_an_error_of_the_projects_own_is_made_again(kind: type[Exception]) -> None:
    error = remote_error(kind.__name__, "what happened")
    assert type(error) is kind
    assert str(error) == "what happened"


@pytest.mark.parametrize("name", ["ValueError", "StageDied", "annotations", "", "Nonsense"])
def test_any_other_is_none_that_is_known_here(name: str) -> None:
    assert remote_error(name, "what happened") is None


@pytest.mark.parametrize("kind", [ModelNotFound, SourceNotFound])
def test_an_error_tells_problem_and_remedy_apart(kind: type[ModelNotFound | SourceNotFound]) -> None:
    error = kind("it is not there", "give another")
    assert (str(error), error.problem, error.remedy) == (
        "it is not there; give another",
        "it is not there",
        "give another",
    )
    assert (str(kind("it is not there")), kind("it is not there").remedy) == ("it is not there", None)
    assert error.user_fixable
    assert not NonFiniteError("NaN").user_fixable
