"""Fixtures of tests with an answer server in a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support import answer_models
from tests.support.answer_server import play as play_script
from tests.support.runs import StageRunner, stage_runner
from tests.support.scripts import Script


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[StageRunner]:
    monkeypatch.setattr(answer_models, "on_packet", lambda frame_index: None)
    with stage_runner() as stages:
        yield stages


@pytest.fixture
def play(runner: StageRunner, monkeypatch: pytest.MonkeyPatch) -> Callable[[Script], None]:
    """Function that plays a script: a server, and its clients' messages."""
    return lambda script: play_script(script, runner, monkeypatch)
