"""How a run is stopped, and the errors of its failures."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from unittest.mock import Mock

import pytest

from arr_coc.errors import ModelError, ModelNotFound, NonFiniteError
from stream.cli import main
from stream.control import (
    DESCRIPTORS,
    FOUND,
    AddWatch,
    Ask,
    AskAside,
    CancelledError,
    RunControl,
    Stop,
    check_descriptor_limit,
    describe,
    failure_of,
    raise_descriptor_limit,
    remote_error,
    signals_handled,
    signals_held,
)
from stream.errors import ConfigError, SourceError, SourceNotFound, StageDied


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
    assert not control.has_match
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
def test_an_error_that_the_user_can_fix_is_reported_as_it_is(error: Exception) -> None:
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
def test_an_error_separates_problem_and_remedy(kind: type[ModelNotFound | SourceNotFound]) -> None:
    error = kind("it is not there", "give another")
    assert (str(error), error.problem, error.remedy) == (
        "it is not there; give another",
        "it is not there",
        "give another",
    )
    assert (str(kind("it is not there")), kind("it is not there").remedy) == ("it is not there", None)
    assert error.user_fixable
    assert not NonFiniteError("NaN").user_fixable


UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [
        (24, 1000, 1000),
        (24, 10**9, DESCRIPTORS),
        (24, UNLIMITED, DESCRIPTORS),
        (10**6, 10**9, 10**6),
        (UNLIMITED, UNLIMITED, DESCRIPTORS),
    ],
)
def test_the_limit_of_open_files_is_raised(soft: int, hard: int, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, new: limits.append(new))
    assert raise_descriptor_limit() == limit
    assert len(limits) == 1 or limits[-1] == (limit, hard)
    check_descriptor_limit()


def test_a_limit_of_open_files_that_is_too_low_ends_a_run_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (40, 4096))
    monkeypatch.setattr(resource, "setrlimit", Mock(side_effect=ValueError("not allowed to raise maximum limit")))
    problem = "may open 40 files and connections, and a run needs 256; raise its hard limit"
    with pytest.raises(ConfigError, match=problem):
        check_descriptor_limit()
    assert main(["caption", "scene:demo"]) == 2
    assert problem in capsys.readouterr().err.splitlines()[-1]


def test_a_held_signal_comes_at_the_end_of_the_block() -> None:
    steps: list[str] = []
    ended = threading.Event()
    other_thread = threading.Thread(target=ended.wait)  # it could take a signal that the main thread masks
    other_thread.start()
    with signals_handled(lambda number: steps.append(number.name)):
        with signals_held():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            steps.append("held")
        steps.append("released")
    ended.set()
    other_thread.join()
    assert steps == ["held", "SIGTERM", "released"]


def test_commands_wait_in_order_and_of_questions_only_the_newest() -> None:
    control = RunControl()
    door = AddWatch("door", "is it open?")
    for command in (Ask("who?"), door, AskAside(1, "what?"), Ask("where?")):
        control.send(command)
    assert control.take_commands() == [door, AskAside(1, "what?"), Ask("where?")]
    assert control.take_commands() == []


@pytest.mark.parametrize(("stop", "outcome"), [(Stop("found"), "found"), (Stop(cancel=True), "cancelled")])
def test_a_command_to_stop_is_followed_at_once(stop: Stop, outcome: str) -> None:
    control = RunControl()
    control.send(stop)
    assert (control.ending, control.outcome, control.take_commands()) == (True, outcome, [])
