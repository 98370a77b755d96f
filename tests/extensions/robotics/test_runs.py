"""Recordings of whole runs: the same answers at the same times in every file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rosbags.rosbag2 import Reader

from arr_coc.types import NS_PER_S
from stream.cli import main
from stream.runtime.frame_stages import run_in_threads
from tests.support.recordings import Recorded, read_mcap
from tests.support.video import make_video, moving_square

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "ros2.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run's outputs."""
    folder = tmp_path_factory.mktemp("run")
    video = str(make_video(folder / "square.mp4", list(moving_square(24, 192, 128)), 12))
    outputs = [part for suffix in ("mcap", "jsonl", "rosbag") for part in ("-o", str(folder / f"a.{suffix}"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(run_in_threads.__kwdefaults__, "model_loader", "tests.support.answer_models:FakeAnswerModel")
        options = ["--every", "0.5", "--single-process", "--until", "is it bright?", "--go-on", "-q", "What?"]
        assert main(["caption", video, *outputs, *options, "-s", "output.pictures_every=10"]) in (0, 1)
    return folder


@pytest.fixture(scope="module")
def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "a.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def messages(run: Path) -> list[Recorded]:
    return read_mcap(run / "a.mcap")


def times_ns(lines: list[dict[str, Any]], kind: str) -> list[int]:
    return [round(line["pts_s"] * NS_PER_S) for line in lines if line["type"] == kind]


def test_the_mcap_file_has_every_line_of_the_jsonl(
    run: Path, lines: list[dict[str, Any]], messages: list[Recorded]
) -> None:
    logged = [message for message in messages if message.schema.startswith("arr_coc.") and message.topic != "/frame"]
    text = (run / "a.jsonl").read_text(encoding="utf-8")
    assert [message.data.decode() for message in logged] == text.splitlines()
    assert [message.topic for message in logged] == [f"/{line['type']}" for line in lines]
    times = [
        (message.time_ns, round(line["pts_s"] * NS_PER_S))
        for message, line in zip(logged, lines, strict=True)
        if "pts_s" in line
    ]
    assert len(times) > 5
    assert [actual for actual, _ in times] == [expected for _, expected in times]


def test_the_program_in_the_documents_prints_the_answers(
    run: Path, lines: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (run / "drive.mcap").write_bytes((run / "a.mcap").read_bytes())
    monkeypatch.chdir(run)
    exec(program, {})
    expected = [f"{line['pts_s']:.1f} s: {line['text']}" for line in lines if line["type"] == "answer"]
    assert capsys.readouterr().out.splitlines() == expected


def test_there_is_a_picture_of_each_frame_that_is_asked_about_and_of_every_tenth(
    lines: list[dict[str, Any]], messages: list[Recorded]
) -> None:
    question_frames = {line["frame_index"] for line in lines if line["type"] in ("answer", "look")}
    pictures = [message.time_ns for message in messages if message.topic == "/picture"]
    assert pictures == sorted(round(frame / 12 * 1_000_000) * 1000 for frame in question_frames | {0, 10, 20})
    answers = [message.time_ns for message in messages if message.topic == "/answer"]
    assert [message.time_ns for message in messages if message.topic == "/caption"] == answers
    assert set(answers) <= set(pictures)
    assert len([message for message in messages if message.topic == "/frame"]) == 24


def test_the_regions_are_those_that_the_model_was_shown(lines: list[dict[str, Any]], messages: list[Recorded]) -> None:
    tokens = {round(line["pts_s"] * NS_PER_S): line["tokens_used"] for line in lines if line["type"] == "answer"}
    outlines = {message.time_ns: len(message.value.points) for message in messages if message.topic == "/regions"}
    assert {at_ns: outlines[at_ns] for at_ns in tokens} == tokens


def test_the_bag_has_the_same_answers_and_pictures(
    run: Path, lines: list[dict[str, Any]], messages: list[Recorded]
) -> None:
    with Reader(run / "a.rosbag") as reader:
        times: dict[str, list[int]] = {}
        for connection, time_ns, _ in reader.messages():
            times.setdefault(connection.topic, []).append(time_ns)
    pictures = [message.time_ns for message in messages if message.topic == "/picture"]
    assert times["/answer"] == [message.time_ns for message in messages if message.topic == "/answer"]
    assert times["/answer"] == times_ns(lines, "answer")
    assert times["/picture/compressed"] == pictures
    assert set(times["/regions"]) == set(times["/relevance"]) == set(pictures)
