"""The sink of the past: which events become moments, their times, and their pictures."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from stream.commands.run import check_run
from stream.config import Config, OutputConfig
from stream.errors import OutputError
from stream.events import AnswerUnchanged, AskedPicture, ClipWritten, Cut, Event, Match, Outage, Started
from stream.extensions.past.moments import ANSWER, HELD_MAX_MS, MATCH, OUTAGE
from stream.extensions.past.search import FoundMoment, PastReader, Search
from stream.extensions.past.section import PastSection
from stream.extensions.past.sink import PICTURES_KEPT, PastSink
from stream.protocol.picture_files import encode_jpeg, smaller_jpeg
from stream.runtime.session import run_session
from stream.sources.address import camera_name
from tests.support.events import answer, frame, summary
from tests.support.fleets import FleetRecorder
from tests.support.past import BEGIN_MS
from tests.support.runs import ScriptedRun
from tests.support.sections import sections

ROOT = Path(__file__).resolve().parents[3]

STARTED = Started(source="a", model="tiny", query="What?", backend="cpu")
MATCHED = Match(match=1, watch="gate", frame_index=7, pts_s=2.0, question="is it open?", yes=0.9, certain=0.8)


@dataclass
class RememberedRun:
    """A sink, its clock, and what it has written."""

    path: str
    sink: PastSink
    now_ms: list[int]

    def write(self, *events: Event) -> None:
        for event in events:
            self.sink.write(event)

    def found(self) -> list[FoundMoment]:
        """Close the sink and return the moments, the oldest first."""
        self.sink.close()
        with closing(PastReader(self.path)) as reader:
            return reader.find(Search())[::-1]

    def picture(self, moment: FoundMoment) -> bytes | None:
        with closing(PastReader(self.path)) as reader:
            return reader.picture(moment.id)


@pytest.fixture
def open_run(tmp_path: Path) -> Iterator[Callable[..., RememberedRun]]:
    runs: list[RememberedRun] = []

    def opened(*, resume: bool = False, **values: Any) -> RememberedRun:
        path, now_ms = str(tmp_path / "past.sqlite"), [BEGIN_MS]
        config = Config(
            source="rtsp://user:secret@yard.local/1",
            **sections(**{"past__file": path, "past__max_days": None, **values}),
        )
        runs.append(RememberedRun(path, PastSink(config, resume=resume, unix_ms=lambda: now_ms[0]), now_ms))
        runs[-1].write(STARTED)
        return runs[-1]

    yield opened
    for run in runs:
        run.sink.close()


def picture(index: int, width: int = 640, *, has_question: bool = True) -> AskedPicture:
    image = np.full((width // 2, width, 3), 60, np.uint8)
    return AskedPicture(frame_index=index, pts_s=0.0, jpeg=encode_jpeg(image), asked=has_question)


def test_an_answer_is_a_moment_with_the_time_and_the_picture_of_its_frame(
    open_run: Callable[..., RememberedRun],
) -> None:
    run = open_run()
    run.write(frame(7, 2.0), picture(7))
    run.now_ms[0] += 3000
    run.write(answer(2.0, "a red car", frame_index=7))
    (moment,) = run.found()
    assert (moment.kind, moment.text, moment.question, moment.frame_index, moment.pts_s) == (
        ANSWER,
        "a red car",
        "What?",
        7,
        2.0,
    )
    assert (moment.unix_ms, moment.last_ms) == (BEGIN_MS, BEGIN_MS)
    jpeg = run.picture(moment)
    assert jpeg is not None
    assert Image.open(io.BytesIO(jpeg)).size == (320, 160)


def test_without_a_picture_the_time_is_that_of_the_latency(open_run: Callable[..., RememberedRun]) -> None:
    run = open_run()
    run.now_ms[0] += 1000
    run.write(answer(2.0, "a car"), answer(3.0, "a dog", timing=None))
    assert [(moment.unix_ms, moment.picture) for moment in run.found()] == [
        (BEGIN_MS + 940, False),
        (BEGIN_MS + 1000, False),
    ]


def test_an_answer_of_a_live_source_has_the_time_of_its_frame(open_run: Callable[..., RememberedRun]) -> None:
    run = open_run()
    run.write(replace(answer(2.0, "a car"), time="2026-11-28T10:00:02.500+01:00"))
    (moment,) = run.found()
    assert moment.unix_ms == 1_795_856_402_500


def test_a_small_picture_stays_and_a_broken_one_is_left_out(open_run: Callable[..., RememberedRun]) -> None:
    run, small = open_run(), picture(1, 64)
    broken = AskedPicture(frame_index=2, pts_s=0.0, jpeg=b"no picture")
    other = replace(picture(3), asked=False)
    run.write(small, broken, other, *(answer(0.0, str(index), frame_index=index) for index in (1, 2, 3)))
    pictures = {moment.text: run.picture(moment) for moment in run.found()}
    assert pictures == {"1": small.jpeg, "2": None, "3": None}
    assert smaller_jpeg(b"", 320) is None


def test_only_the_newest_pictures_wait_for_their_answers(open_run: Callable[..., RememberedRun]) -> None:
    run = open_run()
    run.write(*(picture(index, 64) for index in range(PICTURES_KEPT + 1)))
    run.write(answer(0.0, "old", frame_index=0), answer(0.0, "new", frame_index=1))
    assert {moment.text: moment.picture for moment in run.found()} == {"old": False, "new": True}


def unchanged(pts_s: float, text: str) -> AnswerUnchanged:
    event = answer(pts_s, text)
    return AnswerUnchanged(
        **{name: getattr(event, name) for name in event.__struct_fields__}, since_s=0.0, probability=None
    )


def test_the_same_words_extend_the_answer(open_run: Callable[..., RememberedRun]) -> None:
    run = open_run()
    events = answer(0.0, "a car"), answer(2.0, "a car"), unchanged(4.0, "a car"), answer(6.0, "a dog")
    for at, event in enumerate(events):
        run.now_ms[0] = BEGIN_MS + 60 + 2000 * at
        run.write(event)
    car, dog = run.found()
    assert (car.text, car.times, car.unix_ms, car.last_ms, car.end_s) == ("a car", 3, BEGIN_MS, BEGIN_MS + 4000, 4.0)
    assert (dog.text, dog.times) == ("a dog", 1)


@pytest.mark.parametrize(
    "between",
    [
        Cut(frame_index=1, pts_s=1.0, score=0.9),
        Outage(frame_index=1, pts_s=1.0, reason="gone"),
        answer(1.0, "a dog"),
        replace(answer(1.0, "a car"), query="Which car?"),
        None,
    ],
)
def test_after_a_change_the_same_words_are_a_new_moment(
    open_run: Callable[..., RememberedRun], between: Event | None
) -> None:
    run = open_run()
    run.write(answer(0.0, "a car"))
    if between is None:
        run.now_ms[0] += HELD_MAX_MS
    else:
        run.write(between)
    run.write(answer(2.0, "a car"))
    assert [moment.pts_s for moment in run.found() if (moment.text, moment.question) == ("a car", "What?")] == [
        0.0,
        2.0,
    ]


def test_an_unchanged_answer_that_is_not_there_is_written(open_run: Callable[..., RememberedRun]) -> None:
    run = open_run()
    run.write(unchanged(4.0, "a car"))
    assert [(moment.kind, moment.text) for moment in run.found()] == [(ANSWER, "a car")]


def test_matches_and_outages_are_moments(open_run: Callable[..., RememberedRun]) -> None:
    run = open_run()
    run.write(picture(7, 64), MATCHED, replace(MATCHED, match=2, watch=""))
    run.write(Outage(frame_index=7, pts_s=3.0, reason="unplugged"))
    run.write(Outage(frame_index=7, pts_s=3.0, reason="unplugged", lasted_s=12.3))
    named_watch, unnamed_watch, outage, outage_end = run.found()
    assert (named_watch.kind, named_watch.watch, named_watch.text, named_watch.yes, named_watch.picture) == (
        *(MATCH, "gate", "gate: is it open?", 0.9, True),
    )
    assert unnamed_watch.text == "is it open?"
    assert [(moment.kind, moment.text, moment.picture) for moment in (outage, outage_end)] == [
        (OUTAGE, "source lost: unplugged", False),
        (OUTAGE, "source back after 12 s", False),
    ]


def test_a_match_that_had_to_hold_has_the_picture_of_the_last_check(open_run: Callable[..., RememberedRun]) -> None:
    run = open_run()
    run.write(picture(5, 64), picture(6, 96), replace(MATCHED, frame_index=9))
    (moment,) = run.found()
    assert moment.picture


def test_clips_belong_to_their_matches(open_run: Callable[..., RememberedRun]) -> None:
    run = open_run()
    run.write(MATCHED, replace(MATCHED, match=2))
    clip = ClipWritten(match=2, watch="gate", picture="2.jpg", video="2.mp4", start_s=0.0, end_s=4.0)
    run.write(clip, replace(clip, match=3), replace(clip, match=1, picture=None, video=None, error="the disk is full"))
    first, second = run.found()
    assert (first.clip_picture, first.clip_video) == (None, None)
    assert (second.clip_picture, second.clip_video) == ("2.jpg", "2.mp4")


def test_a_continued_run_replaces_the_interrupted_one(open_run: Callable[..., RememberedRun]) -> None:
    first = open_run()
    first.write(answer(0.0, "a"), answer(2.0, "b"))
    first.sink.close()
    second = open_run(resume=True)
    second.write(answer(0.0, "a"), answer(2.0, "b"), answer(4.0, "c"), summary())
    assert [moment.text for moment in second.found()] == ["a", "b", "c"]


def test_the_file_names_camera_and_source_without_secrets(open_run: Callable[..., RememberedRun]) -> None:
    run = open_run()
    run.write(answer(0.0, "a car"))
    (moment,) = run.found()
    assert moment.camera == moment.source == "rtsp://***@yard.local/1"
    yard = open_run(past__camera="yard")
    yard.write(answer(0.0, "a car"))
    assert yard.found()[-1].camera == "yard"
    assert camera_name(Config(source="/clips/lesson.mp4")) == "lesson.mp4"


def test_a_closed_sink_writes_nothing(open_run: Callable[..., RememberedRun]) -> None:
    run = open_run()
    run.sink.close()
    run.sink.close()
    run.write(answer(0.0, "late"))
    assert run.found() == []


def test_a_session_remembers_its_run_and_two_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "past.sqlite")
    for name in ("yard", "door"):
        config = Config(source="scene:demo", past=PastSection(file=path, camera=name))
        events = [STARTED, answer(0.0, f"at the {name}"), summary()]
        run_session(config, FleetRecorder().camera(""), make_run=lambda _, e=events: ScriptedRun(e), signals=False)  # type: ignore[misc, return-value, arg-type]
    with closing(PastReader(path)) as reader:
        assert {moment.camera: moment.text for moment in reader.find(Search())} == {
            "yard": "at the yard",
            "door": "at the door",
        }


def test_a_run_that_does_not_remember_loads_none_of_it() -> None:
    loaded = "import sys, stream.cli, stream.extensions.web.sink, stream.runtime.session; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True, cwd=ROOT)
    modules = set(process.stdout.split())
    assert "stream.extensions.web.sink" in modules
    assert not modules & {"sqlite3", "stream.extensions.past.sink", "stream.extensions.past.page"}


def test_places_that_can_hold_no_file_are_refused(tmp_path: Path) -> None:
    clip = tmp_path / "clip.mp4"
    clip.touch()
    folder = str(tmp_path)
    for remember, message in (
        (folder, "it is a folder; name a file in it"),
        (f"{folder}/none/past.sqlite", "there is no folder"),
        (f"{clip}/past.sqlite", "cannot write"),
        (str(clip), "is the input; it would be overwritten"),
        (f"{folder}/a.jsonl", "is given twice"),
    ):
        output = OutputConfig(paths=(f"{folder}/a.jsonl",))
        with pytest.raises(OutputError, match=message):
            check_run(Config(source=str(clip), output=output, past=PastSection(file=remember)))
