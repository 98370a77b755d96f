"""The programs of examples/ run as their texts say."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from stream.extensions.detections.message import read_detections
from tests.support.network import LIMIT_S, free_port
from tests.support.video import make_video, moving_square

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


@contextmanager
def started(folder: Path, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A program of Python that runs in a folder, and is killed at the end if it still runs."""
    program = subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with program:
        try:
            yield program
        finally:
            program.kill()


def output(folder: Path, *command: str) -> str:
    """What a program of Python prints, which must end well."""
    with started(folder, *command) as program:
        text, _ = program.communicate(timeout=LIMIT_S)
        assert program.returncode == 0, text
    return text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("several_questions", "  8.0  Is there a green star?   yes."),
        ("fields", "  8.0  {'answer': 'yes'}"),
        ("relevance_map", "99 tokens instead of 880"),
        ("own_sink", "  4.5  a green star moves up and a black square stays still.  (65 tokens of 240)"),
    ],
)
def test_an_example_prints(name: str, line: str, tmp_path: Path) -> None:
    assert line in output(tmp_path, str(EXAMPLES / f"{name}.py")).splitlines()


def test_a_picture_is_asked_about_and_its_heat_map_written(tmp_path: Path) -> None:
    assert output(tmp_path, str(EXAMPLES / "picture.py")) == "left.  (65 visual tokens of 240)\n"
    assert (tmp_path / "heatmap.png").stat().st_size > 100


def test_frames_of_the_own_source_are_answered_about(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with started(tmp_path, str(EXAMPLES / "own_source.py"), endpoint):
        text = output(tmp_path, str(ROOT / "run_stream.py"), "watch", f"zmq+{endpoint}", "--max-frames", "8")
    assert "a red square" in text


def test_the_robot_stops_while_the_answer_is_yes(tmp_path: Path) -> None:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    run = ("watch", "scene:demo", "--until", "is there a green star?", "--go-on", "--publish", endpoint)
    with started(tmp_path, str(EXAMPLES / "robot.py"), endpoint) as robot:
        assert robot.stdout is not None
        assert robot.stdout.readline() == "driving\n"
        output(tmp_path, str(ROOT / "run_stream.py"), *run)
        actions = [line.split(" at ")[0] for line in robot.stdout.read().splitlines()]
    assert actions[-3:] == ["stop", "driving", "the run has ended; stop"]


def test_the_detector_publishes_boxes_of_what_moves_and_a_run_takes_them(tmp_path: Path) -> None:
    video = make_video(tmp_path / "square.mp4", moving_square(40, 320, 192), 25)
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with (
        context,
        started(tmp_path, str(EXAMPLES / "detector.py"), str(video), endpoint),
        context.socket(zmq.SUB) as socket,
    ):
        socket.linger, socket.rcvtimeo = 0, round(LIMIT_S * 1000)
        socket.subscribe(b"")
        socket.connect(endpoint)
        left, top, right, bottom = next(
            boxes[0] for _ in range(1000) if len(boxes := read_detections(socket.recv()).boxes) == 1
        ).tolist()
        # the square has 48 pixels a side at y = 48, and moves from x = 2 to 80
        assert 0.15 < top < 0.3 < bottom < 0.6
        assert left < right < 0.6
        watched = ("watch", str(video), "--max-frames", "20", "--detections", f"zmq+{endpoint}", "--every", "none")
        text = output(tmp_path, str(ROOT / "run_stream.py"), *watched)
    assert "detections" not in text


def test_the_notebook_runs(tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "notebook.py").write_text(code, encoding="utf-8")
    output(tmp_path, "notebook.py")
    assert any("image/png" in cell_output.get("data", {}) for cell in cells for cell_output in cell.get("outputs", []))
