"""From an address to an open source."""

from __future__ import annotations

import os
import re
from pathlib import Path

from stream.clock import Clock
from stream.config import CaptureConfig, NetworkConfig
from stream.errors import SourceError, SourceNotFound
from stream.sources.base import Source
from stream.sources.file import FileSource
from stream.sources.scene import SceneSource
from stream.sources.stdin import STDIN, StdinSource

SCENE_PREFIX = "scene:"
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")


def open_source(address: str, config: CaptureConfig, clock: Clock, network: NetworkConfig | None = None) -> Source:
    """Opens what an address names: `scene:NAME`, `-`, or the path of a video file or still picture.

    Raises SourceNotFound where there is nothing of that name, SourceError where it cannot be read, ConfigError where
    `capture.size` is beyond measure.
    """
    if not address.strip():
        raise SourceNotFound("no source was given; give the path of a video file, or scene:NAME for a generated clip")
    if address.startswith(SCENE_PREFIX):
        return SceneSource(address.removeprefix(SCENE_PREFIX), config, clock)
    if address == STDIN:
        return StdinSource(config, clock)
    if _URL.match(address):
        raise SourceError(f"{address} is an address on a network, and only files can be read; save it to a file first")
    return FileSource(Path(os.path.expanduser(address)), config, clock)
