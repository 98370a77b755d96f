"""The answer process: it answers, and it never outlives its parent's interest."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from stream.config import Config
from stream.messages import Connect, QueryAccepted, ServerHello
from stream.runtime import answer_worker as answer_process
from stream.runtime.answer_worker import answer_threads, start_answer_process
from stream.runtime.child import ChildProcess
from stream.snapshot import SnapshotWriter
from stream.transport import Link, Transport, ipc_endpoint, private_directory
from tests.stage_runner import expect
from tests.waiting import LIMIT_S, until


class Fixture:
    def __init__(self, stack: ExitStack, speaker: str = "FakeSpeaker") -> None:
        self.directory = stack.enter_context(private_directory())
        endpoint = ipc_endpoint(self.directory)
        transport = Transport()
        stack.callback(transport.close)
        self.link: Link = stack.enter_context(closing(transport.link(endpoint, watched=True)))
        snapshot = stack.enter_context(closing(SnapshotWriter()))
        name = f"tests.fake_speaker:{speaker}"
        self.child: ChildProcess = start_answer_process(Config(), name, endpoint, self.directory, snapshot.descriptor)
        stack.callback(self.child.stop)
        self.seen = psutil.Process(self.child.pid)

    def gone(self) -> bool:
        return not self.seen.is_running() or self.seen.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_it_greets_and_beats_until_its_parent_is_gone_and_then_tidies_up(stack: ExitStack) -> None:
    fixture = Fixture(stack)
    assert os.getsid(fixture.child.pid) != os.getsid(0), "Ctrl-C would reach it"
    fixture.link.send(Connect(query="what?"))
    assert expect(fixture.link, ServerHello).model_id == "fake"
    assert expect(fixture.link, QueryAccepted).query == "what?"
    until(lambda: fixture.child.silence_s() > 0)
    assert fixture.child.exit_error() is None
    stdin = fixture.child._process.stdin
    assert stdin is not None
    stdin.close()
    fixture.seen.wait(LIMIT_S)
    assert not Path(fixture.directory).exists()


def test_a_model_that_cannot_be_loaded_ends_it_with_the_error_on_its_last_line(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture = Fixture(stack, "open_missing")
    fixture.link.send(Connect(query="what?"))
    until(lambda: fixture.child.exit_error() is not None)
    death = fixture.child.exit_error()
    assert death is not None
    assert death.cause == (
        "its process exited with status 1 (arr_coc.errors.ModelNotFound: there is no folder nowhere)"
    )


def test_a_child_that_does_not_end_is_killed(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.runtime.child.STOP_LIMIT_S", 0.01)
    fixture = Fixture(stack)
    os.kill(fixture.child.pid, signal.SIGSTOP)
    fixture.child.stop()
    assert fixture.gone()


def test_the_model_gets_all_cores_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert answer_threads() == 7
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert answer_threads() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert answer_threads() == 3


def test_without_orders_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open() as empty:
        monkeypatch.setattr("sys.stdin", empty)
        assert answer_process.main() == 1
