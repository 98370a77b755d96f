"""Registry of source types: forms of addresses, their check, library, and function that opens and imports the source.

Checks, doctor, docs/sources.md and `stream.sources.factory` read it.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stream.config import CaptureConfig, NetworkConfig
from stream.errors import SourceNotFound
from stream.extension import SourceOpening, SourceType
from stream.extension.registry import extensions
from stream.sources.address import (
    SCENE_PREFIX,
    SCREEN_PREFIX,
    STDIN,
    camera_of,
)
from stream.sources.checks import Screen, check_address, check_file, is_pattern, pictures_of

if TYPE_CHECKING:
    from stream.media import Source


def source_type(address: str) -> SourceType:
    """Return the type of the source at an address; a file if no other form matches."""
    return next(source for source in source_types() if source.is_of(address))


@cache
def source_types() -> tuple[SourceType, ...]:
    """Return all types, those of extensions first, in the order in which their forms are tried."""
    own = [source for extension in extensions() for source in extension.sources]
    return (SCENE, *own, *CORE, FILE)


def open_scene(at: SourceOpening) -> Source:
    """Open a generated scene."""
    from stream.sources.scene import SceneSource

    return SceneSource(at.address.removeprefix(SCENE_PREFIX), at.capture, at.clock)


def open_stdin(at: SourceOpening) -> Source:
    """Open standard input."""
    from stream.sources.file import StdinSource

    return StdinSource(at.capture, at.clock, segments=at.segments)


def is_stdin(address: str) -> bool:
    """Return True for standard input."""
    return address == STDIN


def check_screen(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    """Raise SourceError for a screen that cannot be captured."""
    Screen.of(address)


def check_folder(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    """Raise SourceError for a folder without pictures."""
    pictures_of(os.path.expanduser(address))


def check_camera(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    """Raise SourceNotFound if a camera's device is not there."""
    device = camera_of(address)
    if device is not None and device.startswith("/") and not os.path.exists(device):
        raise SourceNotFound(f"{device} is not there; plug the camera in, or choose one that `devices` lists")


def open_camera(at: SourceOpening) -> Source:
    """Open a camera of this machine."""
    from stream.sources.devices import camera_target
    from stream.sources.live import LiveSource

    target = camera_target(camera_of(at.address) or at.address, at.capture)
    return LiveSource(target, at.capture, at.clock, segments=at.segments)


def open_screen(at: SourceOpening) -> Source:
    """Open a screen."""
    from stream.sources.devices import screen_target
    from stream.sources.live import LiveSource

    return LiveSource(screen_target(at.address, at.capture), at.capture, at.clock, segments=at.segments)


def check_network(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    """Raise SourceError for an invalid address, or headers that it cannot have."""
    check_address(address)
    if capture.headers:
        from stream.sources.headers import check_headers

        check_headers(address, capture)


def open_network_source(at: SourceOpening) -> Source:
    """Open a network stream."""
    from stream.sources.network import open_network

    return open_network(at.address, at.capture, at.clock, at.segments)


def is_folder(address: str) -> bool:
    """Return True for a folder, or a pattern of names."""
    path = os.path.expanduser(address)
    return os.path.isdir(path) or is_pattern(path)


def open_folder(at: SourceOpening) -> Source:
    """Open a folder of pictures."""
    from stream.sources.folder import FolderSource

    return FolderSource(os.path.expanduser(at.address), at.capture, at.clock)


def check_any_file(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    """Raise SourceError for a file that cannot be read."""
    check_address(address)
    path = Path(os.path.expanduser(address))
    if not (capture.follow and path.is_file() and path.stat().st_size == 0):  # its recording has just begun
        check_file(path, capture.max_pixels)


def open_file(at: SourceOpening) -> Source:
    """Open a file by its contents."""
    from stream.sources.animation import AnimationSource, frame_durations_ms
    from stream.sources.file import FileSource
    from stream.sources.heif import tiled_picture
    from stream.sources.tiled import TiledPictureSource

    check_address(at.address)
    if at.capture.follow and at.path.is_file():  # a pipe is waited for in any case
        from stream.sources.growing import GrowingFileSource

        return GrowingFileSource(at.path, at.capture, at.clock, at.segments)
    if durations_ms := frame_durations_ms(at.path):
        return AnimationSource(at.path, durations_ms, at.capture, at.clock)
    if picture := tiled_picture(at.path):
        return TiledPictureSource(at.path, picture, at.capture, at.clock)
    return FileSource(at.path, at.capture, at.clock, at.segments)


HERE = "stream.sources.types"

SCENE = SourceType(
    forms="`scene:NAME`",
    help="a generated scene, identical on every run: `demo`, `hd`, `static`, `noise`, `pan`, `cuts`, `moving`, "
    "`street` (a pan past signs with words), or one with a [constant frame rate](measuring.md#paced-scenes)",
    prefixes=(SCENE_PREFIX,),
    one_stream=True,
    open=f"{HERE}:open_scene",
)

FILE = SourceType(
    forms="`clip.mp4`, `~/a.mkv`, …",
    help="any file that FFmpeg reads: its default video stream (cover art is none); a picture is a video of one frame",
    check=f"{HERE}:check_any_file",
    open=f"{HERE}:open_file",
    prefixes=("",),
)

CORE = (
    SourceType(forms="`-`", help="standard input", matches=f"{HERE}:is_stdin", open=f"{HERE}:open_stdin"),
    SourceType(
        forms="`0`, `/dev/video0`",
        help="a camera of this machine (V4L2); if a file named `0` exists, that file",
        matches="stream.sources.address:camera_of",
        check=f"{HERE}:check_camera",
        open=f"{HERE}:open_camera",
    ),
    SourceType(
        forms="`screen:`, `screen::1+100,50`",
        help="a [screen](#screens) of this machine, or a part of it",
        prefixes=(SCREEN_PREFIX,),
        check=f"{HERE}:check_screen",
        open=f"{HERE}:open_screen",
    ),
    SourceType(
        forms="`rtsp://…`, `rtsps://…`, `rtmp://…`, `rtmps://…`, `http://…`, `https://…`, `udp://HOST:PORT`, "
        "`rtp://…`, `tcp://…`, `srt://HOST:PORT`",
        help="a network camera or RTMP server; a file on a web server, MJPEG, or HLS; MPEG-TS, and other formats that "
        "FFmpeg detects by their first bytes; SRT if FFmpeg has it",
        matches="stream.sources.address:scheme_of",
        check=f"{HERE}:check_network",
        open=f"{HERE}:open_network_source",
    ),
    SourceType(
        forms="`shots/`, `'shots/*.png'`",
        help="a folder of pictures, or those that match a pattern",
        matches=f"{HERE}:is_folder",
        check=f"{HERE}:check_folder",
        one_stream=True,
        open=f"{HERE}:open_folder",
    ),
)
"""Types of the core between generated scenes and files."""
