"""`adapt` makes an allocator that other commands use, and reports each mistake in one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stream.cli import main
from tests.support.benchmarks import coco
from tests.support.models import tiny_folder
from tests.support.network import LIMIT_S
from tests.support.video import make_video, moving_square

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return make_video(tmp_path / "clip.mp4", moving_square(30), 25)


def no_model(*_: Any, **__: Any) -> None:
    raise AssertionError("a model was loaded")


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    return lines[0]


def test_an_allocator_is_made_and_used(
    model: Path, clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = tmp_path / "questions.txt"
    questions.write_text("Where is the red square?\nWhat is in the upper left?\n")
    folder = str(tmp_path / "made")
    short = ("--frames", "10", "--steps", "4", "--question", str(questions))
    assert main(["adapt", str(clip), "-m", str(model), "-o", folder, *short, "--channels", "full40"]) == 0
    output = capsys.readouterr()
    assert "4 questions about 2 frames that nothing was" in output.out
    assert "16 questions about 8 frames, 4 steps" in output.out
    assert max(map(len, output.out.splitlines())) <= 80
    assert f"wrote {folder}/adapt.json" in output.err
    about = json.loads((tmp_path / "made" / "adapt.json").read_text())
    assert about["steps"] == 4
    assert about["made_of"]["--channels"] == "full40"
    answered = ["caption", str(clip), "-m", str(model), "--single-process", "--set", "answer.max_tokens=2"]
    assert main([*answered, "--allocator", folder, "--max-frames", "3"]) == 0
    capsys.readouterr()
    assert main(["adapt", str(clip), "-m", str(model), "-o", folder]) == 2
    assert "is finished; use it with --allocator" in one_line(capsys)
    other = tiny_folder(tmp_path / "other", seed=9)
    assert main([*answered[:3], str(other), *answered[4:], "--allocator", folder]) == 2
    assert "was made for another model than other, or for other weights of it; make one" in one_line(capsys)


def test_boxes_of_coco_teach_without_clips(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = coco(tmp_path / "coco", "train2017", pictures=10)
    (folder / "train2017" / "000000000012.jpg").write_bytes(b"broken")
    arguments = ["adapt", "--boxes", str(folder), "-m", str(model), "-o", str(tmp_path / "made"), "--steps", "2"]
    assert main([*arguments, "--frames", "10"]) == 0
    assert "learned from 14 questions about 7 frames" in capsys.readouterr().out
    about = json.loads((tmp_path / "made" / "adapt.json").read_text())
    assert about["pictures"] + about["held_out"] == 9
    assert about["unread"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("-o made", "no CLIP to learn from; give videos or pictures, or --boxes PATH"),
        ("nosuch.mp4 -o made", "nosuch.mp4 does not exist"),
        ("- -o made", "standard input can be read only once, in order; record it, and give the file"),
        ("rtsp://host/a -o made", "can be read only once, in order"),
        ("clip.mp4 -o made --question empty.txt", "empty.txt holds no question"),
        ("clip.mp4 -o made --question nosuch.txt", "cannot read nosuch.txt: No such file"),
        ("clip.mp4 -o made --boxes empty.txt", "empty.txt holds no question"),
        ("clip.mp4 -o made --steps 3 --minutes 2", "--steps and --minutes both say how long"),
        ("clip.mp4 -o made --minutes soon", "--minutes needs a length of time above 0"),
        ("clip.mp4 -o made --scorer magic", "--scorer must be cross or film; got 'magic'"),
        ("clip.mp4 -o made --channels many", "--channels must be core13 or full40; got 'many'"),
        ("clip.mp4 -o made -m ./nosuch", "there is no folder ./nosuch"),
        ("clip.mp4 -o made --resume", "made holds nothing to go on with; leave out --resume"),
        ("clip.mp4 -o .", "holds something else (clip.mp4, empty.txt, short.mp4); name a new or empty folder"),
        ("clip.mp4 -o empty.txt", "empty.txt is a file; name a folder"),
        (
            "clip.mp4 --frames 5 -o made",
            "--frames 5 is too few: at least 8 are needed to learn from; give --frames 8 or",
        ),
        (
            "short.mp4 -o made",
            "there are only 5 frames, and at least 8 are needed to learn from; give longer clips, or",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line_before_a_model_is_loaded(
    arguments: str, message: str, clip: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(clip.parent)
    Path("empty.txt").write_text("")
    make_video(clip.with_name("short.mp4"), moving_square(5), 25)
    monkeypatch.setattr("stream.extensions.adapt.run.load_qwen", no_model)
    assert main(["adapt", *arguments.split()]) == 2
    assert message in one_line(capsys)
    assert not Path("made").exists()


def test_a_bare_number_of_minutes_means_minutes() -> None:
    from stream.extensions.adapt.command import _minutes

    assert (_minutes("10"), _minutes("1.5"), _minutes("90s"), _minutes("1h")) == (10, 1.5, 1.5, 60)


SMALL_DISK = """
import resource, sys
from stream.cli import main
from arr_coc.qwen import loading
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
sys.exit(main(sys.argv[2:]))
"""


def test_on_a_full_disk_what_was_saved_stays(model: Path, clip: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    arguments = ["adapt", str(clip), "-m", str(model), "-o", str(folder), "--frames", "10", "--steps", "3"]
    failed = subprocess.run(
        [sys.executable, "-c", SMALL_DISK, "3000", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=LIMIT_S,
    )
    assert failed.returncode == 1
    (line,) = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
    assert f"cannot write {folder}: File too large; the last save is intact; make room, and go on" in line
    assert [path.name for path in folder.iterdir()] == ["adapt.json"]
    assert main([*arguments, "--resume"]) == 0


def test_ctrl_c_saves_and_reports_how_to_continue(model: Path, clip: Path, tmp_path: Path) -> None:
    folder = tmp_path / "made"
    arguments = ["adapt", str(clip), "-m", str(model), "-o", str(folder), "--frames", "10"]
    with subprocess.Popen(
        [sys.executable, "run_stream.py", *arguments, "--steps", "1000000"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("learning"):
                break
        run.send_signal(signal.SIGINT)
        rest = run.stderr.read()
        assert run.wait(LIMIT_S) == 130
    assert "stopping: saving the allocator" in rest
    assert "not finished: the same command with --resume continues from here" in rest
    assert {path.name for path in folder.iterdir()} >= {"adapt.json", "checkpoint.pt", "pictures.pt", "config.json"}
    assert main([*arguments, "--steps", "1", "--resume"]) == 0
