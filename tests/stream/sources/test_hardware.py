"""Hardware decoding: the choice of a device, and software if it is unavailable. No device is needed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import pytest

from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.sources import hardware
from stream.sources.decoder import source_info
from stream.sources.file import FileSource
from stream.sources.hardware import DEVICES, HardwareDecoding, device_failure, working_devices
from stream.sources.network import network_target
from tests.support.video import make_video, moving_square

ABSENT = "this FFmpeg was built without it"


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return make_video(tmp_path / "clip.mp4", moving_square())


@pytest.fixture
def working(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make these devices seem to work, and no other."""

    def only(*devices: str) -> None:
        monkeypatch.setattr(hardware, "device_failure", lambda device: None if device in devices else "it is off")

    return only


def test_a_device_that_this_ffmpeg_lacks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "hwdevices_available", lambda: ["cuda"])
    assert device_failure("vaapi") == ABSENT


def test_a_device_that_cannot_be_opened_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """FFmpeg knows the device; "drm" decodes no H.264, and cuda has no driver here."""
    monkeypatch.setattr(hardware, "hwdevices_available", lambda: ["drm", "cuda"])
    for device in ("drm", "cuda"):
        reason = device_failure(device)
        assert reason
        assert reason != ABSENT


def test_every_device_is_tried() -> None:
    assert tuple(working_devices()) == DEVICES


@pytest.mark.parametrize("decoder", ["software", "auto", *DEVICES])
def test_a_file_is_decoded_in_software_if_no_device_works(
    decoder: Any, clip: Path, working: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    working()
    with caplog.at_level(logging.WARNING), FileSource(clip, CaptureConfig(decoder=decoder), MonotonicClock()) as source:
        assert source.describe().codec == "h264"
        assert len(list(source.frames())) > 1
    assert len(caplog.messages) == (decoder != "software")
    assert all(message.startswith(f"{clip} is decoded in software: ") for message in caplog.messages)


def test_a_stream_that_the_device_does_not_decode_is_reported_once(
    clip: Path, working: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """PyAV opens the file with the device, and finds that it does not suit the codec."""
    working("vaapi")
    with FileSource(clip, CaptureConfig(decoder="vaapi"), MonotonicClock()) as source:
        assert source.describe().codec == "h264"
        assert len(list(source.frames())) > 1
    assert caplog.messages == [f"{clip} is decoded in software: vaapi does not decode h264"]


def test_auto_takes_the_first_device_that_works(working: Callable[..., None]) -> None:
    working("videotoolbox", "vaapi")
    choice = HardwareDecoding(CaptureConfig(decoder="auto"), "x")
    assert choice.accelerator is not None
    assert choice.device_of(opened(accelerated=True)) == "vaapi"


def test_a_reconnected_source_is_reported_once(working: Callable[..., None], caplog: pytest.LogCaptureFixture) -> None:
    working("cuda")
    choice = HardwareDecoding(CaptureConfig(decoder="cuda"), "rtsp://camera")
    assert [choice.device_of(opened(accelerated=False)) for _ in range(3)] == [None] * 3
    assert len(caplog.messages) == 1


def test_an_address_is_opened_with_the_device(monkeypatch: pytest.MonkeyPatch, working: Callable[..., None]) -> None:
    working("cuda")
    opening = {}
    monkeypatch.setattr("av.open", lambda *_, **options: opening.update(options))
    target = network_target("rtsp://camera/1", CaptureConfig(decoder="cuda"))
    target.open(1.0)
    assert target.hardware is not None
    assert opening["hwaccel"] is target.hardware.accelerator is not None


def test_a_source_names_the_device_that_decodes_it() -> None:
    frame = av.VideoFrame(64, 32, "nv12")
    assert source_info("x", opened(accelerated=True), frame, (32, 64), live=True, device="cuda").codec == "h264 on cuda"


def opened(*, accelerated: bool) -> Any:
    context = SimpleNamespace(is_hwaccel=accelerated, name="h264")
    return SimpleNamespace(codec_context=context, average_rate=25, guessed_rate=None)
