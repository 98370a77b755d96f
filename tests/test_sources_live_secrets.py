"""A whole run on a camera with a password: nothing that leaves the run holds it."""

from __future__ import annotations

import json
import logging

import pytest

from benchmarks.rtsp_server import RtspServer, encode
from stream.config import AllocateConfig, AnswerConfig, Config, PipelineConfig
from stream.event_forms import encode_event
from stream.events import Event, FrameReady, Outage, Started
from stream.runtime.pipeline import Pipeline
from stream.sources.address import shown_config
from tests.video_maker import moving_square

SECRET = "hush!hush"


def test_no_event_no_log_and_no_configuration_holds_the_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    units = encode(list(moving_square(20)), 50, gop=5)
    events: list[Event] = []
    with RtspServer(units, 50, ("me", SECRET)) as server:
        config = Config(
            source=server.url.replace("//", f"//me:{SECRET}@"),
            allocate=AllocateConfig(budget=4),
            answer=AnswerConfig(every_s=0.2),
            pipeline=PipelineConfig(single_process=True),
        )
        pipeline = Pipeline(config, speaker="tests.fake_speaker:FakeSpeaker")
        for event in pipeline.run():
            events.append(event)
            if isinstance(event, FrameReady) and event.frame_index >= 5 and server.connections == 1:
                server.cut()
                server.connections = 2
            elif isinstance(event, Outage) and event.lasted_s is None:
                server.start()
            elif isinstance(event, Outage):
                pipeline.end()
    outages = [event for event in events if isinstance(event, Outage)]
    assert [outage.lasted_s is None for outage in outages] == [True, False]
    said = [encode_event(event) for event in events if not isinstance(event, FrameReady)]
    said += [caplog.text, json.dumps(shown_config(config).model_dump(mode="json")), repr(pipeline.source_info)]
    assert isinstance(events[0], Started)
    assert events[0].source == f"rtsp://***@127.0.0.1:{server.port}/live"
    assert not [text for text in said if SECRET in text]
