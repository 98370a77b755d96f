"""What is published is what docs/robots.md says, and its listeners work as they are printed there."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import typing
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest

from stream.config import Config, NetworkConfig, OutputConfig
from stream.errors import ConfigError, OutputError
from stream.events import (
    AnswerCancelled,
    AnswerText,
    AnyEvent,
    Asked,
    Cut,
    Event,
    FrameMap,
    Notice,
    Outage,
    PictureChanged,
    Restarted,
    Skipped,
    Started,
    Why,
)
from stream.monitor.health import Vitals
from stream.monitor.schema import AnyPublished, Published, topic_of
from stream.sinks.publish import KEPT, PublishSink, published
from stream.transport import publisher as publisher_module
from tests.event_maker import answer, frame, look, shadow, summary, turned
from tests.listener import listening
from tests.watched_run import WatchedRun

ROBOTS = (Path(__file__).resolve().parent.parent / "docs" / "robots.md").read_text(encoding="utf-8")
TOPICS = {topic_of(kind): kind for kind in typing.get_args(AnyPublished)}
HEADER = ("v", "seq", "unix_ns")
MAP = FrameMap(
    rows=2,
    cols=3,
    relevance=bytes([0, 51, 0, 0, 0, 255]),
    regions=np.array([[0, 1, 2], [1, 0, 0]], "<i2").tobytes(),
)
EVENTS: list[Event] = [
    Started(source="camera", model="m", query="What?", backend="cpu"),
    Notice(code="loading", message="loading m"),
    frame(0, 0.5, map=MAP, slot=3),
    AnswerText(answer=0, text="a ", pts_s=0.5),
    answer(0.5, "a cat"),
    AnswerCancelled(
        answer=0, frame_index=0, pts_s=0.5, trigger="every", text="a ", by="cut", by_frame_index=1, by_pts_s=0.75
    ),
    look(0.5),
    turned(0.5),
    Cut(frame_index=1, pts_s=0.6, score=0.5),
    PictureChanged(frame_index=1, pts_s=0.6, reason="resolution", width_px=64, height_px=32),
    Asked(query="Where?"),
    Skipped(frame_index=1, pts_s=0.6, what="packet 3", reason="bad"),
    Restarted(process="answers", cause="killed by SIGKILL", count=1),
    Outage(frame_index=1, pts_s=0.6, reason="timed out"),
    shadow(0.5),
    Why(frame_index=0, pts_s=0.0, strategy="mixed", weights={}, tokens=[]),
    summary(),
]


class Output:
    """A sink and its vitals, as a run would feed them."""

    def __init__(self, config: Config) -> None:
        self.vitals = Vitals(config)
        self.vitals.follow(WatchedRun())
        self.sink = PublishSink(config, self.vitals)

    def take(self, *events: Event) -> None:
        for event in events:
            self.vitals.add(event)
            self.sink.write(event)


def config(endpoint: str = "tcp://127.0.0.1:*") -> Config:
    return Config(source="rtsp://user:secret@camera", output=OutputConfig(publish=endpoint))


@pytest.fixture
def output() -> Iterator[Output]:
    made = Output(config())
    with closing(made.sink):
        yield made


def test_every_event_is_published_or_told_otherwise() -> None:
    assert {type(event) for event in EVENTS} == set(typing.get_args(AnyEvent))
    untold = {type(event) for event in EVENTS if published(event) is None}
    assert untold == {Started, Skipped, Why}


def test_everything_arrives_in_order_and_as_its_schema_says(output: Output) -> None:
    with listening(output.sink.endpoint) as listener:
        output.take(EVENTS[0])
        assert listener.next("status")["state"] == "loading"
        output.take(*EVENTS[1:])
        heard = []
        while not heard or heard[-1]["topic"] != "summary":
            heard.append(listener.next())
    topics = [one["topic"] for one in heard if one["topic"] not in ("stats", "status")]
    told = [
        "notice",
        "frame",
        "text",
        "answer",
        "cancelled",
        "look",
        "turned",
        "cut",
        "discontinuity",
        "asked",
        "restarted",
        "outage",
        "shadow",
        "summary",
    ]
    assert topics == told
    assert [one["state"] for one in heard if one["topic"] == "status"][-2:] == ["outage", "ended"]
    for one in heard:
        assert next(iter(one)) == "topic"
        assert msgspec.convert(one, TOPICS[one["topic"]], builtin_types=(bytes,))
        assert one["v"] == 1
        assert one["seq"] >= 1
    shown = next(one for one in heard if one["topic"] == "frame")
    assert (shown["rows"], shown["cols"], shown["relevance"], shown["regions"]) == (2, 3, MAP.relevance, MAP.regions)
    assert "slot" not in shown
    assert "secret" not in str(heard)


def test_a_frame_without_a_map_says_so() -> None:
    message = published(frame(0, 0.0))
    assert message is not None
    assert msgspec.to_builtins(message)["relevance"] is None


def test_who_comes_late_gets_the_last_status_answer_frame_and_statistics(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher_module, "TICK_S", 0.02)
    output.take(*EVENTS[:6], frame(7, 1.0), answer(1.0, "a dog"))
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
        PublishSink(config("tcp://0.0.0.0:*"), Vitals(config()))
    open_to_all = Config(output=OutputConfig(publish="tcp://0.0.0.0:*"), network=NetworkConfig(plain_tcp=True))
    PublishSink(open_to_all, Vitals(open_to_all)).close()


def test_a_port_in_use(output: Output) -> None:
    with pytest.raises(OutputError, match="another program uses it"):
        PublishSink(config(output.sink.endpoint), output.vitals)


def test_the_document_names_every_topic_and_field() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", ROBOTS, re.MULTILINE))
    assert set(rows) == set(TOPICS)
    for topic, kind in TOPICS.items():
        named = set(re.findall(r"`(\w+)`", rows[topic]))
        missing = [name for name in all_fields(kind) if name not in named]
        assert not missing, f"{topic}: {missing}"
    for name in ("topic", *HEADER):
        assert f"`{name}`" in ROBOTS
    assert "version of the schema (1)" in ROBOTS


def all_fields(kind: type[Published]) -> Iterator[str]:
    """The fields of a message, and of what lies in it."""
    for field in msgspec.structs.fields(kind):
        if field.name in HEADER:
            continue
        yield field.name
        for part in typing.get_args(field.type):
            yield from getattr(part, "__struct_fields__", ())
            yield from getattr(part, "__dataclass_fields__", ())


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
    output.take(*EVENTS[:5])
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
