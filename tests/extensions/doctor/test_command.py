"""`devices`, as lines and as JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stream.cli import main
from stream.config import Config
from stream.extensions.doctor import examination as doctor
from stream.extensions.doctor.examination import DiagnosticCheck
from stream.sources import cameras
from stream.sources.cameras import Camera, CameraMode
from tests.support.network import LIMIT_S
from tests.support.terminal import Pty

CAMERAS = [
    Camera(
        "/dev/video0",
        "Desk Cam",
        "uvcvideo",
        "usb-0000:00:14.0-1",
        (
            CameraMode(1280, 720, "mjpeg", (60.0, 30.0)),
            CameraMode(640, 480, "yuyv422", (29.97,)),
            CameraMode(160, 120, "nv12", ()),
            CameraMode(64, 64, "gray", (90.0, 1.0), any_between=True),
        ),
    ),
    Camera("/dev/video10", "", problem="in use by another program; end that program"),
]


def test_every_camera_and_mode_is_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cameras, "list_cameras", lambda: CAMERAS)
    assert main(["devices"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0    /dev/video0  Desk Cam (uvcvideo, usb-0000:00:14.0-1)",
        "     1280x720:mjpeg   60 30 fps",
        "     640x480:yuyv422  29.97 fps",
        "     160x120:nv12",
        "     64x64:gray       1 to 90 fps",
        "10   /dev/video10",
        "     in use by another program; end that program",
        "",
        "watch 0 --set capture.camera_mode=1280x720:mjpeg",
    ]


def test_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cameras, "list_cameras", lambda: CAMERAS)
    assert main(["devices", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["cameras"]
    assert (first["address"], first["device"], first["name"]) == ("0", "/dev/video0", "Desk Cam")
    assert first["modes"][0] == {
        "camera_mode": "1280x720:mjpeg",
        "width_px": 1280,
        "height_px": 720,
        "format": "mjpeg",
        "fps": [60.0, 30.0],
        "any_between": False,
    }
    assert second["problem"].startswith("in use")


def test_no_camera_is_no_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cameras, "list_cameras", list)
    assert main(["devices"]) == 0
    assert capsys.readouterr().out.startswith("no camera: ")
    assert main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"cameras": []}


CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
ROOT = Path(__file__).resolve().parents[3]
CHECKS = [
    DiagnosticCheck("python", "works", "3.11"),
    DiagnosticCheck("plots", "absent", "no matplotlib", "pip install it"),
]
BROKEN = DiagnosticCheck("model", "broken", "is not there", "give another")


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    configs: list[Config] = []

    def examine(config: Config, streams: int, begin: Any = None) -> list[DiagnosticCheck]:
        configs.append(config)
        if streams > 1:
            return [DiagnosticCheck("cards", "works", f"{streams} streams")]
        return [*CHECKS, BROKEN] if config.answer.model else CHECKS

    monkeypatch.setattr(doctor, "examine", examine)
    return configs


def test_without_a_terminal_each_check_is_a_line(configs: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "works   python        3.11",
        "absent  plots         no matplotlib; do: pip install it",
    ]
    assert configs == [Config()]


def test_something_needed_that_is_broken_is_a_status(configs: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["doctor", "-m", "x", "--budget", "64", "--dtype", "bfloat16", "--device", "cpu", "--backend", "gl"]) == 1
    )
    (config,) = configs
    assert (config.answer.model, config.allocate.budget) == ("x", 64)
    assert (config.answer.dtype, config.answer.device, config.texture.backend) == ("bfloat16", "cpu", "gl")
    assert capsys.readouterr().out.splitlines()[-1] == "broken  model         is not there; do: give another"


def test_streams_needs_a_whole_number(configs: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--streams", "4"]) == 0
    assert capsys.readouterr().out.splitlines() == ["works   cards         4 streams"]
    assert main(["doctor", "--streams", "0"]) == 2
    assert "--streams needs a whole number from 1 to 64; got '0'" in capsys.readouterr().err
    assert main(["doctor", "--streams", "65"]) == 2
    assert main(["doctor", "--streams", "many"]) == 2


def test_as_json_doctor(configs: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "-m", "x"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["works"] is False
    assert report["checks"][1] == {
        "part": "plots",
        "state": "absent",
        "found": "no matplotlib",
        "remedy": "pip install it",
    }


def test_a_wrong_value_is_reported_in_a_line(configs: list[Config], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--budget", "many"]) == 2
    assert "--budget should be" in capsys.readouterr().err
    assert configs == []


def test_each_line_is_out_before_the_next_check_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a pipe, which Python would buffer."""
    reader, writer = os.pipe()
    outputs = []

    def examine(config: Config, streams: int, begin: Any = None) -> Iterator[DiagnosticCheck]:
        for check in CHECKS:
            yield check
            outputs.append(os.read(reader, 4096).decode() if select.select([reader], [], [], 0)[0] else "")

    monkeypatch.setattr(doctor, "examine", examine)
    with open(writer, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["doctor"]) == 0
    os.close(reader)
    assert [line.split()[:2] for line in outputs] == [["works", "python"], ["absent", "plots"]]


def test_a_reader_that_has_gone_ends_it_quietly(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()

    def examine(config: Config, streams: int, begin: Any = None) -> Iterator[DiagnosticCheck]:
        yield CHECKS[0]
        os.close(reader)
        yield from CHECKS

    monkeypatch.setattr(doctor, "examine", examine)
    with open(writer, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["doctor"]) == 141
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_what_is_checked_and_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Pty()

    def examine(config: Config, streams: int, begin: Callable[[str], None]) -> Iterator[DiagnosticCheck]:
        for check in [*CHECKS, BROKEN]:
            begin(check.part)
            terminal.until(lambda part=check.part: f"checking {part}" in terminal.output, LIMIT_S)
            yield check
            terminal.until(lambda finding=check.found: finding in terminal.output, LIMIT_S)

    monkeypatch.setattr(doctor, "examine", examine)
    monkeypatch.setenv("TERM", "xterm")
    with open(os.dup(terminal.program), "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main(["doctor"]) == 1
    terminal.read()
    rows = [row.rstrip() for row in re.split(r"[\r\n]+", CONTROL.sub("", terminal.output))]
    terminal.close()
    assert "works   python        3.11" in rows
    assert "broken  model         is not there" in rows
    assert "                      → give another" in rows


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
        output = b""
        with open(controller, "rb", buffering=0) as reader:
            while True:
                try:
                    data = reader.read(4096)
                except OSError:
                    break
                if not data:
                    break
                output += data
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", CONTROL.sub("", output.decode()))]
    assert process.returncode == 0
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(("works", "absent")) for line in lines) >= 15
    assert any("checking torch" in line for line in lines)
