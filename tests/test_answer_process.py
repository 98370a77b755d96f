"""The answer process: it answers, and it never outlives its parent's interest."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from stream import answer_process
from stream.answer_process import AnswerProcess
from stream.config import Config
from stream.messages import Cancel, Hello, Joined
from stream.snapshot import SnapshotWriter
from stream.transport import Link, Transport, ipc_endpoint, private_directory
from tests.stage_runner import LIMIT_MS, expect


class Fixture:
    def __init__(self, stack: ExitStack, speaker: str = "FakeSpeaker") -> None:
        self.directory = stack.enter_context(private_directory())
        endpoint = ipc_endpoint(self.directory)
        transport = Transport()
        stack.callback(transport.close)
        self.link: Link = transport.link(endpoint, bind=True)
        stack.callback(self.link.close)
        snapshot = SnapshotWriter()
        stack.callback(snapshot.close)
        name = f"tests.fake_speaker:{speaker}"
        self.process = AnswerProcess(Config(), name, endpoint, self.directory, snapshot.descriptor)
        stack.callback(self.process.stop)
        self.seen = psutil.Process(self.process.pid)

    def gone(self) -> bool:
        return not self.seen.is_running() or self.seen.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def test_it_greets_and_ends_when_told(stack: ExitStack) -> None:
    fixture = Fixture(stack)
    expect(fixture.link, Joined)
    assert expect(fixture.link, Hello).model_id == "fake"
    assert fixture.process.death() is None
    fixture.link.send(Cancel())
    fixture.process.stop()
    assert fixture.gone()


def test_it_has_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(stack: ExitStack) -> None:
    fixture = Fixture(stack)
    assert os.getsid(fixture.process.pid) != os.getsid(0)


def test_it_ends_and_tidies_up_when_its_parent_is_gone(stack: ExitStack) -> None:
    fixture = Fixture(stack)
    expect(fixture.link, Joined)
    stdin = fixture.process._child.stdin
    assert stdin is not None
    stdin.close()
    fixture.seen.wait(LIMIT_MS / 1000)
    assert not fixture.directory.exists()


def test_a_child_that_does_not_end_is_killed(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_process, "GRACE_S", 0.01)
    monkeypatch.setattr(answer_process, "STOP_LIMIT_S", 0.01)
    fixture = Fixture(stack)
    os.kill(fixture.process.pid, signal.SIGSTOP)
    fixture.process.stop()
    assert fixture.gone()


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGTERM, "SIGTERM"), (40, "signal 40")]
)
def test_its_death_is_told_with_the_signal(stack: ExitStack, number: int, name: str) -> None:
    fixture = Fixture(stack)
    os.kill(fixture.process.pid, number)
    fixture.process._child.wait(LIMIT_MS / 1000)
    death = fixture.process.death()
    assert death is not None
    assert str(death) == f"the answer stage died: its process killed by {name}"


def test_without_orders_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with (tmp_path / "empty").open() as empty:
        monkeypatch.setattr("sys.stdin", empty)
        assert answer_process.main() == 1
