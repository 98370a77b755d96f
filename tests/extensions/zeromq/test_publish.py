"""Published messages are as documented in docs/robots.md, and the listeners printed there work."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import threading
import typing
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream.config import Config, NetworkConfig
from stream.errors import ConfigError, OutputError
from stream.events import (
    AnyEvent,
    AskedPicture,
    Event,
    Explanation,
    FrameMap,
    Notice,
    SegmentWritten,
    Skipped,
    Started,
    VideoFragment,
)
from stream.extensions.zeromq import services as publisher_module
from stream.extensions.zeromq.section import ZeromqSection
from stream.extensions.zeromq.sinks import KEPT, PublishSink
from stream.monitor.health import RunMonitor
from stream.monitor.schema import TOPICS, StatsMessage, StatusMessage, event_message
from tests.stream.test_events import EVENTS
from tests.support.events import answer, frame
from tests.support.network import listening
from tests.support.runs import WatchedRun

ROBOTS = (Path(__file__).resolve().parents[3] / "docs" / "robots.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", ROBOTS, re.MULTILINE))
"""The document's row of each topic."""

STARTED = EVENTS[0]
HEADER = ["topic", "v", "seq", "unix_ns"]
MAP = FrameMap(
    rows=2,
    cols=3,
    relevance=bytes([0, 51, 0, 0, 0, 255]),
    regions=np.array([[0, 1, 2], [1, 0, 0]], "<i2").tobytes(),
)
FRAME = frame(0, 0.5, map=MAP, slot=3)
SAID = [STARTED, Notice(code="loading", message="loading m"), FRAME, answer(0.5, "a cat")]


class Output:
    """A sink, its monitor and the run's statistics, as a run would feed them."""

    def __init__(self, config: Config) -> None:
        self.monitor = RunMonitor(config)
        self.run = WatchedRun()
        self.monitor.follow(self.run)
        self.sink = PublishSink(config, self.monitor)

    def take(self, *events: Event) -> None:
        for event in events:
            self.run.statistics.add(event)
            self.monitor.add(event)
            self.sink.write(event)


def config(endpoint: str = "tcp://127.0.0.1:*") -> Config:
    return Config(source="rtsp://user:secret@camera", zeromq=ZeromqSection(publish=endpoint))


@pytest.fixture
def output() -> Iterator[Output]:
    publisher = Output(config())
    with closing(publisher.sink):
        yield publisher


def test_every_event_is_published_or_reported_otherwise() -> None:
    assert {type(event) for event in EVENTS} == set(typing.get_args(AnyEvent))
    unpublished = {type(event) for event in EVENTS if event_message(event) is None}
    assert unpublished == {Started, Skipped, Explanation, AskedPicture, SegmentWritten, VideoFragment}


def test_everything_arrives_in_order_and_as_its_schema_says(output: Output) -> None:
    with listening(output.sink.endpoint) as listener:
        output.take(STARTED)
        assert listener.next("status")["state"] == "loading"
        output.take(*EVENTS[1:-1], FRAME, EVENTS[-1])
        received = []
        while not received or received[-1]["topic"] != "summary":
            received.append(listener.next())
    topics = [message["topic"] for message in received if message["topic"] not in ("stats", "status")]
    assert topics == [
        *("cut", "discontinuity", "notice", "outage", "restarted", "asked", "text", "glance", "answer", "unchanged"),
        *("detections", "invalid", "cancelled", "look", "turned", "match", "shadow", "budget"),
        *("side_text", "side_answer", "side_refused", "watches", "clip", "frame", "frame", "summary"),
    ]
    states = [message["state"] for message in received if message["topic"] == "status"]
    assert "outage" in states
    assert states[-2:] == ["running", "ended"]
    for message in received:
        assert list(message)[:4] == HEADER
        row = ROWS[message["topic"]]
        row += ROWS["answer"] if "those of `answer`" in row else ""
        fields = re.findall(r"`(\w+)`", row)
        assert not [name for name in all_fields(message) if name not in fields], message["topic"]
        assert message["v"] == 1
        assert message["seq"] >= 1
    last_frame = [message for message in received if message["topic"] == "frame"][-1]
    assert (last_frame["rows"], last_frame["cols"], last_frame["relevance"], last_frame["regions"]) == (
        2,
        3,
        MAP.relevance,
        MAP.regions,
    )
    assert "slot" not in last_frame
    assert "secret" not in str(received)


def test_a_frame_without_a_map_says_so() -> None:
    topic, fields = event_message(frame(0, 0.0)) or ("", {})
    assert topic == "frame"
    assert {fields[name] for name in ("rows", "cols", "relevance", "regions")} == {None}


def test_a_late_subscriber_gets_the_last_status_answer_frame_and_statistics(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "TICK_S", 0.02)
    output.take(*SAID, frame(7, 1.0), answer(1.0, "a dog"))
    with listening(output.sink.endpoint) as listener:
        last = {topic: listener.next(topic) for topic in ("status", "answer", "frame")}
        stats = listener.next("stats")
    assert last["answer"]["text"] == "a dog"
    assert last["frame"]["frame_index"] == 7
    assert (last["status"]["state"], last["status"]["rows"], last["status"]["source"]) == ("running", 2, "camera")
    assert (stats["frames"], stats["answers"], stats["dropped"]) == (2, 2, {"capture.replaced": 2})


def test_no_topic_begins_with_another() -> None:
    assert not [(a, b) for a in TOPICS for b in TOPICS if a != b and a.startswith(b)]
    assert set(KEPT) < set(TOPICS)


def test_an_address_beyond_this_machine_needs_keys() -> None:
    with pytest.raises(ConfigError, match="without keys"):
        PublishSink(config("tcp://0.0.0.0:*"), RunMonitor(config()))
    open_to_all = Config(zeromq=ZeromqSection(publish="tcp://0.0.0.0:*"), network=NetworkConfig(plain_tcp=True))
    PublishSink(open_to_all, RunMonitor(open_to_all)).close()


def test_a_port_in_use(output: Output) -> None:
    with pytest.raises(OutputError, match="another program uses it"):
        PublishSink(config(output.sink.endpoint), output.monitor)


def test_the_document_names_every_topic_and_field() -> None:
    """Fields of events are compared when they arrive."""
    assert set(ROWS) == set(TOPICS)
    for topic, kind in (("status", StatusMessage), ("stats", StatsMessage)):
        assert {field.name for field in dataclasses.fields(kind)} <= set(re.findall(r"`(\w+)`", ROWS[topic]))
    for name in HEADER:
        assert f"`{name}`" in ROBOTS
    assert "version of the schema (1)" in ROBOTS


def all_fields(message: dict[str, Any]) -> Iterator[str]:
    """Yield the fields of a message, also nested ones, except for the names of processes, queues and the summary's
    times."""
    for name, value in message.items():
        if name not in HEADER:
            yield name
        if isinstance(value, dict) and name in {"timing", "latency_ms", "jitter"} and message["topic"] != "summary":
            yield from value


def programs(kind: str) -> list[str]:
    return [program for program in re.findall(r"```python\n(.*?)```", ROBOTS, re.DOTALL) if kind in program]


@pytest.mark.parametrize(
    ("topic", "line"),
    [("answer", "0.5 s: a cat"), ("frame", "frame 0: most relevant at tile 1, 2; 2 regions")],
)
def test_the_listeners_in_the_document_work(output: Output, topic: str, line: str) -> None:
    (program,) = programs(f'subscribe("{topic}")')
    assert "tcp://127.0.0.1:5556" in program
    program = program.replace("tcp://127.0.0.1:5556", output.sink.endpoint)
    output.take(*SAID)
    child = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(20, child.kill)
    watchdog.start()
    try:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == line
    finally:
        watchdog.cancel()
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
