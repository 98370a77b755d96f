"""From an address to an open source."""

from __future__ import annotations

import os
from pathlib import Path

from stream.clock import Clock
from stream.config import CaptureConfig, NetworkConfig
from stream.errors import SourceNotFound
from stream.sources.address import SCENE_PREFIX, STDIN, ZMQ_PREFIX, camera_of, scheme_of
from stream.sources.address_check import check_address
from stream.sources.base import Source
from stream.sources.connection import camera_target
from stream.sources.file import FileSource
from stream.sources.folder import FolderSource
from stream.sources.live import LiveSource
from stream.sources.network import open_network
from stream.sources.picture_files import is_pattern
from stream.sources.scene import SceneSource
from stream.sources.stdin import StdinSource
from stream.sources.zeromq import ZmqSource


def open_source(address: str, config: CaptureConfig, clock: Clock, network: NetworkConfig | None = None) -> Source:
    """Opens what an address names, as docs/sources.md lists them; `network` says who may connect over ZeroMQ.

    Raises SourceNotFound where there is nothing of that name, SourceError where it cannot be read, ConfigError where
    `capture.size` is beyond measure, or keys are missing.
    """
    if not address.strip():
        raise SourceNotFound("no source was given; give the path of a video file, or scene:NAME for a generated clip")
    if address.startswith(SCENE_PREFIX):
        return SceneSource(address.removeprefix(SCENE_PREFIX), config, clock)
    if address == STDIN:
        return StdinSource(config, clock)
    device = camera_of(address)
    if device is not None:
        return LiveSource(camera_target(device, config), config, clock)
    check_address(address)
    if address.startswith(ZMQ_PREFIX):
        return ZmqSource(address, config, clock, network or NetworkConfig())
    if scheme_of(address) is not None:
        return open_network(address, config, clock)
    path = os.path.expanduser(address)
    if os.path.isdir(path) or is_pattern(path):
        return FolderSource(path, config, clock)
    return FileSource(Path(path), config, clock)
