"""Network sources: a file on a web server or a finished HLS stream as a file, all others as live sources."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace

import av

from stream.clock import Clock
from stream.config import CaptureConfig
from stream.media import Source
from stream.sources.address import redacted, scheme_of
from stream.sources.checks import check_address
from stream.sources.connection import LiveTarget, is_endless, opened_network, opened_within
from stream.sources.file import ContainerSource
from stream.sources.hardware import HardwareDecoding
from stream.sources.headers import HTTP
from stream.sources.live import LiveSource
from stream.sources.master_playlist import PlaylistOpening
from stream.sources.segments import SegmentRecorder
from stream.sources.threaded import PrefetchSource

_READ_FAILED = os.strerror(errno.EIO)
"""FFmpeg's message if data cannot be read, in contrast to data that cannot be decoded."""


class WebFileSource(ContainerSource):
    """File on a web server. Some servers send it from its beginning only, so that FFmpeg cannot seek backwards."""

    def _nothing_decoded(self, reason: str) -> str:
        if "mp4" not in self._container.format.name or _READ_FAILED not in reason:
            return super()._nothing_decoded(reason)
        return (
            f"{self._name} has its index (moov) after its pictures, and the server does not send parts of a file, or "
            "broke off; put the index in front (ffmpeg -i IN.mp4 -c copy -movflags +faststart OUT.mp4), or download it "
            "first"
        )


def network_target(address: str, config: CaptureConfig) -> LiveTarget:
    """Return the target for an address on a network."""
    name = redacted(address)
    hardware = HardwareDecoding(config, name)
    if scheme_of(address) not in HTTP:
        return LiveTarget(
            name, lambda limit_s: opened_network(address, name, config, hardware, limit_s), hardware=hardware
        )
    opening = PlaylistOpening(address, config)

    def open_it(limit_s: float) -> av.container.InputContainer:
        return opened_network(address, name, config, hardware, limit_s, opening.open)

    return LiveTarget(name, open_it, hardware=hardware, is_variant=lambda: opening.is_variant)


def open_network(address: str, config: CaptureConfig, clock: Clock, segments: SegmentRecorder | None = None) -> Source:
    """Open an address: a file on a web server or a finished HLS stream as a file, others as live sources.

    Args:
        address: URL of the source.
        config: Options of the capture.
        clock: Clock of the capture times.
        segments: Recorder of the source's video.

    Raises:
        SourceError: If the address is invalid, or cannot be opened.
        ConfigError: If `capture.size` is too large.
    """
    check_address(address)
    target = network_target(address, config)
    start_s = time.monotonic()
    container = opened_within(target, config.open_timeout_s)
    took_s = time.monotonic() - start_s
    if target.is_variant():  # its container has no others
        config = config.model_copy(update={"stream": None})
    if scheme_of(address) in HTTP and not is_endless(container):
        return PrefetchSource(WebFileSource(container, target.name, config, clock, target.hardware, segments=segments))
    target = replace(target, paced=container.format.name == "hls")
    return LiveSource(target, config, clock, container, took_s, segments)
