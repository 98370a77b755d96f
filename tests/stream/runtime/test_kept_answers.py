"""The answer process of runs that follow one another."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import psutil
import pytest

from stream.config import AnswerConfig
from stream.control import RunControl
from stream.errors import StageDied
from stream.events import Answer, Restarted
from stream.runtime.kept_answers import KeptAnswers
from stream.runtime.supervised import SupervisedRun
from tests.support.children import own_children
from tests.support.network import until
from tests.support.runs import config

MODELS = "tests.support.answer_models"


def watch(kept: KeptAnswers, answers: int = 1) -> tuple[list[str], list[Restarted]]:
    """So many answers of a new run, and the restarts that it told of."""
    given, control, restarts = config(), RunControl(), list[Restarted]()
    with closing(SupervisedRun(given, control=control, shared=kept.of(control))) as run:
        texts: list[str] = []
        for event in run.run():
            if isinstance(event, Restarted):
                restarts.append(event)
            elif isinstance(event, Answer):
                texts.append(event.text)
                if len(texts) == answers:
                    run.end()
    return texts[:answers], restarts


def test_the_process_stays_from_run_to_run_and_comes_back_between_them() -> None:
    with closing(KeptAnswers(config(), model_loader=f"{MODELS}:FakeAnswerModel")) as kept:
        shared = kept.of(RunControl())
        assert shared is not None
        first = shared.pid
        assert watch(kept)[0]
        assert watch(kept)[1] == []
        assert shared.pid == first
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: shared.pid != first)
        assert watch(kept)[1] == []  # it was before this run

        second = shared.pid
        kept.forget()
        assert not psutil.pid_exists(second or 0)
        assert watch(kept)[0]
        assert kept.of(RunControl()) is not shared
    assert own_children() == []


def test_a_process_that_cannot_be_kept_alive_ends_the_run_and_not_the_next() -> None:
    with closing(KeptAnswers(config(restart_limit=1), model_loader=f"{MODELS}:KilledAnswerModel")) as kept:
        for _ in range(2):
            with pytest.raises(StageDied, match="died once within a minute"):
                watch(kept, answers=2)


def test_where_a_server_answers_there_is_no_process() -> None:
    elsewhere = config().model_copy(update={"answer": AnswerConfig(server="tcp://127.0.0.1:1")})
    with closing(KeptAnswers(elsewhere)) as kept:
        assert kept.of(RunControl()) is None
