"""The outputs for other programs are opened before the run, all or none."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from stream.config import Config, OutputConfig
from stream.errors import OutputError
from stream.requests import ask_request, read_reply
from stream.sinks.control import ControlSink
from stream.sinks.listeners import MonitorSink, open_listeners
from stream.sinks.metrics import MetricsSink
from stream.sinks.publish import PublishSink
from stream.transport.control import request
from tests.event_maker import frame
from tests.listener import listening
from tests.test_sinks_metrics import free_port
from tests.watched_run import WatchedRun


def config(tmp_path: Path, port: int) -> Config:
    return Config(
        source="camera",
        output=OutputConfig(
            publish=f"ipc://{tmp_path}/publish", control=f"ipc://{tmp_path}/control", metrics_port=port
        ),
    )


def test_nothing_is_opened_where_nothing_is_asked_for() -> None:
    _, sinks = open_listeners(Config(source="camera"))
    assert sinks == []


def test_all_of_them_see_the_same_run(tmp_path: Path) -> None:
    monitor, sinks = open_listeners(config(tmp_path, free_port()))
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


def test_where_one_cannot_be_opened_none_is_left(tmp_path: Path) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OutputError, match="another program uses that port"):
            open_listeners(config(tmp_path, taken.getsockname()[1]))
    _, sinks = open_listeners(config(tmp_path, free_port()))
    for sink in sinks:
        sink.close()
