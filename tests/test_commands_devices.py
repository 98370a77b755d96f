"""`devices`, as lines and as JSON."""

from __future__ import annotations

import json

import pytest

from stream.cli import main
from stream.sources import cameras
from stream.sources.cameras import Camera, CameraMode

CAMERAS = [
    Camera(
        "/dev/video0",
        "Desk Cam",
        "uvcvideo",
        "usb-0000:00:14.0-1",
        (
            CameraMode(1280, 720, "mjpeg", (60.0, 30.0)),
            CameraMode(640, 480, "yuyv422", (29.97,)),
            CameraMode(160, 120, "nv12", ()),
            CameraMode(64, 64, "gray", (90.0, 1.0), any_between=True),
        ),
    ),
    Camera("/dev/video10", "", problem="in use by another program; end that program"),
]


def test_every_camera_and_mode_is_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cameras, "list_cameras", lambda: CAMERAS)
    assert main(["devices"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "0    /dev/video0  Desk Cam (uvcvideo, usb-0000:00:14.0-1)",
        "     1280x720:mjpeg   60 30 fps",
        "     640x480:yuyv422  29.97 fps",
        "     160x120:nv12",
        "     64x64:gray       1 to 90 fps",
        "10   /dev/video10",
        "     in use by another program; end that program",
        "",
        "watch 0 --set capture.camera_mode=1280x720:mjpeg",
    ]


def test_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cameras, "list_cameras", lambda: CAMERAS)
    assert main(["devices", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["cameras"]
    assert (first["address"], first["device"], first["name"]) == ("0", "/dev/video0", "Desk Cam")
    assert first["modes"][0] == {
        "camera_mode": "1280x720:mjpeg",
        "width_px": 1280,
        "height_px": 720,
        "format": "mjpeg",
        "fps": [60.0, 30.0],
        "any_between": False,
    }
    assert second["problem"].startswith("in use")


def test_no_camera_is_no_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cameras, "list_cameras", list)
    assert main(["devices"]) == 0
    assert capsys.readouterr().out.startswith("no camera: ")
    assert main(["devices", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"cameras": []}
