"""`doctor`, as lines, as a table and as JSON, and its exit status."""

from __future__ import annotations

import json
import os
import pty
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from stream import doctor
from stream.cli import main
from stream.config import Config
from stream.doctor import Check

ROOT = Path(__file__).resolve().parent.parent
CHECKS = [Check("python", "works", "3.11"), Check("plots", "absent", "no matplotlib", "pip install it")]
BROKEN = Check("model", "broken", "is not there", "give another")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    configs: list[Config] = []

    def examine(config: Config, streams: int) -> list[Check]:
        configs.append(config)
        if streams > 1:
            return [Check("cards", "works", f"{streams} streams")]
        return [*CHECKS, BROKEN] if config.answer.model else CHECKS

    monkeypatch.setattr(doctor, "examine", examine)
    return configs


def test_without_a_terminal_each_check_is_a_line(asked: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "works   python        3.11",
        "absent  plots         no matplotlib; do: pip install it",
    ]
    assert asked == [Config()]


def test_something_needed_that_is_broken_is_a_status(asked: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["doctor", "-m", "x", "--budget", "64", "--dtype", "bfloat16", "--device", "cpu", "--backend", "gl"]) == 1
    )
    (config,) = asked
    assert (config.answer.model, config.allocate.budget) == ("x", 64)
    assert (config.answer.dtype, config.answer.device, config.texture.backend) == ("bfloat16", "cpu", "gl")
    assert capsys.readouterr().out.splitlines()[-1] == "broken  model         is not there; do: give another"


def test_so_many_streams(asked: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--streams", "4"]) == 0
    assert capsys.readouterr().out.splitlines() == ["works   cards         4 streams"]
    assert main(["doctor", "--streams", "0"]) == 2
    assert "--streams" in capsys.readouterr().err


def test_as_json(asked: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "-m", "x"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["works"] is False
    assert told["checks"][1] == {
        "part": "plots",
        "state": "absent",
        "found": "no matplotlib",
        "remedy": "pip install it",
    }


def test_a_wrong_value_is_told_in_a_line(asked: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--budget", "many"]) == 2
    assert "--budget: allocate.budget must be" in capsys.readouterr().err
    assert asked == []


def test_on_a_terminal_it_fits_80_columns() -> None:
    """The real command, at a real terminal's end."""
    import fcntl
    import termios

    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "run_stream.py", "doctor", "--device", "cpu"]
    with subprocess.Popen(command, cwd=ROOT, stdout=terminal, env=environment) as process:
        os.close(terminal)
        shown = b""
        with open(controller, "rb", buffering=0) as reader:
            while True:
                try:
                    data = reader.read(4096)
                except OSError:
                    break
                if not data:
                    break
                shown += data
    lines = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()]
    assert process.returncode == 0
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(("works", "absent")) for line in lines) >= 15
