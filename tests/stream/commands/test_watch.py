"""`watch` chooses what the output can show, and runs until it is ended."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

import stream.extensions.web.command as web_command
from stream.cli import main
from stream.config import Config
from stream.extensions.web.section import WebSection
from stream.sources.address import BROWSER
from tests.support.models import tiny_folder
from tests.support.terminal import Pty
from tests.support.video import make_video, moving_square


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("model")))


def run(clip: Path, model: str, *options: str) -> int:
    return main(["watch", str(clip), "-m", model, "--single-process", "--set", "answer.max_tokens=4", *options])


def test_a_file_is_watched_at_its_own_pace(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_square(8), fps=10)
    assert run(clip, model, "--stats-every", "200ms", "-o", str(tmp_path / "a.jsonl")) == 0
    out, err = capsys.readouterr()
    assert out.startswith("0:00.0  ")
    assert " frames per second · " in err
    assert f"wrote {tmp_path / 'a.jsonl'}" in err
    reported = json.loads((tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert reported["ended"] == "finished"
    assert reported["timing"]["fps"] == pytest.approx(10, rel=0.3)


def test_a_time_limit_ends_it_with_status_0(tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_square(300), fps=10)
    assert run(clip, model, "--for", "300ms", "--stats-every", "none", "-o", str(tmp_path / "a.jsonl")) == 0
    assert " frames per second · " not in capsys.readouterr().err
    reported = json.loads((tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    assert reported["ended"] == "elapsed"
    assert reported["frames"] < 50


@pytest.mark.slow
@pytest.mark.parametrize("interrupts", [1, 2])
def test_on_a_terminal_a_question_is_typed_and_ctrl_c_ends_it(interrupts: int, tmp_path: Path) -> None:
    pty = Pty(100, 30)
    output = str(tmp_path / "a.jsonl")
    with pty.start("run_stream.py", "watch", "scene:demo", "--budget", "64", "-o", output) as child:
        pty.shows("a second · ", limit_s=60)
        pty.type("Where is it?\r")
        pty.shows("asked: Where is it?")
        for _ in range(interrupts):
            pty.type("\x03")
        pty.until(lambda: child.poll() is not None, limit_s=30)
    assert child.returncode == 130
    assert pty.echoes()
    assert "interrupted" in pty.output or "cancelled" in pty.output
    types = [json.loads(line)["type"] for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert "asked" in types
    assert types[-1] == "summary"
    pty.close()


def test_a_page_of_a_run_is_served_and_closed_with_it(
    tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = make_video(tmp_path / "clip.mp4", moving_square(8), fps=10)
    assert run(clip, model, "--stats-every", "none", "--web", "0", "--web-rate", "5", "--web-token", "auto") == 0
    match = re.search(r"web page at http://127\.0\.0\.1:(\d+)/\?token=", capsys.readouterr().err)
    assert match is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(match[1])))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("scene:demo", "--web", "0.0.0.0:8080"), "--web-token auto"),
        (("scene:demo", "--web", "x"), "--web needs a port or HOST:PORT"),
        (("scene:demo", "--web-rate", "5"), "--web-rate needs --web"),
        (("scene:demo", "--web-key", "key.pem"), "--web-key needs --web"),
        (("browser:",), "give --web PORT as well"),
        (("browser:", "0", "--web", "0"), "is watched alone"),
        (("browser:", "--web", "0", "--no-web-control"), "give --web-control as well"),
    ],
)
def test_a_page_that_cannot_be_is_one_line(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", *options]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_browser_is_a_source_that_the_page_gives_out() -> None:
    config = Config(source=BROWSER, web=WebSection(address="0"))
    with web_command._browser_camera(config, [BROWSER]) as prepared:
        assert prepared.source == f"zmq+{prepared.value('web.camera')}"
        assert os.path.isdir(os.path.dirname((prepared.value("web.camera") or "").removeprefix("ipc://")))
    assert not os.path.exists(os.path.dirname((prepared.value("web.camera") or "").removeprefix("ipc://")))
