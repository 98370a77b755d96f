"""Cameras of this machine and their modes, queried through V4L2 without claiming the devices.

Requests and structures: linux/videodev2.h, https://docs.kernel.org/userspace-api/media/v4l/v4l2.html.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

QUERYCAP = 0x80685600
ENUM_FMT = 0xC0405602
ENUM_FRAMESIZES = 0xC02C564A
ENUM_FRAMEINTERVALS = 0xC034564B

VIDEO_CAPTURE = 0x1
VIDEO_CAPTURE_MPLANE = 0x1000
DEVICE_CAPS = 0x80000000
DISCRETE = 1
"""V4L2_FRMSIZE_TYPE_DISCRETE and V4L2_FRMIVAL_TYPE_DISCRETE; other types have a minimum, a maximum and a step."""

COMMON_SIZES = ((320, 240), (640, 480), (1280, 720), (1920, 1080))
"""Sizes listed, besides the largest, for a camera that takes any size."""

FFMPEG_NAMES = {
    "MJPG": "mjpeg", "JPEG": "mjpeg", "H264": "h264", "YUYV": "yuyv422", "UYVY": "uyvy422", "NV12": "nv12",
    "YU12": "yuv420p", "YV12": "yuv420p", "422P": "yuv422p", "411P": "yuv411p", "YUV9": "yuv410p", "YVU9": "yuv410p",
    "RGB3": "rgb24", "BGR3": "bgr24", "BGR4": "bgr0", "RGB4": "0rgb", "RGBO": "rgb555le", "RGBQ": "rgb555be",
    "RGBP": "rgb565le", "RGBR": "rgb565be", "GREY": "gray", "Y16 ": "gray16le", "BA81": "bayer_bggr8",
    "GBRG": "bayer_gbrg8", "GRBG": "bayer_grbg8", "RGGB": "bayer_rggb8",
}  # fmt: skip
"""V4L2's four characters → FFmpeg's name of the format, as in `capture.camera_mode`: all formats that FFmpeg reads from
a camera (libavdevice/v4l2-common.c)."""

IN_A_CONTAINER = "in a container, pass it in: docker run --device /dev/video0"

Call = Callable[[int, bytearray], None]
"""Call one ioctl on an open device, with the request and the structure that it fills in. Raises OSError."""

Open = Callable[[str], AbstractContextManager[Call]]


@dataclass(frozen=True, slots=True)
class CameraMode:
    """Size and format of a camera, with its rates in frames per second, highest first.

    `any_between`: the camera also takes any rate between the first and the last of `fps`.
    """

    width_px: int
    height_px: int
    format: str
    fps: tuple[float, ...] = ()
    any_between: bool = False

    @property
    def setting(self) -> str:
        """The mode in the form of `capture.camera_mode`."""
        return f"{self.width_px}x{self.height_px}:{self.format}"


@dataclass(frozen=True, slots=True)
class Camera:
    """Device with its name and modes; `problem`: the reason that it cannot be used, with the remedy."""

    device: str
    name: str
    driver: str = ""
    bus: str = ""
    modes: tuple[CameraMode, ...] = ()
    problem: str | None = None

    @property
    def address(self) -> str:
        """The shortest address: the number N of /dev/videoN, else the device."""
        number = re.fullmatch(r"/dev/video(\d{1,3})", self.device)
        return number[1] if number else self.device


def list_cameras(folder: Path = Path("/dev"), open_device: Open | None = None) -> list[Camera]:
    """Return every device that provides or could provide pictures, by number, without devices for metadata only."""
    nodes = [path for path in folder.glob("video*") if re.fullmatch(r"video\d+", path.name)]
    nodes.sort(key=lambda path: int(path.name.removeprefix("video")))
    cameras = (read_camera(str(node), open_device or opened) for node in nodes)
    return [camera for camera in cameras if camera is not None]


def none_found() -> tuple[str, str]:
    """Return the reason that there may be no camera, and the remedy."""
    if not Path("/sys").exists():
        return (
            "cameras are listed through V4L2, which only Linux has",
            "try `watch 0`, or give a network camera's address",
        )
    if "microsoft" in os.uname().release.lower():
        return "WSL has none by itself", "attach one with usbipd, or give the address of a network camera"
    return "there is no /dev/video*", f"plug one in; {IN_A_CONTAINER}"


def read_camera(device: str, open_device: Open) -> Camera | None:
    """Query a device; return None if it provides no pictures (an encoder, a camera's metadata)."""
    try:
        with open_device(device) as call:
            capability = bytearray(104)
            call(QUERYCAP, capability)
            driver, card, bus, _, capabilities, device_caps = struct.unpack_from("16s32s32sIII", capability)
            if capabilities & DEVICE_CAPS:
                flags = device_caps  # of this device node
            else:
                flags = capabilities
            camera = Camera(device, _text(card), _text(driver), _text(bus))
            if flags & VIDEO_CAPTURE:
                return _with_modes(camera, call)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.ENODEV):
            return None
        return Camera(device, "", problem=_problem(error))
    if flags & VIDEO_CAPTURE_MPLANE:
        return replace(
            camera, problem="it delivers its planes separately, which FFmpeg does not read; use another camera"
        )
    return None


@contextmanager
def opened(device: str) -> Iterator[Call]:
    """Context manager for the ioctl of an open device. Raises OSError."""
    from fcntl import ioctl

    descriptor = os.open(device, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield lambda request, structure: ioctl(descriptor, request, structure, True)
    finally:
        os.close(descriptor)


def _with_modes(camera: Camera, call: Call) -> Camera:
    """Return the camera with every mode that FFmpeg can read, or with a problem if FFmpeg can read none."""
    modes = []
    foreign = []
    for _, fourcc in _entries(call, ENUM_FMT, lambda index: struct.pack("II", index, VIDEO_CAPTURE), 64, "44xI"):
        code = struct.pack("I", fourcc).decode("latin-1")
        if code not in FFMPEG_NAMES:
            foreign.append(_text(code.encode("latin-1")))
            continue
        for width, height in _sizes(call, fourcc):
            fps, any_between = _rates(call, fourcc, width, height)
            modes.append(CameraMode(width, height, FFMPEG_NAMES[code], fps, any_between))
    if foreign and not modes:
        return replace(camera, problem=f"FFmpeg reads none of its formats ({', '.join(foreign)}); use another camera")
    return replace(camera, modes=tuple(modes))


def _entries(
    call: Call, request: int, head: Callable[[int], bytes], size: int, form: str
) -> Iterator[tuple[bytearray, int]]:
    """Yield each entry of the driver's list: the structure, and the number in it at `form`."""
    for index in range(256):  # no driver lists more; a list that never ends is broken
        structure = bytearray(head(index).ljust(size, b"\0"))
        try:
            call(request, structure)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOTTY):
                return
            raise
        yield structure, struct.unpack_from(form, structure)[0]


def _sizes(call: Call, fourcc: int) -> list[tuple[int, int]]:
    """Return each (width, height) of struct v4l2_frmsizeenum, in the driver's order."""
    sizes: list[tuple[int, int]] = []
    for structure, kind in _entries(call, ENUM_FRAMESIZES, lambda index: struct.pack("II", index, fourcc), 44, "8xI"):
        numbers = struct.unpack_from("6I", structure, 12)
        if kind != DISCRETE:
            return _common_sizes(numbers)
        sizes.append(numbers[:2])
    return sizes


def _common_sizes(bounds: Sequence[int]) -> list[tuple[int, int]]:
    """Return the usual sizes within (least, most, step) of width and height, and the largest."""
    wide = bounds[:3]
    high = bounds[3:]

    def fits(length: int, least: int, most: int, step: int) -> bool:
        return least <= length <= most and (length - least) % max(step, 1) == 0

    usual = [size for size in COMMON_SIZES if fits(size[0], *wide) and fits(size[1], *high)]
    return list(dict.fromkeys([*usual, (wide[1], high[1])]))


def _rates(call: Call, fourcc: int, width: int, height: int) -> tuple[tuple[float, ...], bool]:
    """Return the rates of struct v4l2_frmivalenum in frames per second, highest first; True if any rate between them
    is allowed."""
    rates: set[float] = set()
    head = struct.pack("III", fourcc, width, height)
    for structure, kind in _entries(
        call, ENUM_FRAMEINTERVALS, lambda index: struct.pack("I", index) + head, 52, "16xI"
    ):
        numbers = struct.unpack_from("6I", structure, 20)
        if kind == DISCRETE:
            intervals = [numbers[:2]]
        else:
            intervals = [numbers[:2], numbers[2:4]]
        rates |= {round(below / above, 3) for above, below in intervals if above and below}
        if kind != DISCRETE:
            return tuple(sorted(rates, reverse=True)), True
    return tuple(sorted(rates, reverse=True)), False


def _text(field: bytes) -> str:
    text = field.partition(b"\0")[0].decode("utf-8", "replace")
    return "".join(letter for letter in text if letter.isprintable()).strip()


def _problem(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"may not be opened: sudo usermod -aG video $USER and log in again; {IN_A_CONTAINER}"
    if error.errno == errno.EBUSY:
        return "in use by another program; end that program"
    return f"cannot be queried: {error.strerror}; unplug it and plug it in again"
