"""MCAP files read back: messages of events, their times, and existing files."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
from mcap.reader import make_reader

from stream.config import Config, OutputConfig
from stream.errors import OutputError, OutputFailed
from stream.events import (
    AnswerDeltaEvent,
    Detection,
    Event,
    Explanation,
    Notice,
    Outage,
    QueryChanged,
    Restarted,
    encode_event,
)
from stream.extensions.robotics.event_schemas import LOGGED
from stream.extensions.robotics.mcap_file import McapSink
from stream.extensions.robotics.mcap_records import ENDING
from stream.extensions.robotics.section import RoboticsSection
from tests.stream.test_events import EVENTS
from tests.support.events import answer, detections, frame, summary, turned
from tests.support.full_disk import room_for
from tests.support.recordings import Recorded, picture, read_mcap

HOUR_NS = 3600 * 1_000_000_000


def recorded(path: Path, events: Sequence[Event], *, timing: bool = True, **values: object) -> list[Recorded]:
    sink = McapSink(str(path), Config(output=OutputConfig(timing=timing), robotics=RoboticsSection(**values)))
    for event in events:
        sink.write(event)
    sink.close()
    sink.close()
    return read_mcap(path)


def of(messages: Sequence[Recorded], topic: str) -> list[Recorded]:
    return [message for message in messages if message.topic == topic]


def test_events_are_the_lines_of_a_jsonl(tmp_path: Path) -> None:
    messages = recorded(tmp_path / "a.mcap", EVENTS)
    logged = [event for event in EVENTS if type(event) in LOGGED]
    records = [message for message in messages if message.schema.startswith("arr_coc.")]
    assert [message.data.decode() for message in records] == [encode_event(event) for event in logged]
    assert [message.schema for message in records] == [f"arr_coc.{type(event).__name__}" for event in logged]
    assert not {AnswerDeltaEvent, Explanation} & {type(event) for event in logged}


def test_a_picture_comes_with_its_maps_at_the_time_of_its_frame(tmp_path: Path) -> None:
    event = picture(7, 1.25, level=1)
    messages = recorded(tmp_path / "a.mcap", [frame(7, 1.25), event, answer(1.25, "a cat")], frame_id="front")
    assert {message.time_ns for message in messages} == {1_250_000_000}
    by_topic = {message.topic: message.value for message in messages}
    assert list(by_topic) == ["/frame", "/picture", "/relevance", "/heatmap", "/regions", "/caption", "/log", "/answer"]
    image = by_topic["/picture"]
    assert (image.data, image.format, image.frame_id) == (event.jpeg, "jpeg", "front")
    assert image.timestamp.ToNanoseconds() == 1_250_000_000
    grid = by_topic["/relevance"]
    assert (grid.width, grid.height, grid.step, grid.encoding, grid.frame_id) == (6, 4, 6, "mono8", "front")
    assert event.map is not None
    assert grid.data == event.map.relevance
    heat = cv2.imdecode(np.frombuffer(by_topic["/heatmap"].data, np.uint8), cv2.IMREAD_COLOR)
    assert heat.shape == (60, 95, 3)
    outlines = by_topic["/regions"].points
    corners = [[(point.x, point.y) for point in outline.points] for outline in outlines]
    assert corners[0] == [(32, 16), (48, 16), (48, 32), (32, 32)]
    assert len(corners) == 4
    assert outlines[0].outline_color != outlines[1].outline_color == outlines[2].outline_color
    stamps = [message.timestamp for message in (outlines[0], by_topic["/caption"].texts[0], grid)]
    assert {stamp.ToNanoseconds() for stamp in stamps} == {1_250_000_000}
    assert (by_topic["/log"].message, by_topic["/log"].name) == ("a cat", "answer")


def test_a_caption_is_wrapped_within_the_picture(tmp_path: Path) -> None:
    events = [picture(0, 0.0), answer(0.0, "a cat " * 12), answer(1.0, "\x1b[31mred"), answer(2.0, "")]
    long, plain, empty = of(recorded(tmp_path / "a.mcap", events), "/caption")
    texts = long.value.texts
    assert len(texts) == 2
    assert " ".join(text.text for text in texts) == ("a cat " * 12).strip()
    assert all(0 < text.position.x < 190 and 0 < text.position.y < 120 for text in texts)
    assert texts[0].position.y < texts[1].position.y - texts[0].font_size
    assert [text.text for text in plain.value.texts] == ["red"]
    assert list(empty.value.texts) == []


def test_a_frame_that_is_looked_at_and_answered_about_is_written_once(tmp_path: Path) -> None:
    events = [picture(3, 0.5, is_asked=False), picture(3, 0.5), picture(3, 0.5, shift=1), picture(4, 0.6)]
    messages = recorded(tmp_path / "a.mcap", events)
    counts = {topic: len(of(messages, topic)) for topic in ("/picture", "/regions", "/relevance", "/heatmap")}
    assert counts == {"/picture": 2, "/regions": 3, "/relevance": 3, "/heatmap": 3}


def test_messages_for_people_are_in_the_log(tmp_path: Path) -> None:
    begin = Outage(frame_index=0, pts_s=1.0, reason="timed out")
    end = Outage(frame_index=0, pts_s=1.0, reason="timed out", lasted_s=2.0, attempts=1)
    events = [
        *(
            Notice(code="loading", message="loading m"),
            Notice(code="a", message="careful"),
            begin,
            end,
            Restarted(process="answers", cause="killed", count=1),
        ),
        *(QueryChanged(query="Where?"), QueryChanged(query="Who?", error="too long"), turned(2.0)),
    ]
    lines = [message.value for message in of(recorded(tmp_path / "a.mcap", events), "/log")]
    assert [(line.level, line.name, line.message) for line in lines] == [
        (2, "notice", "loading m"),
        (3, "notice", "careful"),
        (3, "source", "timed out"),
        (2, "source", "the source is back"),
        (3, "restart", "answers: killed"),
        (2, "question", "Where?"),
        (2, "question", "Who? (refused: too long)"),
        (2, "here", "is it here? yes"),
    ]


def test_without_timing_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    def events(late: int) -> list[Event]:
        event = answer(0.5, "a cat")
        assert event.timing is not None
        return [frame(0, 0.0, allocate_ms=1.0 + late), picture(0, 0.0), event, summary(timing={"x": late})]

    messages = recorded(tmp_path / "a.mcap", events(1), timing=False)
    recorded(tmp_path / "b.mcap", events(2), timing=False)
    assert (tmp_path / "a.mcap").read_bytes() == (tmp_path / "b.mcap").read_bytes()
    assert not of(messages, "/frame")
    assert all(b"timing" not in message.data for message in messages)


@pytest.mark.parametrize("clock", ["media", "unix"])
def test_the_file_names_its_clock(tmp_path: Path, clock: str) -> None:
    events = [frame(0, 0.5, capture_ns=time.monotonic_ns()), picture(0, 0.5), answer(1.5, "a cat")]
    first, *_, last = recorded(tmp_path / "a.mcap", events, log_time=clock)
    with (tmp_path / "a.mcap").open("rb") as file:
        (metadata,) = make_reader(file).iter_metadata()
    assert (metadata.name, metadata.metadata) == ("arr_coc_stream", {"log_time": clock})
    assert last.time_ns - first.time_ns == 1_000_000_000
    assert (abs(time.time_ns() - first.time_ns) < HOUR_NS) == (clock == "unix")


def test_a_file_is_overwritten_with_the_first_event_only(tmp_path: Path) -> None:
    path, fresh = tmp_path / "a.mcap", tmp_path / "b.mcap"
    path.write_bytes(b"yesterday's" * 1000)
    for file in (path, fresh):
        McapSink(str(file), Config()).close()
    assert path.read_bytes() == b"yesterday's" * 1000
    assert not fresh.exists()
    assert len(recorded(path, [answer(0.0, "a cat")])) == 2


@pytest.mark.parametrize(("answers", "ended", "keeps_old"), [(2, None, True), (2, "finished", False), (6, None, False)])
def test_a_continued_run_loses_nothing_of_the_file(
    tmp_path: Path, answers: int, ended: str | None, *, keeps_old: bool
) -> None:
    path = tmp_path / "a.mcap"
    recorded(path, [answer(float(number), f"answer {number}") for number in range(4)])
    (tmp_path / "link.mcap").symlink_to(path)
    before = path.read_bytes()
    sink = McapSink(str(tmp_path / "link.mcap"), Config(), resume=True)
    for number in range(answers):
        sink.write(answer(float(number), f"again {number}"))
    if ended is not None:
        sink.write(summary(ended=ended))
    assert path.read_bytes() == before
    sink.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.mcap", "link.mcap"]
    assert (path.read_bytes() == before) == keeps_old
    texts = [message.value.message for message in read_mcap(path, "/log")]
    assert texts == ([f"answer {at}" for at in range(4)] if keeps_old else [f"again {at}" for at in range(answers)])


@pytest.mark.parametrize("content", [None, b""])
def test_a_continued_run_without_a_file_makes_one(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "a.mcap"
    if content is not None:
        path.write_bytes(content)
    sink = McapSink(str(path), Config(), resume=True)
    sink.write(answer(0.0, "a cat"))
    sink.close()
    assert [message.value.message for message in read_mcap(path, "/log")] == ["a cat"]
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_another_run_writes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    with path.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="another run is writing"):
            McapSink(str(path), Config())
    with pytest.raises(OutputError, match="there is no folder"):
        McapSink(str(tmp_path / "no" / "a.mcap"), Config())


def test_answers_are_in_the_file_at_once(tmp_path: Path) -> None:
    """A killed run leaves the file without an ending, and every whole record can be read."""
    sink = McapSink(str(tmp_path / "a.mcap"), Config())
    for number in range(3):
        sink.write(answer(float(number), f"answer {number}"))
        left = (tmp_path / "a.mcap").read_bytes()
        texts = [message.value.message for message in read_mcap(left + ENDING, "/log")]
        assert texts == [f"answer {at}" for at in range(number + 1)]
    sink.close()


def test_a_full_disk_is_reported_once_and_the_file_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    sink = McapSink(str(path), Config())
    number = 0

    def write_all() -> None:
        nonlocal number
        for number in range(1000):
            sink.write(answer(float(number), f"answer {number}"))

    with room_for(9000):
        with pytest.raises(OutputFailed, match=r"cannot write '.*a\.mcap': File too large"):
            write_all()
        sink.close()
    texts = [message.value.message for message in read_mcap(path, "/log")]
    assert texts == [f"answer {at}" for at in range(len(texts))]
    assert 3 < number - 2 <= len(texts) <= number
    assert path.stat().st_size <= 9000


def test_on_a_disk_without_any_room_no_file_is_left(tmp_path: Path) -> None:
    sink = McapSink(str(tmp_path / "a.mcap"), Config())
    with room_for(0), pytest.raises(OutputFailed, match="File too large"):
        sink.write(answer(0.0, "a cat"))
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_at_the_end_is_reported_too(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    sink = McapSink(str(path), Config())
    sink.write(answer(0.0, "a cat"))
    sink.write(frame(1, 0.5))
    with room_for(path.stat().st_size + 60), pytest.raises(OutputFailed, match="File too large"):
        sink.close()
    sink.close()
    assert [message.value.message for message in read_mcap(path, "/log")] == ["a cat"]


def test_boxes_are_annotations_of_the_picture_until_the_next_answer(tmp_path: Path) -> None:
    label = Detection(label="<b>\x1b[31mcar" + "x" * 100, box=[0.0, 0.0, 190.0, 120.0])
    events = [
        detections(0.0),
        picture(0, 0.0, level=1),
        answer(0.0, '[{"bbox_2d": [1, 2, 3, 4], "label": "cat"}]'),
        detections(0.0),
        detections(0.5, label),
        answer(1.0, "no boxes"),
        answer(2.0, "none either"),
    ]
    messages = recorded(tmp_path / "a.mcap", events)
    first, second, empty = [item.value for item in of(messages, "/boxes")]
    (loop,) = first.points
    assert [(point.x, point.y) for point in loop.points] == [(9.5, 6), (47.5, 6), (47.5, 30), (9.5, 30)]
    (circle,) = first.circles
    assert (circle.position.x, circle.position.y) == (19, 45)
    assert [item.text for item in first.texts] == ["cat 0.50", "dog"]
    assert [item.text for item in second.texts] == ["<b>car" + "x" * 33 + "…"]
    assert not [*empty.points, *empty.circles, *empty.texts]
    assert [item.text for item in of(messages, "/caption")[0].value.texts] == ["cat"]
    assert len(of(messages, "/detections")) == 3
