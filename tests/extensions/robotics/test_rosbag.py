"""ROS 2 bags read back, by rosbags and by another reader of MCAP."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag2 import Reader, Writer

from stream.config import Config
from stream.errors import OutputError, OutputFailed
from stream.events import Event
from stream.extensions.robotics import rosbag
from stream.extensions.robotics.ros_messages import RosMessages
from stream.extensions.robotics.rosbag import TOPICS, RosbagSink
from stream.extensions.robotics.section import RoboticsSection
from tests.support.events import answer, detections, frame, summary
from tests.support.full_disk import room_for
from tests.support.recordings import picture, read_mcap

EVENTS = [
    frame(0, 0.0),
    picture(0, 0.0),
    answer(0.0, "a \x1b[31mcat"),
    picture(5, 0.5, level=1, shift=3),
    frame(9, 0.9),
    answer(0.5, "late", frame_index=5),
    picture(5, 0.5, level=1, shift=3),
    summary(),
]


def write(path: Path, events: Sequence[Event] = EVENTS, **values: object) -> Path:
    sink = RosbagSink(str(path), Config(robotics=RoboticsSection(**values)))  # type: ignore[arg-type]
    for event in events:
        sink.write(event)
    sink.close()
    sink.close()
    return path


def read(path: Path) -> list[tuple[str, int, Any]]:
    """Return topic, time and message of each record, as read by rosbags."""
    store = RosMessages("").store
    with Reader(path) as reader:
        assert {connection.topic: connection.msgtype for connection in reader.connections} == TOPICS
        return [
            (connection.topic, time_ns, store.deserialize_cdr(data, connection.msgtype))
            for connection, time_ns, data in reader.messages()
        ]


def test_messages_have_the_times_of_their_frames(tmp_path: Path) -> None:
    messages = read(write(tmp_path / "a.rosbag"))
    first = ["/picture/compressed", "/regions", "/relevance", "/answer"]
    assert [(topic, time_ns) for topic, time_ns, _ in messages] == [
        *((topic, 0) for topic in first),
        *((topic, 500_000_000) for topic in first),
    ]
    headers = [message.header for _, _, message in messages if hasattr(message, "header")]
    assert [(header.stamp.sec, header.stamp.nanosec, header.frame_id) for header in headers[3:]] == [
        (0, 500_000_000, "camera")
    ] * 3
    assert [message.data for topic, _, message in messages if topic == "/answer"] == ["a cat", "late"]


def test_regions_are_detections(tmp_path: Path) -> None:
    path = write(tmp_path / "a.rosbag", frame_id="front")
    array = [message for topic, _, message in read(path) if topic == "/regions"][1]
    assert array.header.frame_id == "front"
    boxes = [
        (
            detection.bbox.center.position.x,
            detection.bbox.center.position.y,
            detection.bbox.size_x,
            detection.bbox.size_y,
        )
        for detection in array.detections
    ]
    assert boxes[:2] == [(40, 24, 16, 16), (79.5, 46, 31, 28)]
    guesses = [detection.results[0].hypothesis for detection in array.detections]
    assert [guess.class_id for guess in guesses] == ["0", "1", "6", "10"]
    assert guesses[0].score == pytest.approx(83 / 255)


def test_pictures_and_relevance_are_as_they_were(tmp_path: Path) -> None:
    messages = [message for _, _, message in read(write(tmp_path / "a.rosbag"))]
    event = picture(0, 0.0)
    assert event.map is not None
    assert bytes(messages[0].data) == event.jpeg
    grid = messages[2]
    assert (grid.encoding, grid.height, grid.width, grid.step) == ("mono8", 4, 6, 6)
    assert np.asarray(grid.data).tobytes() == event.map.relevance


def test_another_reader_finds_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "a.rosbag")
    messages = read_mcap(path / "a.rosbag.mcap")
    assert [message.topic for message in messages] == [topic for topic, _, _ in read(path)]
    detections = next(message.value for message in messages if message.topic == "/regions")
    assert [detection.results[0].hypothesis.class_id for detection in detections.detections] == ["0", "1", "6", "10"]
    assert messages[3].value.data == "a cat"
    assert bytes(messages[0].value.data) == picture(0, 0.0).jpeg


def test_types_are_those_of_ros() -> None:
    """ROS 2 publishes hashes of its types, which change with any field."""
    store = RosMessages("camera").store
    hashes = {kind: store.hash_rihs01(kind) for kind in TOPICS.values()}
    assert hashes["std_msgs/msg/String"].endswith("df668c740482bbd48fb39d76a70dfd4bd59db1288021743503259e948f6b1a18")
    assert hashes["sensor_msgs/msg/Image"].endswith("d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47")


def test_a_bag_is_never_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "a.rosbag")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(OutputError, match="exists already, and a bag is never overwritten; name another"):
        RosbagSink(str(path), Config())
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    with pytest.raises(OutputError, match="there is no folder"):
        RosbagSink(str(tmp_path / "no" / "a.rosbag"), Config())


def test_a_bag_of_another_process_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.rosbag"
    opened = Writer.open

    def late(writer: Writer) -> None:
        path.mkdir()
        opened(writer)

    monkeypatch.setattr(rosbag.Writer, "open", late)
    with pytest.raises(OutputError, match="exists already"):
        RosbagSink(str(path), Config())
    assert list(path.iterdir()) == []


def test_a_bag_into_which_nothing_was_written_is_removed(tmp_path: Path) -> None:
    write(tmp_path / "a.rosbag", [frame(0, 0.0)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("size", "left"), [(0, False), (9000, True)])
def test_a_full_disk_is_reported_once_and_written_messages_stay(tmp_path: Path, size: int, *, left: bool) -> None:
    path = tmp_path / "a.rosbag"
    sink = RosbagSink(str(path), Config())
    number = 0

    def write_all() -> None:
        nonlocal number
        for number in range(100):
            sink.write(picture(number, float(number)))

    with room_for(size):
        with pytest.raises(OutputFailed, match=r"cannot write '.*a\.rosbag': File too large"):
            write_all()
        sink.close()
    if left:
        times = [message.time_ns for message in read_mcap(path / "a.rosbag.mcap", "/picture/compressed")]
        assert times == [at * 1_000_000_000 for at in range(len(times))]
        assert 2 < number - 2 <= len(times) <= number
    else:
        assert not path.exists()


def test_boxes_of_answers_are_detections_in_pixels_of_the_picture(tmp_path: Path) -> None:
    """The picture has 95x60 pixels, the source twice as many."""
    before = detections(0.0)
    events = [before, picture(0, 0.0, level=1), answer(0.0, "[]"), detections(0.0), summary()]
    path = write(tmp_path / "a.rosbag", events, frame_id="front")
    (array,) = [message.value for message in read_mcap(path / "a.rosbag.mcap") if message.topic == "/detections"]
    assert array.header.frame_id == "front"
    fields = [
        (
            detection.results[0].hypothesis.class_id,
            detection.results[0].hypothesis.score,
            (
                detection.bbox.center.position.x,
                detection.bbox.center.position.y,
                detection.bbox.size_x,
                detection.bbox.size_y,
            ),
        )
        for detection in array.detections
    ]
    assert fields == [("cat", 0.5, (28.5, 18.0, 38.0, 24.0)), ("dog", 1.0, (19.0, 45.0, 0.0, 0.0))]
    with Reader(path) as reader:
        assert {connection.topic for connection in reader.connections} == {*TOPICS, "/detections"}
