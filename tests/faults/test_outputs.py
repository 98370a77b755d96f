"""Outputs that fail on the way: a full disk, a reader that has gone, and no stdout or stderr at all."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest
import webvtt

from stream.cli import main
from stream.runtime.frame_stages import run_in_threads
from tests.support.full_disk import room_for
from tests.support.network import LIMIT_S
from tests.support.recordings import read_mcap
from tests.support.video import make_video, moving_square

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> str:
    rng = np.random.default_rng(0)
    frames = [image ^ rng.integers(0, 8, image.shape, np.uint8) for image in moving_square(40, 192, 128)]
    return str(make_video(tmp_path_factory.mktemp("video") / "square.mp4", frames, 10))


@pytest.fixture(autouse=True)
def _without_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run_in_threads.__kwdefaults__, "model_loader", "tests.support.answer_models:FakeAnswerModel")


def caption(video: str, *options: str) -> int:
    return main(["caption", video, "--every", "0.2", "--budget", "12", "--single-process", *options])


def cues(path: Path) -> int:
    return len(webvtt.read(str(path)))


def spoken(path: Path) -> int:
    """Answers in an MCAP file, or in that of a ROS 2 bag."""
    file = path / f"{path.name}.mcap" if path.is_dir() else path
    return len(read_mcap(file, "/answer"))


def lines(path: Path) -> int:
    return len([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])


def frames(path: Path) -> int:
    """Number of decodable frames of a file that may be cut off."""
    count = 0
    with av.open(str(path)) as container, suppress(av.FFmpegError):
        for _ in container.decode(video=0):
            count += 1
    return count


@pytest.mark.parametrize(
    ("name", "size", "count"),
    [
        *(("a.vtt", 500, cues), ("a.srt", 500, None), ("a.jsonl", 1500, lines)),
        *(("a.mcap", 40_000, spoken), ("a.rosbag", 20_000, spoken)),
    ],
)
def test_captions_on_a_full_disk(
    video: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    size: int,
    count: Callable[[Path], int] | None,
) -> None:
    path = tmp_path / name
    with room_for(size):
        assert caption(video, "-o", str(path)) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert errors == [f"error: cannot write {str(path)!r}: File too large"]
    assert all(0 < file.stat().st_size <= size for file in (path.iterdir() if path.is_dir() else [path]))
    assert count is None or count(path) > 1


def test_a_heat_map_on_a_full_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    noise = (rng.integers(0, 256, (64, 96, 3), np.uint8) for _ in range(110))
    video = str(make_video(tmp_path / "noise.mkv", noise, 10, codec="ffv1", pixel_format="yuv444p"))
    path = tmp_path / "a.mp4"
    with room_for(600_000):
        assert caption(video, "-o", str(tmp_path / "a.vtt"), "--heatmap", str(path)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error:")] == [lines[-1]]
    assert lines[-1] == f"error: cannot write {str(path)!r}: File too large"
    assert cues(tmp_path / "a.vtt") > 0
    assert frames(path) > 2


def test_a_journal_on_a_full_disk_is_given_up_and_the_run_goes_on(
    video: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert caption(video, "-o", str(tmp_path / "whole.srt")) == 0
    path = tmp_path / "a.srt"
    with room_for(2500):
        assert caption(video, "-o", str(path)) == 0
    assert path.read_bytes() == (tmp_path / "whole.srt").read_bytes()
    assert caplog.text.count("cannot write ") == 1
    assert sorted(left.name for left in tmp_path.iterdir()) == ["a.srt", "whole.srt"]


def test_a_full_disk_is_met_again_by_a_run_that_is_continued(video: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with room_for(3000):
        assert caption(video, "-o", str(path), "--no-timing") == 1
        before = path.read_bytes()
        assert caption(video, "-o", str(path), "--no-timing", "--resume") == 1
        assert path.read_bytes() == before
    assert caption(video, "-o", str(path), "--no-timing", "--resume") == 0
    assert caption(video, "-o", str(tmp_path / "b.jsonl"), "--no-timing") == 0
    assert path.read_bytes() == (tmp_path / "b.jsonl").read_bytes()


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Runs a line of bash; `$CAPTION` is the command with a fake answer model."""
    command = shlex.join([sys.executable, "-m", "tests.support.fake_command", "-1"])
    return subprocess.run(
        ["bash", "-c", line],
        cwd=ROOT,
        env={**os.environ, "CAPTION": command},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_a_reader_that_leaves_ends_the_run_quietly(video: str) -> None:
    process = shell(f"$CAPTION caption {video} --every 0.2 --single-process | head -1; echo ${{PIPESTATUS[0]}}")
    first, status = process.stdout.splitlines()
    assert first.startswith("0:00.0  frame 0")
    assert status == "141"
    assert "error" not in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("process", ["", "--single-process"])
def test_a_run_without_stdin_stdout_or_stderr_writes_its_files(
    video: str, tmp_path: Path, closed: str, process: str
) -> None:
    assert caption(video, "-o", str(tmp_path / "whole.jsonl"), "--no-timing") == 0
    path = tmp_path / "a.jsonl"
    options = "--every 0.2 --budget 12 --no-timing"
    result = shell(f"$CAPTION caption {video} {options} -o {path} {process} {closed}")
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_run_that_would_speak_to_a_closed_stdout_ends_well(video: str, closed: str) -> None:
    process = shell(f"$CAPTION caption {video} --single-process {closed}")
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_an_error_without_an_output_for_its_message_is_a_status(closed: str) -> None:
    process = shell(f"$CAPTION caption absent.mp4 -o a.vtt {closed}")
    assert process.returncode == 2
    assert "Traceback" not in process.stderr


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_stdout_on_a_full_disk_is_reported(video: str) -> None:
    process = shell(f"$CAPTION caption {video} --single-process > /dev/full")
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == "error: cannot write stdout: No space left on device"
