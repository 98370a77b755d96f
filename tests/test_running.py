"""Which way a configuration is run."""

from __future__ import annotations

import pytest

from stream.config import CaptureConfig, Config, OutputConfig, PipelineConfig
from stream.runtime import pipeline, supervised
from stream.runtime.session import open_run
from stream.runtime.session import supervised as is_supervised

LIVE = ["0", "/dev/video2", "rtsp://camera/stream", "udp://0.0.0.0:5000", "http://host/live.m3u8", "zmq+tcp://host:1"]
FILES = ["clip.mp4", "folder", "scene:demo", "http://host/clip.mp4"]


def config(source: str, *, realtime: bool = False, **pipeline: object) -> Config:
    return Config(source=source, capture=CaptureConfig(realtime=realtime), pipeline=PipelineConfig(**pipeline))  # type: ignore[arg-type]


@pytest.mark.parametrize("source", LIVE)
def test_live_sources_are_supervised_unless_told_otherwise(source: str) -> None:
    assert is_supervised(config(source))
    assert is_supervised(config(source, restart=True))
    assert not is_supervised(config(source, restart=False))


@pytest.mark.parametrize("source", FILES)
def test_files_are_only_where_that_is_asked_for_and_frames_may_be_lost(source: str) -> None:
    assert not is_supervised(config(source))
    assert not is_supervised(config(source, realtime=True))
    assert not is_supervised(config(source, restart=True))
    assert is_supervised(config(source, restart=True, realtime=True))


def test_a_single_process_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_supervised(config("0", single_process=True))
    assert not is_supervised(config("0", single_process=True, restart=True))


@pytest.mark.parametrize("source", ["-", "zmq+tcp://host:1?pull"])
def test_what_can_be_read_once_only_is_not(source: str) -> None:
    assert not is_supervised(config(source))
    assert not is_supervised(config(source, restart=True, realtime=True))


def test_a_heat_map_is_drawn_where_the_pictures_are() -> None:
    assert not is_supervised(config("0").model_copy(update={"output": OutputConfig(heatmap="seen.mp4")}))


def test_the_run_is_made_accordingly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "Pipeline", lambda given, shared: ("here", given.source))
    monkeypatch.setattr(supervised, "SupervisedRun", lambda given: ("supervised", given.source))
    assert open_run(config("clip.mp4")) == ("here", "clip.mp4")
    assert open_run(config("0")) == ("supervised", "0")
