"""A run as a Rerun recording: read back row by row, whole however the run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest
from msgspec.structs import replace

from stream.config import Config
from tests.support.sections import opened_sinks

pytest.importorskip("rerun_cli", reason="no rerun-sdk, 700 MB: pip install 'arr-coc-stream[rerun]'")

from stream.config import AnswerConfig, OutputConfig
from stream.errors import OutputError, OutputFailed
from stream.events import (
    AnswerDeltaEvent,
    AskedPicture,
    Cut,
    Event,
    FrameMap,
    Notice,
    Outage,
    PictureChanged,
    QueryChanged,
    Restarted,
    Skipped,
    Started,
)
from stream.extensions.rerun.file import RerunFileSink
from stream.sinks.output_file import OutputFile
from tests.stream.runtime.test_pipeline import configured, run
from tests.support import rerun as support
from tests.support.events import answer, detections, frame, look, summary, turned
from tests.support.network import LIMIT_S
from tests.support.video import make_video, moving_square

STARTED = Started(source="camera", model="m", query="What?", backend="cpu")
REGIONS = [[0, 0, 0], [1, 0, 1], [6, 2, 1], [2, 0, 1]]
MAP = FrameMap(
    rows=4,
    cols=6,
    relevance=bytes(range(0, 240, 10)),
    regions=np.array(REGIONS, "<i2").tobytes(),
)


ENVIRONMENT = {**os.environ, "PYTHONPATH": "."}


def picture(index: int, pts_s: float, level: int = 0) -> AskedPicture:
    size = (128 >> level, 180 >> level, 3)  # the last column of tiles is not whole
    jpeg = cv2.imencode(".jpg", np.full(size, 90, np.uint8))[1].tobytes()
    return AskedPicture(frame_index=index, pts_s=pts_s, jpeg=jpeg, level=level, map=MAP)


def written(path: Path, *events: Event) -> dict[str, list[support.Row]]:
    with closing(RerunFileSink(str(path), "camera")) as sink:
        for event in events:
            sink.write(event)
    assert support.is_valid_rrd(path)
    return support.rows_of(path)


def test_frames_of_answers_are_read_back_with_their_tokens(tmp_path: Path) -> None:
    event = picture(5, 0.25)
    rows = written(tmp_path / "a.rrd", STARTED, frame(5, 0.25), event, event, answer(0.25, "a cat", frame_index=5))
    (image,) = rows["/frame"]
    assert bytes(image["blob"][0]) == event.jpeg
    assert (image["frame"], image["media"]) == (5, 0.25)
    classes, boxes = rows["/frame/tokens"]
    labels = {entry["class_id"]: entry["class_description"]["info"]["label"] for entry in classes["context"][0]}
    assert (labels[0], labels[2], labels[6]) == ("32×32 px", "128×128 px", "64×32 px")
    assert boxes["class_ids"] == [0, 1, 6, 2]
    corners = [
        [x - w, y - h, x + w, y + h] for (x, y), (w, h) in zip(boxes["centers"], boxes["half_sizes"], strict=True)
    ]
    assert corners == [[0, 0, 32, 32], [64, 0, 128, 64], [64, 64, 128, 96], [128, 0, 180, 128]]
    (heat,) = rows["/relevance"]
    values = np.frombuffer(bytes(heat["buffer"][0]), np.float32)
    assert values == pytest.approx(np.arange(0, 240, 10) / 255)


def test_boxes_fit_a_picture_that_was_halved(tmp_path: Path) -> None:
    rows = written(tmp_path / "a.rrd", picture(0, 0.0, level=1))
    boxes = rows["/frame/tokens"][-1]
    assert boxes["half_sizes"][:2] == [[8, 8], [16, 16]]


def test_texts_and_figures_stand_at_their_times(tmp_path: Path) -> None:
    frames = [frame(number, number / 10, tokens=60 + number) for number in range(100)]
    rows = written(
        tmp_path / "a.rrd",
        STARTED,
        *frames[:40],
        AnswerDeltaEvent(answer=0, text="a", pts_s=None),
        answer(3.9, "a \x1b[31mcat\nsat", frame_index=39),
        QueryChanged(query="Where?"),
        QueryChanged(query="Who?", error="no"),
        *frames[40:],
        look(9.9, yes=0.75),
        Notice(code="x", message="mind"),
        Cut(frame_index=99, pts_s=9.9, score=0.5),
        PictureChanged(frame_index=99, pts_s=9.9, reason="resolution", width_px=64, height_px=32),
        Skipped(frame_index=99, pts_s=9.9, what="a packet", reason="damaged"),
        Outage(frame_index=99, pts_s=9.9, reason="gone", lasted_s=2.0),
        Restarted(process="answers", cause="killed", count=1),
        replace(turned(9.9), frame_index=99),
        summary(),
    )
    lines = [(row["text"][0], row["level"][0]) for row in rows["/text"]]
    assert lines[:4] == [
        ("m · camera", "INFO"),
        ("a cat sat", "INFO"),
        ("question: Where?", "INFO"),
        ("no", "WARN"),
    ]
    assert {text for text, _ in lines[4:]} == {
        "mind",
        "cut (0.50)",
        "the picture changed its resolution: 64×32",
        "skipped: a packet, damaged",
        "source lost: gone, back after 2.0 s",
        "answers restarted: killed",
        "is it here? yes",
        "end: finished",
    }
    assert [(row["frame"], row["media"]) for row in rows["/text"]][1] == (39, 3.9)
    assert {row["frame"] for row in rows["/text"][4:]} == {99}
    assert [row["text"][0] for row in rows["/answer"]] == ["What?", "What?\n\na cat sat", "Where?"]
    assert [row["scalars"] for row in rows["/figures/tokens"]] == [[60.0 + number] for number in range(100)]
    assert [row["media"] for row in rows["/figures/tokens"]] == [number / 10 for number in range(100)]
    assert {row["scalars"][0] for row in rows["/figures/latency_ms/frame"]} == {5.0}
    assert [row["scalars"][0] for row in rows["/figures/fps"]][1:] == pytest.approx([10.0] * 99)
    assert [row["scalars"][0] for row in rows["/figures/latency_ms/first_text"]] == [40.0]
    assert [row["scalars"][0] for row in rows["/figures/yes"]] == [0.75]


def test_a_run_writes_its_answers(tmp_path: Path) -> None:
    video = str(make_video(tmp_path / "a.mp4", list(moving_square(12, 192, 128)), 10))
    path = tmp_path / "run.rrd"
    output = OutputConfig(paths=(str(path),))
    sinks = opened_sinks(Config(source=video, output=output))
    for event in run(configured(video, answer=AnswerConfig(every_s=0.5), output=output)).events:
        for sink in sinks:
            sink.write(event)
    for sink in sinks:
        sink.close()
        sink.close()
    rows = support.rows_of(path)
    assert support.is_valid_rrd(path)
    assert [row["frame"] for row in rows["/frame"]] == [0, 5, 10, 11]
    assert len(rows["/figures/tokens"]) == 12


def test_an_existing_file_stays_until_there_is_something_to_write(tmp_path: Path) -> None:
    old = tmp_path / "old.rrd"
    old.write_bytes(b"an older run")
    for path in (old, tmp_path / "new.rrd"):
        RerunFileSink(str(path), "camera").close()
    assert old.read_bytes() == b"an older run"
    assert not (tmp_path / "new.rrd").exists()


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    with closing(OutputFile(str(tmp_path / "a.rrd"))), pytest.raises(OutputError, match="another run is writing"):
        RerunFileSink(str(tmp_path / "a.rrd"), "camera")


def test_a_full_disk_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "full.rrd").symlink_to("/dev/full")
    with (
        closing(RerunFileSink(str(tmp_path / "full.rrd"), "camera")) as sink,
        pytest.raises(OutputFailed, match=r"^cannot write '.*full.rrd': No space left on device$"),
    ):
        sink.write(STARTED)


FILLS = """
import os, resource, signal, sys
from stream.extensions.rerun import file
from stream.errors import OutputFailed
from stream.extensions.rerun.file import RerunFileSink
from tests.support.events import answer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
file.DISK_WAIT_S = 0.1
if sys.argv[2] == "full":
    file.LEAST_BYTES = 1 << 62
else:
    file.DISK_WAITS = 2
sink = RerunFileSink(sys.argv[1], "camera")
try:
    for number in range(10_000):
        sink.write(answer(float(number), f"answer {number}", frame_index=number))
except OutputFailed as error:
    print(number, error)
sink.close()
"""


@pytest.mark.parametrize(("disk", "reason"), [("full", "No space left on device"), ("stuck", "it takes nothing more")])
def test_a_disk_that_fills_on_the_way_leaves_what_was_written(disk: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.rrd"
    process = subprocess.run(
        [sys.executable, "-c", FILLS, path, disk], timeout=LIMIT_S, env=ENVIRONMENT, capture_output=True, text=True
    )
    number, message = process.stdout.strip().split(" ", 1)
    assert (message, process.stderr) == (f"cannot write {str(path)!r}: {reason}", "")
    assert len(support.rows_of(path)["/text"]) == int(number) > 5


KILLED = """
import os, signal, sys
from stream.extensions.rerun.file import RerunFileSink
from tests.support.events import answer, frame
sink = RerunFileSink(sys.argv[1], "camera")
for number in range(3):
    sink.write(frame(number, float(number)))
    sink.write(answer(float(number), f"answer {number}", frame_index=number))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_is_killed_leaves_all_of_its_answers(tmp_path: Path) -> None:
    path = tmp_path / "a.rrd"
    process = subprocess.run([sys.executable, "-c", KILLED, path], timeout=LIMIT_S, env=ENVIRONMENT)
    assert process.returncode == -signal.SIGKILL
    assert [row["text"][0] for row in support.rows_of(path)["/text"]] == ["answer 0", "answer 1", "answer 2"]


def test_boxes_are_shown_over_the_picture_until_the_next_answer(tmp_path: Path) -> None:
    events = [
        STARTED,
        detections(0.0, size=(180, 128)),
        picture(5, 0.25, level=1),
        answer(0.25, "[]", frame_index=5),
        detections(0.25, frame_index=5, size=(180, 128)),
        answer(1.0, "no boxes", frame_index=9),
        answer(2.0, "none", frame_index=10),
    ]
    rows = written(tmp_path / "a.rrd", *events)
    boxes, cleared = rows["/frame/boxes"]
    assert boxes["labels"] == ["cat 0.50"]
    assert (boxes["frame"], boxes["centers"][0], boxes["half_sizes"][0]) == (5, [28.5, 18.0], [19.0, 12.0])
    points, _ = rows["/frame/points"]
    assert (points["positions"], points["labels"]) == ([[19.0, 45.0]], ["dog"])
    assert cleared["frame"] == 9
