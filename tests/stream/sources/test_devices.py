"""Screens of this machine, read from a real X server without a monitor; FFmpeg's names on other systems."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest

from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources import devices
from stream.sources.address import camera_of, is_live_address
from stream.sources.checks import Screen
from stream.sources.devices import camera_options, camera_target, capture_system, screen_target
from tests.support.network import LIMIT_S
from tests.support.senders import Reading, opened


class XServer:
    """An X server of 320x240 pixels in memory, with the black and white pattern of its empty screen."""

    def __init__(self) -> None:
        program = shutil.which("Xvfb")
        if program is None:
            assert "CI" not in os.environ, "CI installs Xvfb"
            pytest.skip("needs Xvfb")
        self._program = program
        self.display = self._started()

    def _started(self, display: str | None = None) -> str:
        read_fd, write_fd = os.pipe()
        command = [self._program, *([display] if display else []), "-retro", "-noreset", "-screen", "0", "320x240x24"]
        self.process = subprocess.Popen(
            [*command, "-displayfd", str(write_fd)],
            pass_fds=[write_fd],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(write_fd)
        with os.fdopen(read_fd) as ready:
            return f":{ready.readline().strip()}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT_S)

    def start_again(self) -> None:
        self._started(self.display)


@pytest.fixture
def server() -> Iterator[XServer]:
    running = XServer()
    yield running
    running.stop()


def test_a_screen_is_a_live_source_that_is_opened_again(server: XServer) -> None:
    with opened(f"screen:{server.display}", fps=30.0) as source:
        info, reading = source.describe(), Reading(source)
        assert (info.name, info.width_px, info.height_px, info.live) == (f"screen:{server.display}", 320, 240, True)
        first = reading.frames(2)[0]
        assert {0, 255} <= set(np.unique(first.planes.planes[0]))
        server.stop()
        assert reading.lost().reason == "the device or its display failed"
        server.start_again()
        reading.back()
        assert reading.frames(1)[0].discontinuity == "reconnect"


def test_an_area_has_a_corner_and_a_size(server: XServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", server.display)
    with opened("screen:+100,80", camera_mode="64x48") as source:
        assert (source.describe().width_px, source.describe().height_px) == (64, 48)
    with pytest.raises(SourceError, match=r"screen:\+300,80 does not hold this area; give a capture\.camera_mode"):
        opened("screen:+300,80", camera_mode="64x48")


def test_a_missing_display_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="screen::9999 is no display that can be opened; check that DISPLAY"):
        opened("screen::9999")


def test_on_wayland_a_warning_names_the_captured_windows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_SESSION_TYPE", "wayland")
    screen_target("screen::0", CaptureConfig(), capture_system("linux"))
    assert "on Wayland only the windows of X11 programs are captured" in caplog.text


@pytest.mark.parametrize(
    ("address", "environment", "screen"),
    [
        ("screen:", {"DISPLAY": ":1"}, Screen(":1", (0, 0))),
        ("screen:+3,4", {"DISPLAY": ":1"}, Screen(":1", (3, 4))),
        ("screen::0.1", {}, Screen(":0.1", (0, 0))),
        ("screen:host:0+10,20", {}, Screen("host:0", (10, 20))),
    ],
)
def test_an_address_names_a_display_and_a_corner(address: str, environment: dict[str, str], screen: Screen) -> None:
    assert is_live_address(address)
    assert Screen.of(address, environment, "linux") == screen


@pytest.mark.parametrize(
    ("address", "platform", "message"),
    [
        (
            "screen:",
            "linux",
            "screen: has no display to capture: DISPLAY is not set; run this in the desktop's session",
        ),
        ("screen::0+3", "linux", "names no screen; write screen:, screen::1 or screen::0+100,50"),
        ("screen::0+3,-4", "linux", "names no screen"),
        ("screen::0", "win32", "names a part that this system does not offer; write screen:"),
        ("screen:+1,2", "darwin", "names a part that this system does not offer"),
    ],
)
def test_an_address_of_no_screen_is_refused(address: str, platform: str, message: str) -> None:
    with pytest.raises(SourceError) as raised:
        Screen.of(address, {}, platform)
    assert message in str(raised.value)


class Calls:
    """Stand-in for an FFmpeg with the inputs of other systems; it records the arguments of each opening."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.openings: list[tuple[str, str, dict[str, str]]] = []
        monkeypatch.setattr(devices.av, "open", self._open)
        names = [
            SimpleNamespace(media_types=["audio"], description="Microphone"),
            SimpleNamespace(media_types=["video"], description="Integrated Camera"),
        ]
        monkeypatch.setattr(devices.av, "enumerate_input_devices", lambda kind: names)

    def _open(self, name: str, *, format: str, options: dict[str, str], timeout: tuple[float, float]) -> None:
        self.openings.append((name, format, options))


def test_cameras_of_other_systems_are_opened_by_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    assert [camera_of("0", platform) for platform in ("linux", "darwin", "win32")] == ["/dev/video0", "0", "0"]
    config = CaptureConfig(camera_mode="640x480:mjpeg")
    camera_target("1", config, capture_system("darwin")).open(1.0)
    camera_target("0", config, capture_system("win32")).open(1.0)
    mac, windows = calls.openings
    assert mac[:2] == ("1:none", "avfoundation")
    assert (mac[2]["framerate"], mac[2]["pixel_format"]) == ("30", "mjpeg")
    assert windows[:2] == ("video=Integrated Camera", "dshow")
    assert (windows[2]["vcodec"], windows[2]["video_size"]) == ("mjpeg", "640x480")
    assert camera_options(CaptureConfig(camera_mode="8x6:nv12"), capture_system("win32"))["pixel_format"] == "nv12"
    with pytest.raises(SourceError, match="camera 1 is not there; plug the camera in, or give a lower number"):
        camera_target("1", config, capture_system("win32")).open(1.0)


def test_screens_of_other_systems_are_opened_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    monkeypatch.setenv("DISPLAY", ":1")
    config = CaptureConfig(fps=10.0, camera_mode="64x48")
    screen_target("screen:+5,6", config, capture_system("win32")).open(1.0)
    screen_target("screen:", config, capture_system("darwin")).open(1.0)
    assert calls.openings[0] == (
        "desktop",
        "gdigrab",
        {"fflags": "nobuffer", "framerate": "10", "video_size": "64x48", "offset_x": "5", "offset_y": "6"},
    )
    assert calls.openings[1][:2] == ("Capture screen 0:none", "avfoundation")


def test_an_ffmpeg_without_the_input_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.av, "open", _refuse)
    with pytest.raises(SourceError, match=r"built without X11 capture \(x11grab\); install PyAV from PyPI"):
        screen_target("screen::0", CaptureConfig(), capture_system("linux")).open(1.0)


def _refuse(*arguments: object, **options: object) -> None:
    raise ValueError("no container format")


def test_a_failure_without_a_known_number_is_in_ffmpegs_words() -> None:
    failure = devices.screen_failure(av.error.ExternalError(1, "Generic error in an external library"))
    assert failure.reason == "cannot be opened: generic error in an external library"
    assert devices.screen_target("screen::0", CaptureConfig()).too_slow(2).reason == "gives no picture within 2 s"
