"""Opening a source by its address: `open_source`."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path

from stream.clock import Clock
from stream.config import CaptureConfig, NetworkConfig
from stream.errors import ConfigError, SourceNotFound
from stream.media import Source
from stream.sources.address import (
    LEROBOT_PREFIX,
    SCENE_PREFIX,
    SCREEN_PREFIX,
    STDIN,
    ZMQ_PREFIX,
    camera_of,
    redacted,
    scheme_of,
)
from stream.sources.animation import AnimationSource, frame_durations_ms
from stream.sources.checks import check_address, is_pattern
from stream.sources.connection import is_endless, network_target, opened_within
from stream.sources.devices import camera_target, screen_target
from stream.sources.file import ContainerSource, EpisodeSource, FileSource, StdinSource
from stream.sources.folder import FolderSource
from stream.sources.live import LiveSource
from stream.sources.onvif import onvif_target
from stream.sources.scene import SceneSource
from stream.sources.segments import SegmentRecorder
from stream.sources.threaded import PrefetchSource
from stream.sources.zeromq import ZmqSource

_MAYBE_FILES = frozenset({"http", "https"})

_READ_FAILED = os.strerror(errno.EIO)
"""FFmpeg's words where data are not to be had, in contrast to data that cannot be decoded."""


class WebFileSource(ContainerSource):
    """A file on a web server. Some servers send it from its beginning only: FFmpeg cannot go back in it then."""

    def _nothing_decoded(self, reason: str) -> str:
        if "mp4" not in self._container.format.name or _READ_FAILED not in reason:
            return super()._nothing_decoded(reason)
        return (
            f"{self._name} has its index (moov) after its pictures, and the server does not send parts of a file, or "
            "broke off; put the index in front (ffmpeg -i IN.mp4 -c copy -movflags +faststart OUT.mp4), or download it "
            "first"
        )


def open_network(address: str, config: CaptureConfig, clock: Clock, segments: SegmentRecorder | None = None) -> Source:
    """Opens an address: what has an end (a file on a web server, a finished HLS stream) as a file, all else as live.

    Raises SourceError, or ConfigError for a `capture.size` beyond measure.
    """
    check_address(address)
    target = network_target(address, config)
    start_s = time.monotonic()
    container = opened_within(target, config.open_timeout_s)
    took_s = time.monotonic() - start_s
    if scheme_of(address) in _MAYBE_FILES and not is_endless(container):
        return PrefetchSource(WebFileSource(container, target.name, config, clock, target.hardware, segments=segments))
    target = replace(target, paced=container.format.name == "hls")
    return LiveSource(target, config, clock, container, took_s, segments)


def open_source(
    address: str,
    config: CaptureConfig,
    clock: Clock,
    network: NetworkConfig | None = None,
    segments: SegmentRecorder | None = None,
) -> Source:
    """Opens what an address names, as docs/sources.md lists them; `network` says who may connect over ZeroMQ, and
    `segments` records the video.

    Raises SourceNotFound where there is nothing of that name, SourceError where it cannot be read, ConfigError where
    `capture.size` is beyond measure, or keys are missing.
    """
    if not address.strip():
        raise SourceNotFound("no source was given; give the path of a video file, or scene:NAME for a generated clip")
    if address.startswith(SCENE_PREFIX):
        return SceneSource(address.removeprefix(SCENE_PREFIX), config, clock)
    if config.loop:
        raise ConfigError(f"capture.loop repeats drawn scenes, and {redacted(address)!r} is none; set it to false")
    if address.startswith(LEROBOT_PREFIX):
        return EpisodeSource(address, config, clock, segments)
    if address == STDIN:
        return StdinSource(config, clock, segments=segments)
    device = camera_of(address)
    if device is not None:
        return LiveSource(camera_target(device, config), config, clock, segments=segments)
    if address.startswith(SCREEN_PREFIX):
        return LiveSource(screen_target(address, config), config, clock, segments=segments)
    check_address(address)
    if address.startswith(ZMQ_PREFIX):
        return ZmqSource(address, config, clock, network or NetworkConfig())
    if scheme_of(address) in ("onvif", "onvifs"):
        return LiveSource(onvif_target(address, config), config, clock, segments=segments)
    if scheme_of(address) is not None:
        return open_network(address, config, clock, segments)
    path = os.path.expanduser(address)
    if os.path.isdir(path) or is_pattern(path):
        return FolderSource(path, config, clock)
    if durations_ms := frame_durations_ms(Path(path)):
        return AnimationSource(Path(path), durations_ms, config, clock)
    return FileSource(Path(path), config, clock, segments)
