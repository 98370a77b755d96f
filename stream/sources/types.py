"""Registry of source types: forms of addresses, their check, library, and function that opens and imports the source.

Checks, doctor, docs/sources.md and `stream.sources.factory` read it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stream.clock import Clock
from stream.config import CaptureConfig, NetworkConfig, check_reachable, needs_keys
from stream.errors import SourceNotFound
from stream.options.extra import LEROBOT, Extra
from stream.sources.address import (
    LEROBOT_PREFIX,
    PULL,
    SCENE_PREFIX,
    SCREEN_PREFIX,
    STDIN,
    ZMQ_PREFIX,
    camera_of,
    scheme_of,
)
from stream.sources.checks import Screen, check_address, check_file, is_pattern, pictures_of
from stream.sources.lerobot import EpisodeAddress

if TYPE_CHECKING:
    from stream.media import Source
    from stream.sources.segments import SegmentRecorder


@dataclass(frozen=True, slots=True)
class SourceOpening:
    """Arguments of a source; `network` has the access rules of ZeroMQ, `segments` records the video."""

    address: str
    capture: CaptureConfig
    clock: Clock
    network: NetworkConfig
    segments: SegmentRecorder | None = None

    @property
    def path(self) -> Path:
        """The address as a path."""
        return Path(os.path.expanduser(self.address))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceType:
    """Type of source, chosen by the form of an address."""

    forms: str
    """Forms of its addresses in the documents."""
    help: str
    """Description in the documents."""
    matches: Callable[[str], bool]
    open: Callable[[SourceOpening], Source]
    """Import the source's module and open the source."""
    check: Callable[[str, CaptureConfig, NetworkConfig], object] | None = None
    """Raise SourceError or ConfigError for an address that cannot be opened. Imports nothing heavy."""
    one_stream: bool = False
    """True if the source has one video stream, so that `capture.stream` is refused before it is opened."""
    extra: Extra | None = None


def source_type(address: str) -> SourceType:
    """Return the type of the source at an address; a file if no other form matches."""
    return next(source for source in SOURCES if source.matches(address))


def _scene(at: SourceOpening) -> Source:
    from stream.sources.scene import SceneSource

    return SceneSource(at.address.removeprefix(SCENE_PREFIX), at.capture, at.clock)


def _episode(at: SourceOpening) -> Source:
    from stream.sources.file import EpisodeSource

    return EpisodeSource(at.address, at.capture, at.clock, at.segments)


def _stdin(at: SourceOpening) -> Source:
    from stream.sources.file import StdinSource

    return StdinSource(at.capture, at.clock, segments=at.segments)


def _check_camera(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    device = camera_of(address)
    if device is not None and device.startswith("/") and not os.path.exists(device):
        raise SourceNotFound(f"{device} is not there; plug the camera in, or choose one that `devices` lists")


def _camera(at: SourceOpening) -> Source:
    from stream.sources.devices import camera_target
    from stream.sources.live import LiveSource

    target = camera_target(camera_of(at.address) or at.address, at.capture)
    return LiveSource(target, at.capture, at.clock, segments=at.segments)


def _screen(at: SourceOpening) -> Source:
    from stream.sources.devices import screen_target
    from stream.sources.live import LiveSource

    return LiveSource(screen_target(at.address, at.capture), at.capture, at.clock, segments=at.segments)


def _check_zmq(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    endpoint = address.removeprefix(ZMQ_PREFIX).removesuffix(PULL)
    needs_keys(network, endpoint)
    check_reachable(endpoint)


def _zmq(at: SourceOpening) -> Source:
    from stream.sources.zeromq import ZmqSource

    return ZmqSource(at.address, at.capture, at.clock, at.network)


def _onvif(at: SourceOpening) -> Source:
    from stream.sources.live import LiveSource
    from stream.sources.onvif import onvif_target

    check_address(at.address)
    return LiveSource(onvif_target(at.address, at.capture), at.capture, at.clock, segments=at.segments)


def _check_network(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    check_address(address)
    if capture.headers:
        from stream.sources.headers import check_headers

        check_headers(address, capture)


def _network(at: SourceOpening) -> Source:
    from stream.sources.network import open_network

    return open_network(at.address, at.capture, at.clock, at.segments)


def _is_folder(address: str) -> bool:
    path = os.path.expanduser(address)
    return os.path.isdir(path) or is_pattern(path)


def _folder(at: SourceOpening) -> Source:
    from stream.sources.folder import FolderSource

    return FolderSource(os.path.expanduser(at.address), at.capture, at.clock)


def _check_file(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    check_address(address)
    path = Path(os.path.expanduser(address))
    if not (capture.follow and path.is_file() and path.stat().st_size == 0):  # its recording has just begun
        check_file(path, capture.max_pixels)


def _file(at: SourceOpening) -> Source:
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


SCENE = SourceType(
    forms="`scene:NAME`",
    help="a generated scene, identical on every run: `demo`, `hd`, `static`, `noise`, `pan`, `cuts`, `moving`, "
    "`street` (a pan past signs with words), or one with a [constant frame rate](measuring.md#paced-scenes)",
    matches=lambda address: address.startswith(SCENE_PREFIX),
    one_stream=True,
    open=_scene,
)

FILE = SourceType(
    forms="`clip.mp4`, `~/a.mkv`, …",
    help="any file that FFmpeg reads: its default video stream (cover art is none); a picture is a video of one frame",
    matches=lambda address: True,
    check=_check_file,
    open=_file,
)

SOURCES = (
    SCENE,
    SourceType(
        forms="`lerobot:FOLDER#episode=3&camera=top`",
        help="an [episode](#lerobot-datasets) of a LeRobot dataset",
        matches=lambda address: address.startswith(LEROBOT_PREFIX),
        check=lambda address, *_: EpisodeAddress.of(address),
        extra=LEROBOT,
        open=_episode,
    ),
    SourceType(forms="`-`", help="standard input", matches=lambda address: address == STDIN, open=_stdin),
    SourceType(
        forms="`0`, `/dev/video0`",
        help="a camera of this machine (V4L2); if a file named `0` exists, that file",
        matches=lambda address: camera_of(address) is not None,
        check=_check_camera,
        open=_camera,
    ),
    SourceType(
        forms="`screen:`, `screen::1+100,50`",
        help="a [screen](#screens) of this machine, or a part of it",
        matches=lambda address: address.startswith(SCREEN_PREFIX),
        check=lambda address, *_: Screen.of(address),
        open=_screen,
    ),
    SourceType(
        forms="`zmq+tcp://HOST:PORT`, `zmq+ipc://PATH`",
        help="frames from another program over ZeroMQ",
        matches=lambda address: address.startswith(ZMQ_PREFIX),
        check=_check_zmq,
        one_stream=True,
        open=_zmq,
    ),
    SourceType(
        forms="`onvif://USER:PASSWORD@HOST`, `onvifs://…`",
        help="an [ONVIF camera](#onvif-cameras), which reports its RTSP address; over HTTPS",
        matches=lambda address: scheme_of(address) in ("onvif", "onvifs"),
        check=_check_network,
        open=_onvif,
    ),
    SourceType(
        forms="`rtsp://…`, `rtsps://…`, `rtmp://…`, `rtmps://…`, `http://…`, `https://…`, `udp://HOST:PORT`, "
        "`rtp://…`, `tcp://…`, `srt://HOST:PORT`",
        help="a network camera or RTMP server; a file on a web server, MJPEG, or HLS; MPEG-TS, and other formats that "
        "FFmpeg detects by their first bytes; SRT if FFmpeg has it",
        matches=lambda address: scheme_of(address) is not None,
        check=_check_network,
        open=_network,
    ),
    SourceType(
        forms="`shots/`, `'shots/*.png'`",
        help="a folder of pictures, or those that match a pattern",
        matches=_is_folder,
        check=lambda address, *_: pictures_of(os.path.expanduser(address)),
        one_stream=True,
        open=_folder,
    ),
    FILE,
)
"""Types in the order in which their forms are tried."""
