"""`-o -`: JSON lines on standard output, and nothing else there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from stream.cli import main
from tests.support.models import tiny_folder
from tests.support.video import make_video, moving_square


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_video(tmp_path_factory.mktemp("clip") / "clip.mp4", moving_square(8), fps=10))


def run(command: str, clip: str, model: str, *options: str) -> int:
    return main([command, clip, "-m", model, "--single-process", "--set", "answer.max_tokens=2", *options])


@pytest.mark.parametrize("command", ["caption", "watch"])
def test_stdout_holds_what_a_file_would(
    command: str, clip: str, model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "same.jsonl"
    assert run(command, clip, model, "-o", "-", "-o", str(path)) == 0
    out, err = capfd.readouterr()
    assert out == path.read_text(encoding="utf-8")
    kinds = [json.loads(line)["type"] for line in out.splitlines()]
    assert (kinds[0], kinds[-1]) == ("started", "summary")
    assert "answer" in kinds
    assert f"wrote {path}" in err
    assert "wrote -" not in err
    assert not (Path.cwd() / "-").exists()


def test_a_reader_that_goes_ends_it(clip: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdout_copy = os.dup(1)
    monkeypatch.setattr("builtins.print", Mock(side_effect=BrokenPipeError))
    try:
        assert run("caption", clip, model, "-o", "-") == 141
    finally:
        os.dup2(stdout_copy, 1)
        os.close(stdout_copy)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("-o", "-", "-o", "-"), "output '-' is given twice"),
        (("-o", "-", "--resume"), "--resume needs outputs that are ordinary files"),
        (("--heatmap", "-"), "the heat map can be .mp4"),
    ],
)
def test_options_that_do_not_go_with_stdout(
    clip: str, model: str, options: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("caption", clip, model, *options) == 2
    assert problem in capsys.readouterr().err
