"""Outputs for other programs are opened before the run, all or none."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from stream.config import Config, OutputConfig
from stream.errors import OutputError
from stream.events import Event
from stream.extension import SinkOpening, SinkType
from stream.extensions.heatmap.sink import HeatmapSink
from stream.extensions.metrics.section import MetricsSection
from stream.extensions.metrics.sink import MetricsSink
from stream.extensions.why.sink import ExplanationSink
from stream.extensions.zeromq.section import ZeromqSection
from stream.extensions.zeromq.services import request
from stream.extensions.zeromq.sinks import ControlSink, PublishSink, ask_request, read_reply
from stream.monitor.health import RunMonitor
from stream.sinks import output_file
from stream.sinks.base import Sink
from stream.sinks.captions import CaptionSink
from stream.sinks.factory import MonitorSink, open_sinks
from stream.sinks.output_file import JsonlSink, check_distinct
from tests.support.events import frame
from tests.support.network import free_port, listening
from tests.support.runs import WatchedRun
from tests.support.sections import opened_sinks, sections


def config(tmp_path: Path, port: int) -> Config:
    return Config(
        source="camera",
        zeromq=ZeromqSection(publish=f"ipc://{tmp_path}/publish", control=f"ipc://{tmp_path}/control"),
        metrics=MetricsSection(port=port),
    )


def test_without_outputs_nothing_is_opened() -> None:
    assert opened_sinks(Config(source="camera")) == []


def test_a_monitor_that_others_ask_is_fed_without_services() -> None:
    config = Config(source="camera")
    sinks = open_sinks(config, RunMonitor(config), monitored=True)
    assert [type(sink) for sink in sinks] == [MonitorSink]


def test_a_type_needs_no_option_to_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """`option` is for messages only."""
    opened = SinkType(key="webhook.url", open="tests.stream.sinks.test_factory:opened_nothing")
    monkeypatch.setattr("stream.sinks.types.sink_types", lambda: (opened,))
    config = Config(source="camera", **sections(webhook__url="http://127.0.0.1:9/"))
    assert [type(sink) for sink in opened_sinks(config)] == [MonitorSink, NothingSink]


def test_signals_wait_for_files_and_not_for_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service may wait for another program for long, and Ctrl-C ends that."""
    held: list[str] = []

    @contextmanager
    def noted() -> Iterator[None]:
        held.append("begin")
        yield
        held.append("end")

    monkeypatch.setattr("stream.sinks.factory.signals_held", noted)
    monkeypatch.setattr(
        "stream.extensions.webhook.sink.WebhookSink.open", lambda _: held.append("open") or NothingSink()
    )
    output = OutputConfig(paths=(str(tmp_path / "a.vtt"),))
    for sink in opened_sinks(Config(source="camera", output=output, **sections(webhook__url="http://127.0.0.1:9/"))):
        sink.close()
    assert held == ["begin", "end", "open"]


class NothingSink(Sink):
    """A sink that writes nothing."""

    def write(self, event: Event) -> None:
        pass

    def close(self) -> None:
        pass


def opened_nothing(opening: SinkOpening) -> NothingSink:
    return NothingSink()


def test_all_of_them_see_the_same_run(tmp_path: Path) -> None:
    run_config = config(tmp_path, free_port())
    monitor = RunMonitor(run_config)
    sinks = opened_sinks(run_config, monitor)
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
            opened_sinks(config(tmp_path, listener.getsockname()[1]))
    sinks = opened_sinks(config(tmp_path, free_port()))
    for sink in sinks:
        sink.close()


def test_the_suffix_chooses_the_sink(tmp_path: Path) -> None:
    names = ["a.vtt", "b.srt", "c.JSONL", "f.MCAP", "g.rosbag"]
    config = Config(
        source="in.mp4",
        output=OutputConfig(paths=tuple(str(tmp_path / name) for name in names)),
        **sections(heatmap__file=str(tmp_path / "d.mp4"), why__file=str(tmp_path / "e.jsonl")),
    )
    sinks = opened_sinks(config)
    from stream.extensions.robotics.mcap_file import McapSink
    from stream.extensions.robotics.rosbag import RosbagSink

    assert [type(sink) for sink in sinks] == [
        *(CaptionSink, CaptionSink, JsonlSink, McapSink, RosbagSink, HeatmapSink, ExplanationSink)
    ]
    for sink in sinks:
        sink.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"output.paths": ("a.txt",)}, r"suffix '\.txt'; captions can be \.vtt, \.srt, \.jsonl"),
        ({"output.paths": ("a",)}, "no suffix; captions can be"),
        ({"output.paths": ("a.avi",)}, "goes to --heatmap"),
        ({"heatmap.file": "a.vtt"}, r"the heat map can be \.mp4, \.png \(captions go to -o"),
        ({"why.file": "a.json"}, r"the reasons for tokens can be \.jsonl \(captions go to -o"),
        ({"output.paths": ("a.vtt", "./a.vtt")}, "given twice"),
        ({"output.paths": ("a.jsonl",), "why.file": "./a.jsonl"}, "given twice"),
    ],
)
def test_outputs_that_make_no_sense_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(OutputError, match=message):
        opened_sinks(Config(source="in.mp4").with_values(values))


def test_the_input_is_never_an_output_even_through_a_link(tmp_path: Path) -> None:
    source = tmp_path / "in.mp4"
    source.write_bytes(b"precious")
    (tmp_path / "out.jsonl").symlink_to(source)
    for key, value in (("output.paths", (str(tmp_path / "out.jsonl"),)), ("heatmap.file", str(source))):
        with pytest.raises(OutputError, match="is the input"):
            opened_sinks(Config(source=str(source)).with_values({key: value}))
    assert source.read_bytes() == b"precious"


def test_standard_input_is_an_input_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in.mp4"
    source.write_bytes(b"precious")
    with source.open("rb") as opened:
        monkeypatch.setattr(output_file, "STDIN_FD", opened.fileno())
        with pytest.raises(OutputError, match="is the input"):
            opened_sinks(Config(source="-", **sections(heatmap__file=str(source))))
    assert source.read_bytes() == b"precious"


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_two_names_of_one_file_are_given_twice(tmp_path: Path, link: Callable[[str, str], None]) -> None:
    first, second = str(tmp_path / "a.vtt"), str(tmp_path / "b.vtt")
    Path(first).write_text("yesterday's")
    link(first, second)
    with pytest.raises(OutputError, match=r"given twice, as '.*a\.vtt' and '.*b\.vtt'; give each its own file"):
        opened_sinks(Config(source="in.mp4", output=OutputConfig(paths=(first, second))))
    assert Path(first).read_text() == "yesterday's"


def test_devices_and_streams_may_be_named_twice() -> None:
    check_distinct(["/dev/null", "/dev/null"], "/dev/null", None)


def test_if_one_file_cannot_be_opened_none_is_left_open(tmp_path: Path) -> None:
    paths = (str(tmp_path / "a.vtt"), str(tmp_path / "no" / "b.vtt"))
    with pytest.raises(OutputError, match="there is no folder"):
        opened_sinks(Config(source="in.mp4", output=OutputConfig(paths=paths)))
    assert list(tmp_path.iterdir()) == []
