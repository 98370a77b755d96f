"""Cameras and screens of this machine, opened through FFmpeg: V4L2 and X11 on Linux, AVFoundation on macOS, DirectShow
and GDI on Windows.

Devices and options: https://ffmpeg.org/ffmpeg-devices.html.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from dataclasses import dataclass

import av

from stream.config import CaptureConfig
from stream.sources.checks import Screen
from stream.sources.connection import FailureAdvice, LiveTarget, cannot, reason_of

log = logging.getLogger(__name__)

_NONBLOCK = 4
"""AVFMT_FLAG_NONBLOCK, which FFmpeg knows by number only; without it, a hung camera would block its reader forever."""


@dataclass(frozen=True, slots=True)
class CaptureSystem:
    """FFmpeg's names on one system: inputs for cameras and screens, and the option for a camera's pixel format."""

    title: str
    camera: str
    screen: str
    format_option: str
    screen_title: str


_LINUX = CaptureSystem("V4L2", "v4l2", "x11grab", "input_format", "X11 capture (x11grab)")
_SYSTEMS = {
    "darwin": CaptureSystem("AVFoundation", "avfoundation", "avfoundation", "pixel_format", "AVFoundation"),
    "win32": CaptureSystem("DirectShow", "dshow", "gdigrab", "pixel_format", "GDI capture (gdigrab)"),
}


def capture_system(platform: str = sys.platform) -> CaptureSystem:
    """Return the names for a value of `sys.platform`."""
    return _SYSTEMS.get(platform, _LINUX)


_NO_CAMERA = FailureAdvice("is not there", "plug the camera in, or choose one that `devices` lists")
_NOT_A_CAMERA = FailureAdvice("is not a camera that gives pictures", "choose one that `devices` lists")
_CAMERA_NUMBERS = {
    errno.ENOENT: _NO_CAMERA,
    errno.ENODEV: _NO_CAMERA,
    errno.ENXIO: _NO_CAMERA,
    errno.EBUSY: FailureAdvice("is in use by another program", "end that program, or choose another camera"),
    errno.EACCES: FailureAdvice(
        "may not be opened by this user", "add the user to the group that owns it: sudo usermod -aG video $USER"
    ),
    errno.EPERM: FailureAdvice("may not be opened by this user", "give this program access to the camera"),
    errno.ENOTTY: _NOT_A_CAMERA,
    errno.EINVAL: FailureAdvice(
        "does not support this mode", "choose capture.camera_mode and capture.fps among those that `devices` lists"
    ),
}

_SCREEN_NUMBERS = {
    errno.EIO: FailureAdvice(
        "is no display that can be opened",
        "check that DISPLAY is that of a desktop, such as :0, and that this user may use it (see xhost)",
    ),
    errno.EINVAL: FailureAdvice(
        "does not hold this area", "give a capture.camera_mode (WxH) and a corner (+X,Y) that lie on the screen"
    ),
}


def camera_failure(error: av.FFmpegError, limit_s: float) -> FailureAdvice:
    """Return the reason that a camera could not be opened within `limit_s`."""
    if isinstance(error, av.error.ExitError):
        return camera_too_slow(limit_s)
    return _CAMERA_NUMBERS.get(error.errno) or FailureAdvice(
        f"cannot be opened: {reason_of(error)}", "try another camera"
    )


def camera_too_slow(limit_s: float) -> FailureAdvice:
    """Return the advice for a camera that delivered no picture in time."""
    return FailureAdvice(
        f"gives no picture within {limit_s:g} s", "unplug it and plug it in again, or choose another camera"
    )


def screen_failure(error: av.FFmpegError) -> FailureAdvice:
    """Return the reason that a screen could not be opened."""
    return _SCREEN_NUMBERS.get(error.errno) or FailureAdvice(
        f"cannot be opened: {reason_of(error)}", "try another display"
    )


def _screen_too_slow(limit_s: float) -> FailureAdvice:
    return FailureAdvice(f"gives no picture within {limit_s:g} s", "check that its display still runs")


def camera_target(device: str, config: CaptureConfig, system: CaptureSystem | None = None) -> LiveTarget:
    """Return the target for a camera of this machine: `device` is a path on Linux, a number on other systems."""
    backend = system or capture_system()

    def open_it(limit_s: float) -> av.container.InputContainer:
        try:
            name = _camera_name(device, backend)
            timeout = (limit_s, config.stall_s)
            return av.open(name, format=backend.camera, options=camera_options(config, backend), timeout=timeout)
        except av.FFmpegError as error:
            failure = camera_failure(error, limit_s)
        except ValueError:
            failure = FailureAdvice(
                f"cannot be opened: FFmpeg was built without {backend.title}", "use Linux, or a network camera"
            )
        raise cannot(device, failure)

    return LiveTarget(device, open_it, camera_too_slow)


def camera_options(config: CaptureConfig, system: CaptureSystem = _LINUX) -> dict[str, str]:
    """Return FFmpeg's options for `capture.camera_mode` and `capture.fps`."""
    options = {"fflags": str(_NONBLOCK)}
    if config.camera_mode is not None:
        size, _, pixel_format = config.camera_mode.partition(":")
        options["video_size"] = size
        if pixel_format:
            if system.camera == "dshow" and pixel_format == "mjpeg":
                option = "vcodec"
            else:
                option = system.format_option
            options[option] = pixel_format
    if config.fps is not None:
        options["framerate"] = f"{config.fps:g}"
    elif system.camera == "avfoundation":
        options["framerate"] = "30"  # FFmpeg's 29.97 is refused by cameras that list whole rates
    return options


def _camera_name(device: str, system: CaptureSystem) -> str:
    """Return FFmpeg's name of the device. Raises SourceError for a number that no camera has."""
    if system.camera == "avfoundation":
        return f"{device}:none"
    if system.camera == "dshow":
        cameras = [camera for camera in av.enumerate_input_devices("dshow") if "video" in camera.media_types]
        if int(device) >= len(cameras):
            raise cannot(
                f"camera {device}", FailureAdvice("is not there", "plug the camera in, or give a lower number")
            )
        return f"video={cameras[int(device)].description}"
    return device


def screen_target(address: str, config: CaptureConfig, system: CaptureSystem | None = None) -> LiveTarget:
    """Return the target for a screen, or for an area of it. Raises SourceError as `Screen.of`."""
    backend = system or capture_system()
    screen = Screen.of(address)
    if backend.screen == "x11grab" and os.environ.get("XDG_SESSION_TYPE") == "wayland":
        log.warning("on Wayland only the windows of X11 programs are captured; log in with an X11 session for all")

    def open_it(limit_s: float) -> av.container.InputContainer:
        try:
            name, options = _grab_options(screen, config, backend)
            return av.open(name, format=backend.screen, options=options, timeout=(limit_s, config.stall_s))
        except av.FFmpegError as error:
            failure = screen_failure(error)
        except ValueError:
            failure = FailureAdvice(
                f"cannot be opened: FFmpeg was built without {backend.screen_title}",
                "install PyAV from PyPI: pip install --force-reinstall --only-binary av av",
            )
        raise cannot(address, failure)

    return LiveTarget(address, open_it, _screen_too_slow)


def _grab_options(screen: Screen, config: CaptureConfig, system: CaptureSystem) -> tuple[str, dict[str, str]]:
    """Return FFmpeg's name and options of an area: `capture.camera_mode` is its size, `capture.fps` the rate."""
    options = {"fflags": "nobuffer"}
    if config.camera_mode is not None:
        options["video_size"] = config.camera_mode.partition(":")[0]
    if config.fps is not None:
        options["framerate"] = f"{config.fps:g}"
    left, top = screen.corner
    if system.screen == "avfoundation":
        return "Capture screen 0:none", {**options, "capture_cursor": "1"}
    if system.screen == "gdigrab":
        return "desktop", {**options, "offset_x": str(left), "offset_y": str(top)}
    return f"{screen.display}+{left},{top}", options
