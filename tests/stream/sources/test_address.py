"""Addresses, and their forms without secrets."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from benchmarks.support.rtsp_server import RtspServer, encode
from stream.config import AllocateConfig, AnswerConfig, Config, PipelineConfig
from stream.events import Event, FrameReady, Outage, Started, encode_event
from stream.runtime.frame_stages import run_in_threads
from stream.sources.address import camera_of, name_of, redacted, scheme_of, scrubbed, shown_config
from tests.support.sections import sections
from tests.support.video import moving_square


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("rtsp://camera:554/live", "rtsp://camera:554/live"),
        ("rtsp://admin:hush@camera/live", "rtsp://***@camera/live"),
        ("rtsp://admin@camera/live", "rtsp://***@camera/live"),
        ("rtsp://admin:p@ss@camera/live", "rtsp://***@camera/live"),
        ("rtsp://admin:p/a@ss@camera/live", "rtsp://***@camera/live"),
        ("http://camera/@home/live", "http://camera/@home/live"),
        ("http://camera:80/@home/live", "http://camera:80/@home/live"),
        ("https://cdn/x.m3u8?token=hush&width=3", "https://cdn/x.m3u8?token=***&width=3"),
        ("https://cdn/x.m3u8?w=3&X-Amz-Signature=hush", "https://cdn/x.m3u8?w=3&X-Amz-Signature=***"),
        ("http://u:hush@cam/cgi?user=me&pwd=hush#apikey=hush", "http://***@cam/cgi?user=***&pwd=***#apikey=***"),
        ("rtsp://cam/user=admin_password=hush_channel=1", "rtsp://cam/user=***"),
        ("HTTP://u:hush@[::1]:80/x", "HTTP://***@[::1]:80/x"),
        ("clip?token=1.mp4", "clip?token=1.mp4"),
        ("me@home.mp4", "me@home.mp4"),
    ],
)
def test_credentials_and_secrets_are_hidden(address: str, expected: str) -> None:
    assert redacted(address) == expected


@pytest.mark.parametrize(
    ("text", "address", "expected"),
    [
        ("cannot open rtsp://u:hush@cam/x: no", "rtsp://u:hush@cam/x", "cannot open rtsp://***@cam/x: no"),
        ("sent hush%21 as hush!", "rtsp://u:hush%21@cam/x", "sent *** as ***"),
        ("signed with abcdef", "http://cam/x?sig=abcdef", "signed with ***"),
        ("went on to http://me:too@other/", "clip.mp4", "went on to http://***@other/"),
        ("a plain text", "rtsp://u:a@cam", "a plain text"),
    ],
)
def test_a_text_is_scrubbed_of_an_addresss_secrets(text: str, address: str, expected: str) -> None:
    assert scrubbed(text, address) == expected


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("/srv/films/lesson.mp4", "lesson.mp4"),
        ("clips/", "clips"),
        ("/dev/video0", "video0"),
        ("/", "/"),
        ("scene:street", "scene:street"),
        ("lerobot:/srv/pusht/3", "lerobot:3"),
        ("file:///srv/films/lesson.mp4", "file://lesson.mp4"),
        ("zmq+ipc:///run/user/1/camera", "zmq+ipc://camera"),
        ("rtsp://me:secret@camera.local/1", "rtsp://***@camera.local/1"),
    ],
)
def test_names_for_other_viewers_have_no_local_path(address: str, name: str) -> None:
    assert name_of(address) == name


def test_a_configuration_is_written_down_without_secrets() -> None:
    secrets = sections(mqtt__url="mqtt://u:hush@home", webhook__url="https://home/services/hush", web__token="hush")
    config = Config(source="rtsp://u:hush@cam/x", **secrets)
    assert shown_config(config).value("mqtt.url") == "mqtt://***@home"
    assert shown_config(config).source == "rtsp://***@cam/x"
    assert "hush" not in shown_config(config).model_dump_json()
    assert shown_config(Config(source="a.mp4")).source == "a.mp4"


def test_a_number_is_a_camera_unless_there_is_such_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert camera_of("0") == "/dev/video0"
    assert camera_of("/dev/video12") == "/dev/video12"
    assert camera_of("/dev/v4l/by-id/usb-cam") == "/dev/v4l/by-id/usb-cam"
    assert [camera_of(path) for path in ("12345", "0.mp4", "video0", "/dev/null", "")] == [None] * 5
    (tmp_path / "0").touch()
    assert camera_of("0") is None


def test_a_scheme_is_what_stands_before_the_slashes() -> None:
    assert [scheme_of(text) for text in ("RTSP://x", "a+b://x", "x:y", "/a/b", "1a://")] == ["rtsp", "a+b", *[None] * 3]


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
        pipeline = run_in_threads(config, model_loader="tests.support.answer_models:FakeAnswerModel")
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
    texts = [encode_event(event) for event in events if not isinstance(event, FrameReady)]
    texts += [caplog.text, json.dumps(shown_config(config).model_dump(mode="json")), repr(pipeline.source_info)]
    assert isinstance(events[0], Started)
    assert events[0].source == f"rtsp://***@127.0.0.1:{server.port}/live"
    assert not [text for text in texts if SECRET in text]
