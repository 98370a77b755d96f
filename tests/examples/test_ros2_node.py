"""The ROS 2 node of examples/, with messages of real types, a real publisher and stand-ins for rclpy alone."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stream.config import Config
from stream.control import Ask
from stream.events import AskedPicture
from stream.extensions.robotics.pictures import ShownPicture
from stream.extensions.robotics.ros_messages import DETECTIONS, GRID, TEXT, RosMessages
from stream.extensions.zeromq.section import ZeromqSection
from stream.extensions.zeromq.sinks import ControlSink, PublishSink
from stream.monitor.health import RunMonitor
from stream.monitor.schema import event_message
from tests.support.events import answer, detections, frame
from tests.support.network import until
from tests.support.recordings import COLS, ROWS, picture
from tests.support.runs import ScriptedRun

PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "ros2" / "arr_coc_stream_ros"

STORE = RosMessages("").store


class RosType:
    """A message class as rclpy has it: every field has a default, an unknown one or one of another type is refused."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, **values: Any) -> Any:
        kind = STORE.types[self.name]
        fields_by_name = {field.name: field for field in fields(kind) if field.name != "__msgtype__"}
        assert values.keys() <= fields_by_name.keys()
        arguments = {
            name: values[name] if name in values else _default(str(field.type))
            for name, field in fields_by_name.items()
        }
        for name, field in fields_by_name.items():
            expected = {"float": float, "int": int, "str": str}.get(str(field.type))
            assert expected is None or type(arguments[name]) is expected, f"{self.name}.{name} is {arguments[name]!r}"
            if "ndarray" in str(field.type):
                arguments[name] = np.asarray(arguments[name])
        return kind(**arguments)


def _default(annotation: str) -> Any:
    for word, value in (("float", 0.0), ("int", 0), ("str", "")):
        if annotation == word:
            return value
    if annotation.startswith("list"):
        return []
    if "ndarray" in annotation:
        return np.zeros(36)
    return RosType(annotation.replace("__", "/"))()


class Publisher:
    """Keeps what is published."""

    def __init__(self, kind: RosType) -> None:
        self.kind, self.messages = kind, []  # type: tuple[RosType, list[Any]]

    def publish(self, message: Any) -> None:
        STORE.serialize_cdr(message, self.kind.name)
        self.messages.append(message)


class Node:
    """Stand-in for rclpy.node.Node."""

    parameters: dict[str, str] = {}  # noqa: RUF012

    def __init__(self, name: str) -> None:
        self.name = name
        self.warnings: list[str] = []
        self.handlers: dict[str, Callable[[Any], None]] = {}

    def declare_parameter(self, name: str, default: str) -> Any:
        return types.SimpleNamespace(value=self.parameters.get(name, default))

    def create_publisher(self, kind: RosType, topic: str, depth: int) -> Publisher:
        return Publisher(kind)

    def create_subscription(self, kind: RosType, topic: str, handler: Callable[[Any], None], depth: int) -> None:
        self.handlers[topic] = handler

    def create_timer(self, period_s: float, handler: Callable[[], None]) -> None:
        """Tests call the handler themselves."""

    def get_logger(self) -> Any:
        return types.SimpleNamespace(warning=self.warnings.append)

    def destroy_node(self) -> None:
        """Nothing to let go of."""


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """The package's modules, imported beside stand-ins for ROS."""
    packages = {
        "builtin_interfaces": ["Time"],
        "sensor_msgs": ["Image"],
        "std_msgs": ["Header", "String"],
        "vision_msgs": [
            *("BoundingBox2D", "Detection2D", "Detection2DArray", "ObjectHypothesis"),
            *("ObjectHypothesisWithPose", "Point2D", "Pose2D"),
        ],
    }
    for package, names in packages.items():
        module = types.ModuleType(f"{package}.msg")
        for name in names:
            setattr(module, name, RosType(f"{package}/msg/{name}"))
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
        monkeypatch.setitem(sys.modules, f"{package}.msg", module)
    rclpy, node = types.ModuleType("rclpy"), types.ModuleType("rclpy.node")
    node.Node = Node  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rclpy", rclpy)
    monkeypatch.setitem(sys.modules, "rclpy.node", node)
    monkeypatch.syspath_prepend(str(PACKAGE))
    yield types.SimpleNamespace(
        messages=importlib.import_module("arr_coc_stream_ros.messages"),
        node=importlib.import_module("arr_coc_stream_ros.node"),
    )
    for name in [name for name in sys.modules if name.startswith("arr_coc_stream_ros")]:
        del sys.modules[name]


def published(asked_picture: AskedPicture) -> dict[str, Any]:
    """The event of a frame as a subscriber gets it."""
    topic, fields = event_message(frame(3, 1.5, map=asked_picture.map)) or ("", {})
    assert topic == "frame"
    return {**msgspec.msgpack.decode(msgspec.msgpack.encode(fields)), "capture_unix_ns": 1_700_000_000_123_456_789}


@pytest.mark.parametrize("overview", [0, 3])
def test_regions_are_those_of_the_product(modules: types.SimpleNamespace, overview: int) -> None:
    frame_picture = picture(3, 1.5, overview=overview)
    assert frame_picture.map is not None
    boxes = modules.messages.boxes(published(frame_picture))
    expected = ShownPicture(frame_picture).boxes()
    assert len(boxes) == len(expected) == 4 - overview
    for (shape, score, x, y, width, height), box in zip(boxes, expected, strict=True):
        assert (shape, x - width / 2, y - height / 2) == (box.shape, box.left, box.top)
        assert score == pytest.approx(box.relevance)
    assert boxes[-1][2:] == (16.0, 32.0, 32.0, 64.0)
    assert modules.messages.boxes(published(frame_picture), 2.0)[-1][2:] == (32.0, 64.0, 64.0, 128.0)


def test_every_shape_is_known(modules: types.SimpleNamespace) -> None:
    from arr_coc.types import REGION_SHAPES

    assert list(modules.messages.SHAPES) == [(1 << down, 1 << across) for down, across in REGION_SHAPES]


def test_messages_have_the_time_of_the_capture(modules: types.SimpleNamespace) -> None:
    event, kinds = published(picture(3, 1.5)), modules.node.TYPES
    head = modules.messages.header(event, "front", kinds)
    assert (head.stamp.sec, head.stamp.nanosec, head.frame_id) == (1_700_000_000, 123_456_789, "front")
    grid = modules.messages.relevance(event, head, kinds)
    back = STORE.deserialize_cdr(STORE.serialize_cdr(grid, GRID), GRID)
    assert (back.height, back.width, back.encoding) == (ROWS, COLS, "mono8")
    assert np.asarray(back.data).tobytes() == event["relevance"]
    detections = modules.messages.detections(event, head, kinds)
    back = STORE.deserialize_cdr(STORE.serialize_cdr(detections, DETECTIONS), DETECTIONS)
    assert [detection.results[0].hypothesis.class_id for detection in back.detections] == ["0", "1", "6", "10"]
    assert {detection.header.stamp.nanosec for detection in back.detections} == {123_456_789}


def test_the_source_may_be_larger_than_what_is_worked_on(modules: types.SimpleNamespace) -> None:
    assert modules.messages.scale(None) == 1.0
    assert modules.messages.scale({"width_px": None, "work_width_px": None}) == 1.0
    assert modules.messages.scale({"width_px": 1920, "work_width_px": 640}) == 3.0


def test_the_node_publishes_a_run_and_asks_it(modules: types.SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    local = "tcp://127.0.0.1:*"
    config = Config(source="a.mp4", zeromq=ZeromqSection(publish=local, control=local))
    monitor, run = RunMonitor(config), ScriptedRun([])
    monitor.follow(run)
    with ExitStack() as stack:
        events = stack.enter_context(closing(PublishSink(config, monitor)))
        control = stack.enter_context(closing(ControlSink(config, monitor)))
        parameters = {"events": events.endpoint, "control": control.endpoint, "frame_id": "front"}
        monkeypatch.setattr(Node, "parameters", parameters)
        node = modules.node.ArrCocNode()
        stack.callback(node.destroy_node)
        asked_picture = picture(0, 0.5)
        events.write(answer(0.5, "a cat"))
        events.write(frame(0, 0.5, map=asked_picture.map))
        until(lambda: node.receive() or (node.answers.messages and node.regions.messages))
        events.write(frame(1, 0.6))
        events.write(answer(0.6, "no map"))
        until(lambda: node.receive() or len(node.answers.messages) == 2)
        assert [message.data for message in node.answers.messages] == ["a cat", "no map"]
        assert node.answers.kind.name == TEXT
        assert len(node.regions.messages) == len(node.relevance.messages) == 1
        assert node.regions.messages[0].header.frame_id == "front"
        events.write(detections(0.6, frame_index=99))  # of a frame that was never seen
        events.write(detections(0.6, frame_index=1))
        until(lambda: node.receive() or node.detections.messages)
        (array,) = node.detections.messages
        boxes = [
            (detection.bbox.center.position.x, detection.bbox.size_x, detection.bbox.size_y)
            for detection in array.detections
        ]
        assert boxes == [(57.0, 76.0, 48.0), (38.0, 0.0, 0.0)]
        guesses = [detection.results[0].hypothesis for detection in array.detections]
        assert [(guess.class_id, guess.score) for guess in guesses] == [("cat", 0.5), ("dog", 1.0)]
        monkeypatch.setattr(modules.node, "FRAMES_KEPT", 1)
        events.write(frame(2, 0.7))
        until(lambda: node.receive() or list(node.captured) == [2])
        node.handlers["question"](types.SimpleNamespace(data="Where is it?"))
        assert run.commands == [Ask("Where is it?")]
        node.handlers["question"](types.SimpleNamespace(data=" "))
        assert len(node.warnings) == 1
        assert node.warnings[0].startswith("the question was not taken: ")
        monkeypatch.setattr(modules.node, "REPLY_MS", 10)
        node.control = "tcp://127.0.0.1:1"
        node.ask(types.SimpleNamespace(data="Where?"))
        assert node.warnings[1] == "the question was not taken: no reply"
    assert node.events.closed
