"""`ask` reaches a run, or reports in one line why not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from stream.cli import main
from stream.config import Config
from stream.control import Ask
from stream.extensions.zeromq import services as control_module
from stream.extensions.zeromq.section import ZeromqSection
from stream.extensions.zeromq.sinks import ControlSink
from stream.monitor.health import RunMonitor
from tests.support.events import frame
from tests.support.runs import WatchedRun


@pytest.fixture
def run() -> WatchedRun:
    return WatchedRun()


@pytest.fixture
def control(run: WatchedRun) -> Iterator[ControlSink]:
    config = Config(source="camera", zeromq=ZeromqSection(control="tcp://127.0.0.1:*"))
    monitor = RunMonitor(config)
    monitor.follow(run)
    with closing(ControlSink(config, monitor)) as sink:
        sink.write(frame(0, 0.0))
        yield sink


def error_of_of_ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["ask", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


def test_a_question_reaches_the_run(control: ControlSink, run: WatchedRun) -> None:
    assert main(["ask", control.endpoint, "Where is it?"]) == 0
    assert run.commands == [Ask("Where is it?")]


def test_a_question_that_the_run_refuses(control: ControlSink, capsys: pytest.CaptureFixture[str]) -> None:
    assert "refuses: the question is empty" in error_of_of_ask(capsys, control.endpoint, " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense", "What?"], "'nonsense' is not a socket address"),
        (["inproc://x", "What?"], "works inside one process only"),
        (["tcp://203.0.113.9:5557", "What?"], "--plain-tcp"),
        (["tcp://127.0.0.1:9", ""], "at least 1 character"),
        (["tcp://127.0.0.1:9", "x" * 4001], "at most 4000 characters"),
        (["tcp://127.0.0.1:9", "What?", "--keys", "/no/such"], "holds no client.key_secret"),
        (["tcp://127.0.0.1:9"], "missing argument"),
    ],
)
def test_invalid_questions_are_reported(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error_of_of_ask(capsys, *arguments)


@pytest.mark.parametrize("extra", [(), ("--plain-tcp",)])
def test_no_program_at_the_address(
    extra: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_module.request, "__defaults__", (0.05,))
    assert "no reply from tcp://127.0.0.1:9 within 0.05 s" in error_of_of_ask(
        capsys, "tcp://127.0.0.1:9", "What?", *extra
    )
