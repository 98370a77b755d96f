"""Commands of matches: started without a shell, a few at once, with a time limit; a failure is one note."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from stream.config import Config, WatchConfig
from stream.errors import ConfigError
from stream.events import StandingQuestion, WatchesChanged
from stream.extensions.on_match.section import OnMatchSection
from stream.extensions.on_match.sink import AT_ONCE_MAX, MatchCommand, MatchCommandSink, commands_of, fields_of
from tests.support.events import look, match
from tests.support.sections import opened_sinks

WRITE = (
    "import json, os, sys; "
    "fields = {k: v for k, v in os.environ.items() if k.startswith('ARR_COC_')}; "
    "json.dump([sys.argv[2:], fields], open(sys.argv[1], 'w'))"
)
WAIT = "import sys; sys.stdin.read(); import time; time.sleep(60)"


def python(code: str, *words: str) -> MatchCommand:
    return MatchCommand((sys.executable, "-c", code, *words))


@contextmanager
def sink_of(command: MatchCommand, **options: Any) -> Iterator[MatchCommandSink]:
    with closing(MatchCommandSink({"here": command}, **{"limit_s": 30.0, **options})) as sink:
        yield sink


def wait_until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_command_gets_the_fields_as_words_and_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ARR_COC_WEBHOOK_SECRET", "secret")
    path, question = tmp_path / "a.json", "is it; rm -rf $HOME here?"
    with sink_of(python(WRITE, str(path), "{watch}: {question}", "{match} {camera}"), camera="door") as sink:
        sink.write(look(0.0))
        sink.write(match(2.5, 7, watch="another"))
        sink.write(match(2.5, 3, question=question))
    words, environment = json.loads(path.read_text("utf-8"))
    assert words == [f"here: {question}", "3 door"]
    assert environment["ARR_COC_QUESTION"] == question
    assert (environment["ARR_COC_PTS_S"], environment["ARR_COC_YES"]) == ("2.500", "0.970")
    assert "ARR_COC_WEBHOOK_SECRET" not in environment


def test_another_watch_of_the_same_name_starts_no_command(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with sink_of(python(WRITE, str(path))) as sink:
        sink.write(WatchesChanged(watch="door", watches=[StandingQuestion("here", "?")]))
        sink.write(match(1.0, 1))
        wait_until(path.exists)
        sink.write(WatchesChanged(watch="here", watches=[]))
        sink.write(WatchesChanged(watch="here", watches=[StandingQuestion("here", "is it another?")]))
        path.unlink()
        sink.write(match(2.0, 2))
    assert not path.exists()


def test_time_is_local_time_with_its_offset() -> None:
    at = datetime.fromisoformat(fields_of(match(0.0), "", 1_800_000_000.0)["time"])
    assert (at.timestamp(), at.utcoffset()) == (
        1_800_000_000.0,
        datetime.fromtimestamp(1_800_000_000).astimezone().utcoffset(),
    )
    at_noon = "2026-11-28T12:00:09.250+05:30"
    assert fields_of(replace(match(0.0), time=at_noon), "", 1_800_000_000.0)["time"] == at_noon


def test_a_failure_is_one_note_until_a_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag = tmp_path / "good"
    command = python("import os, sys; sys.exit(0 if os.path.exists(sys.argv[1]) else 7)", str(flag))
    notes: list[str] = []
    with sink_of(command) as sink:
        for good in (False, False, True, False):
            flag.touch() if good else flag.unlink(missing_ok=True)
            sink.write(match(0.0))
            wait_until(lambda: not sink._running)
            notes.append(capsys.readouterr().err)
    assert [note.count("note: the command of watch here failed") for note in notes] == [1, 0, 0, 1]
    assert "ended with status 7" in notes[0]


def test_a_command_that_takes_too_long_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    with sink_of(python(WAIT), limit_s=0.05) as sink:
        sink.write(match(0.0))
        wait_until(lambda: not sink._running)
    assert "took more than 0.05 s and was killed" in capsys.readouterr().err


def test_few_run_at_once_and_the_end_of_the_run_kills_them(capsys: pytest.CaptureFixture[str]) -> None:
    with sink_of(python(WAIT), close_limit_s=0.0) as sink:
        for number in range(AT_ONCE_MAX + 2):
            sink.write(match(0.0, number))
        assert sink.dropped == 2
        assert "4 commands still run, so this match started none" in capsys.readouterr().err
    assert sink._running == {}


DAEMON = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if {twice} and os.fork(): os._exit(0)\n"
    "    open(sys.argv[1] + '.part', 'w').write(str(os.getpid()))\n"
    "    os.rename(sys.argv[1] + '.part', sys.argv[1])\n"
    "    {then}\n"
    "time.sleep(600)"
)
"""A command whose child begins its own session, or, twice, has no parent any more; then it does something."""

WITHOUT_ENVIRONMENT = "os.execve(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)'], {})"


@pytest.mark.parametrize(
    ("twice", "then"),
    [(False, "time.sleep(600)"), (True, "time.sleep(600)"), (False, WITHOUT_ENVIRONMENT)],
    ids=["own session", "daemon", "without environment"],
)
def test_a_kill_reaches_what_a_command_has_started(tmp_path: Path, twice: bool, then: str) -> None:
    path = tmp_path / "pid"
    with sink_of(python(DAEMON.format(twice=twice, then=then), str(path)), close_limit_s=0.0) as sink:
        sink.write(match(0.0))
        wait_until(path.exists)
        started = psutil.Process(int(path.read_text()))
        (command,) = sink._running
        assert os.getsid(started.pid) != os.getsid(command.pid)
    assert sink._running == {}
    wait_until(lambda: not started.is_running() or started.status() == psutil.STATUS_ZOMBIE)


def test_a_kill_spares_another_command(tmp_path: Path) -> None:
    first, second = python(WAIT), python(WAIT)
    with (
        sink_of(first, close_limit_s=0.0) as other,
        sink_of(second, close_limit_s=0.0) as ended,
    ):
        other.write(match(0.0))
        ended.write(match(0.0))
        ended.close()
        (process,) = other._running
        assert process.poll() is None


def test_a_program_that_is_gone_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    with sink_of(MatchCommand(("/nowhere/program",))) as sink:
        sink.write(match(0.0))
        sink.write(match(0.0, question="\0"))
    assert "'/nowhere/program' cannot be started: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("echo 'a", r"--on-match: .* is no command: No closing quotation; check its quotation marks"),
        ("''", r"--on-match: there is no program ''; give its path, or install it"),
        ("# nothing", r"--on-match: there is no program '#'"),
        ("no-such-program {watch}", r"--on-match: there is no program 'no-such-program'; give its path, or install it"),
        ("echo {who}", r"--on-match: unknown field \{who\}; there are match, watch, question, time, camera"),
        ("{watch}", r"--on-match: there is no program '\{watch\}'"),
    ],
)
def test_mistakes_are_refused_before_the_run(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}"):
        commands_of(Config(watch=(WatchConfig(question="is it?"),), on_match=OnMatchSection(command=text)))


def test_a_command_without_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="--on-match needs a command"):
        MatchCommand.of("  ")


def test_a_watch_may_have_its_own_command() -> None:
    watches = (WatchConfig(question="a?", name="a", on_match="true {match}"), WatchConfig(question="b?", name="b"))
    assert list(commands_of(Config(watch=watches))) == ["a"]
    commands = commands_of(Config(watch=watches, on_match=OnMatchSection(command="echo {watch}")))
    assert [command.words[0] for command in commands.values()] == ["true", "echo"]
    broken = (WatchConfig(question="a?", name="a", on_match="no-such-program"),)
    with pytest.raises(ConfigError, match=r"^watch 'a': on_match: there is no program"):
        commands_of(Config(watch=broken))


def test_a_run_with_commands_has_the_sink() -> None:
    config = Config(watch=(WatchConfig(question="is it?"),), on_match=OnMatchSection(command="true"))
    sinks = opened_sinks(config)
    assert isinstance(sinks[-1], MatchCommandSink)
    assert opened_sinks(Config()) == []
