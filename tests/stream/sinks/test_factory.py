"""Outputs for other programs are opened before the run, all or none."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stream.config import Config, OutputConfig
from stream.errors import OutputError
from stream.monitor.health import RunMonitor
from stream.sinks import output_file
from stream.sinks.captions import CaptionSink
from stream.sinks.explanations import ExplanationSink
from stream.sinks.factory import MonitorSink, open_services, open_sinks
from stream.sinks.heatmap import FramePictures, HeatmapSink
from stream.sinks.metrics import MetricsSink
from stream.sinks.output_file import JsonlSink, check_distinct
from stream.sinks.services import ControlSink, PublishSink, ask_request, read_reply
from stream.transport.services import request
from tests.support.events import frame
from tests.support.network import free_port, listening
from tests.support.runs import WatchedRun


def config(tmp_path: Path, port: int) -> Config:
    return Config(
        source="camera",
        output=OutputConfig(
            publish=f"ipc://{tmp_path}/publish", control=f"ipc://{tmp_path}/control", metrics_port=port
        ),
    )


def test_without_outputs_nothing_is_opened() -> None:
    _, sinks = open_services(Config(source="camera"))
    assert sinks == []


def test_a_monitor_that_others_ask_is_fed_without_services() -> None:
    watched = RunMonitor(Config(source="camera"))
    monitor, sinks = open_services(Config(source="camera"), monitor=watched)
    assert monitor is watched
    assert [type(sink) for sink in sinks] == [MonitorSink]


def test_all_of_them_see_the_same_run(tmp_path: Path) -> None:
    monitor, sinks = open_services(config(tmp_path, free_port()))
    try:
        assert [type(sink) for sink in sinks] == [MonitorSink, PublishSink, ControlSink, MetricsSink]
        run = WatchedRun()
        monitor.follow(run)
        run.statistics.add(frame(5, 0.5))
        with listening(f"ipc://{tmp_path}/publish", "frame") as listener:
            for sink in sinks:
                sink.write(frame(5, 0.5))
            assert listener.next()["frame_index"] == 5
        reply = read_reply(request(f"ipc://{tmp_path}/control", None, b'{"v": 1, "status": true}'))
        assert reply.stats is not None
        assert reply.stats["frames"] == 1
        assert read_reply(request(f"ipc://{tmp_path}/control", None, ask_request("What?"))).ok
    finally:
        for sink in sinks:
            sink.close()
            sink.close()


def test_if_one_service_cannot_be_opened_none_is_left(tmp_path: Path) -> None:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(OutputError, match="another program uses that port"):
            open_services(config(tmp_path, listener.getsockname()[1]))
    _, sinks = open_services(config(tmp_path, free_port()))
    for sink in sinks:
        sink.close()


def no_run() -> FramePictures:
    raise AssertionError("nothing is drawn here")


def test_the_suffix_chooses_the_sink(tmp_path: Path) -> None:
    names = ["a.vtt", "b.srt", "c.JSONL", "f.MCAP", "g.rosbag"]
    config = OutputConfig(
        paths=tuple(str(tmp_path / name) for name in names),
        heatmap=str(tmp_path / "d.mp4"),
        why=str(tmp_path / "e.jsonl"),
    )
    sinks = open_sinks(config, "in.mp4", no_run)
    from stream.sinks.robotics.mcap_file import McapSink
    from stream.sinks.robotics.rosbag import RosbagSink

    assert [type(sink) for sink in sinks] == [
        *(CaptionSink, CaptionSink, JsonlSink, McapSink, RosbagSink, HeatmapSink, ExplanationSink)
    ]
    for sink in sinks:
        sink.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (OutputConfig(paths=("a.txt",)), r"suffix '\.txt'; captions can be \.vtt, \.srt, \.jsonl"),
        (OutputConfig(paths=("a",)), "no suffix; captions can be"),
        (OutputConfig(paths=("a.mp4",)), "goes to --heatmap"),
        (OutputConfig(heatmap="a.vtt"), r"the heat map can be \.mp4, \.png \(captions go to -o"),
        (OutputConfig(why="a.json"), r"the reasons for tokens can be \.jsonl \(captions go to -o"),
        (OutputConfig(paths=("a.vtt", "./a.vtt")), "given twice"),
        (OutputConfig(paths=("a.jsonl",), why="./a.jsonl"), "given twice"),
    ],
)
def test_outputs_that_make_no_sense_are_refused(config: OutputConfig, message: str) -> None:
    with pytest.raises(OutputError, match=message):
        open_sinks(config, "in.mp4", no_run)


def test_the_input_is_never_an_output_even_through_a_link(tmp_path: Path) -> None:
    source = tmp_path / "in.mp4"
    source.write_bytes(b"precious")
    (tmp_path / "out.jsonl").symlink_to(source)
    for config in (OutputConfig(paths=(str(tmp_path / "out.jsonl"),)), OutputConfig(heatmap=str(source))):
        with pytest.raises(OutputError, match="is the input"):
            open_sinks(config, str(source), no_run)
    assert source.read_bytes() == b"precious"


def test_standard_input_is_an_input_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in.mp4"
    source.write_bytes(b"precious")
    with source.open("rb") as opened:
        monkeypatch.setattr(output_file, "STDIN_FD", opened.fileno())
        with pytest.raises(OutputError, match="is the input"):
            open_sinks(OutputConfig(heatmap=str(source)), "-", no_run)
    assert source.read_bytes() == b"precious"


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_two_names_of_one_file_are_given_twice(tmp_path: Path, link: Callable[[str, str], None]) -> None:
    first, second = str(tmp_path / "a.vtt"), str(tmp_path / "b.vtt")
    Path(first).write_text("yesterday's")
    link(first, second)
    with pytest.raises(OutputError, match=r"given twice, as '.*a\.vtt' and '.*b\.vtt'; give each its own file"):
        open_sinks(OutputConfig(paths=(first, second)), "in.mp4", no_run)
    assert Path(first).read_text() == "yesterday's"


def test_devices_and_streams_may_be_named_twice() -> None:
    check_distinct(["/dev/null", "/dev/null"], "/dev/null", None)


def test_if_one_file_cannot_be_opened_none_is_left_open(tmp_path: Path) -> None:
    config = OutputConfig(paths=(str(tmp_path / "a.vtt"), str(tmp_path / "no" / "b.vtt")))
    with pytest.raises(OutputError, match="there is no folder"):
        open_sinks(config, "in.mp4", no_run)
    assert list(tmp_path.iterdir()) == []
