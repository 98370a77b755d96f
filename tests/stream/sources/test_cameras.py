"""Cameras as V4L2 describes them. A stand-in without hardware fills in the kernel's structures."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from stream.sources import cameras
from stream.sources.cameras import Call, Camera, CameraMode, list_cameras, opened, read_camera
from stream.sources.devices import camera_options

u32 = ctypes.c_uint32
CAPTURE, MPLANE, METADATA, DEVICE_CAPS = 0x1, 0x1000, 0x00800000, 0x80000000


class Capability(ctypes.Structure):
    """struct v4l2_capability; this and the other structures are declared in linux/videodev2.h."""

    _fields_ = (
        ("driver", ctypes.c_char * 16), ("card", ctypes.c_char * 32), ("bus_info", ctypes.c_char * 32),
        ("version", u32), ("capabilities", u32), ("device_caps", u32), ("reserved", u32 * 3),
    )  # fmt: skip


class FormatDescription(ctypes.Structure):
    _fields_ = (
        ("index", u32), ("type", u32), ("flags", u32), ("description", ctypes.c_char * 32), ("pixelformat", u32),
        ("mbus_code", u32), ("reserved", u32 * 3),
    )  # fmt: skip


class FrameSize(ctypes.Structure):
    _fields_ = (("index", u32), ("pixel_format", u32), ("type", u32), ("union", u32 * 6), ("reserved", u32 * 2))


class FrameInterval(ctypes.Structure):
    _fields_ = (
        ("index", u32), ("pixel_format", u32), ("width", u32), ("height", u32), ("type", u32), ("union", u32 * 6),
        ("reserved", u32 * 2),
    )  # fmt: skip


def request(direction: int, number: int, structure: type[ctypes.Structure]) -> int:
    """_IOR ("V" is 2) and _IOWR (3) of asm-generic/ioctl.h."""
    return direction << 30 | ctypes.sizeof(structure) << 16 | ord("V") << 8 | number


def fourcc(code: str) -> int:
    return int.from_bytes(code.encode(), "little")


class FakeDevice:
    """A driver: `formats` maps four characters to sizes, and these to intervals (seconds as a fraction)."""

    def __init__(
        self, formats: dict[str, dict[Any, list[Any]]], caps: int = CAPTURE, capabilities: int | None = None
    ) -> None:
        self.formats = formats
        self.caps = caps
        self.capabilities = DEVICE_CAPS | caps | METADATA if capabilities is None else capabilities
        self.opened = self.closed = 0

    @contextmanager
    def open(self, device: str) -> Iterator[Call]:
        self.opened += 1
        try:
            yield self.call
        finally:
            self.closed += 1

    def call(self, number: int, data: bytearray) -> None:
        answers: dict[int, tuple[type[ctypes.Structure], Callable[[Any], None]]] = {
            request(2, 0, Capability): (Capability, self.describe),
            request(3, 2, FormatDescription): (FormatDescription, self.format),
            request(3, 74, FrameSize): (FrameSize, self.size),
            request(3, 75, FrameInterval): (FrameInterval, self.interval),
        }
        kind, answer = answers[number]
        assert len(data) == ctypes.sizeof(kind)
        try:
            answer(kind.from_buffer(data))
        except (IndexError, KeyError):
            raise OSError(errno.EINVAL, "Invalid argument") from None

    def describe(self, fields: Any) -> None:
        fields.driver, fields.card, fields.bus_info = b"uvcvideo", b"Desk Cam\x01: 1080p", b"usb-0000:00:14.0-1"
        fields.capabilities, fields.device_caps = self.capabilities, self.caps

    def format(self, fields: Any) -> None:
        assert fields.type == 1
        fields.pixelformat = fourcc(list(self.formats)[fields.index])

    def sizes(self, fields: Any) -> dict[Any, list[Any]]:
        return next(sizes for code, sizes in self.formats.items() if fourcc(code) == fields.pixel_format)

    def size(self, fields: Any) -> None:
        size = list(self.sizes(fields))[fields.index]
        fields.type = 1 if len(size) == 2 else 3
        fields.union = (u32 * 6)(*size)

    def interval(self, fields: Any) -> None:
        sizes = self.sizes(fields)
        size = (fields.width, fields.height)
        intervals = sizes[size] if size in sizes else next(steps for any_size, steps in sizes.items() if any_size)
        numbers = intervals[fields.index]
        fields.type = 1 if len(numbers) == 2 else 2
        fields.union = (u32 * 6)(*numbers)


def camera_of(opener: Any) -> Camera:
    camera = read_camera("/dev/video0", opener)
    assert camera is not None
    return camera


WEBCAM = {
    "MJPG": {(1920, 1080): [(1, 30)], (640, 480): [(1, 15), (1, 60), (1, 30)]},
    "YUYV": {(640, 480): [(333333, 10000000), (0, 0)], (160, 120): []},
    "????": {(64, 64): [(1, 30)]},
}


def test_a_webcam_lists_every_readable_mode() -> None:
    device = FakeDevice(WEBCAM)
    assert read_camera("/dev/video0", device.open) == Camera(
        "/dev/video0",
        "Desk Cam: 1080p",
        "uvcvideo",
        "usb-0000:00:14.0-1",
        (
            CameraMode(1920, 1080, "mjpeg", (30.0,)),
            CameraMode(640, 480, "mjpeg", (60.0, 30.0, 15.0)),
            CameraMode(640, 480, "yuyv422", (30.0,)),
            CameraMode(160, 120, "yuyv422", ()),
        ),
    )
    assert (device.opened, device.closed) == (1, 1)


def test_a_mode_is_written_in_the_form_of_the_configuration() -> None:
    from stream.config import CaptureConfig

    mode = CameraMode(1920, 1080, "mjpeg").setting
    options = camera_options(CaptureConfig(camera_mode=mode))
    assert (options["video_size"], options["input_format"]) == ("1920x1080", "mjpeg")


def test_a_camera_of_any_size_lists_the_usual_ones_and_its_largest() -> None:
    device = FakeDevice({"NV12": {(32, 2592, 2, 32, 1944, 2): [(1, 90, 1, 1, 0, 1)]}})
    camera = camera_of(device.open)
    assert [mode.setting.partition(":")[0] for mode in camera.modes] == [
        "320x240", "640x480", "1280x720", "1920x1080", "2592x1944",
    ]  # fmt: skip
    assert {(mode.fps, mode.any_between) for mode in camera.modes} == {((90.0, 1.0), True)}


def test_a_step_leaves_out_sizes_that_it_misses() -> None:
    device = FakeDevice({"NV12": {(64, 1296, 16, 64, 1296, 16): [(1, 30)]}})
    camera = camera_of(device.open)
    assert [mode.width_px for mode in camera.modes] == [320, 640, 1280, 1296]


@pytest.mark.parametrize("capabilities", [None, METADATA])
def test_a_node_without_pictures_is_none(capabilities: int | None) -> None:
    """A webcam's second node provides metadata; `capabilities` describe the device, `device_caps` the node."""
    assert read_camera("/dev/video1", FakeDevice({}, METADATA, capabilities).open) is None


def test_an_old_driver_describes_the_whole_device_only() -> None:
    camera = camera_of(FakeDevice({"GREY": {(64, 64): []}}, 0, CAPTURE).open)
    assert len(camera.modes) == 1


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        (FakeDevice({}, MPLANE), "it delivers its planes separately, which FFmpeg does not read; use another camera"),
        (FakeDevice({"pBAA": {(64, 64): []}}), "FFmpeg reads none of its formats (pBAA); use another camera"),
    ],
)
def test_a_camera_that_cannot_be_read_says_why(device: FakeDevice, problem: str) -> None:
    camera = camera_of(device.open)
    assert (camera.problem, camera.modes) == (problem, ())


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (errno.EACCES, "may not be opened: sudo usermod -aG video $USER and log in again; in a container, pass it in"),
        (errno.EPERM, "may not be opened"),
        (errno.EBUSY, "in use by another program"),
        (errno.EIO, "cannot be queried: Input/output error; unplug it and plug it in again"),
        (errno.ENOTTY, None),
        (errno.ENODEV, None),
    ],
)
def test_a_device_that_cannot_be_opened(number: int, problem: str | None) -> None:
    camera = read_camera("/dev/video0", Mock(side_effect=OSError(number, os.strerror(number))))
    assert (camera is None) == (problem is None)
    if camera is not None and problem is not None:
        assert camera.problem is not None
        assert camera.problem.startswith(problem)


def test_an_error_among_the_modes_is_a_problem_too() -> None:
    device = FakeDevice(WEBCAM)
    device.size = lambda fields: (_ for _ in ()).throw(OSError(errno.EIO, "broken"))  # type: ignore[method-assign]
    camera = camera_of(device.open)
    assert camera.problem == "cannot be queried: broken; unplug it and plug it in again"
    assert device.closed == 1


def test_a_list_that_never_ends_is_cut_off() -> None:
    device = FakeDevice({"MJPG": {(64, 64): []}})
    device.interval = lambda fields: setattr(fields, "union", (u32 * 6)(1, 30))  # type: ignore[method-assign]
    camera = camera_of(device.open)
    assert len(camera.modes) == 1


def test_devices_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("video10", "video2", "video0", "videodev", "vbi0"):
        (tmp_path / name).touch()
    cameras = list_cameras(tmp_path, FakeDevice(WEBCAM).open)
    assert [Path(camera.device).name for camera in cameras] == ["video0", "video2", "video10"]


def test_the_address_is_the_number() -> None:
    assert Camera("/dev/video12", "").address == "12"
    assert Camera("/dev/v4l/by-id/usb-cam", "").address == "/dev/v4l/by-id/usb-cam"


def test_a_file_that_is_no_device_gives_no_camera(tmp_path: Path) -> None:
    (tmp_path / "video0").touch()
    assert list_cameras(tmp_path) == []
    with pytest.raises(OSError, match="ioctl"), opened(str(tmp_path / "video0")) as call:
        call(cameras.QUERYCAP, bytearray(104))


@pytest.mark.parametrize(
    ("linux", "release", "remedy"),
    [
        (True, "6.1.0", "there is no /dev/video*; plug one in; in a container, pass it in: docker run --device"),
        (True, "5.15.90-Microsoft-standard-WSL2", "attach one with usbipd"),
        (False, "23.1", "which only Linux has; try `watch 0`"),
    ],
)
def test_without_a_camera_it_says_what_to_do(
    linux: bool, release: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: linux)
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "", release, "", "")))
    assert remedy in "; ".join(cameras.none_found())
