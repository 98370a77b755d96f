"""From an address on a network to an open source: live, or a file that lies on a server."""

from __future__ import annotations

import time
from dataclasses import replace

from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.address import NETWORK_SCHEMES, redacted, scheme_of
from stream.sources.base import Source
from stream.sources.connection import is_endless, network_target, opened_within
from stream.sources.file import ContainerSource
from stream.sources.live import LiveSource
from stream.sources.read_ahead import ReadAhead

_MAYBE_FILES = frozenset({"http", "https"})


def open_network(address: str, config: CaptureConfig, clock: Clock) -> Source:
    """Opens an address: what has an end (a file on a web server, a finished HLS stream) as a file, all else as live.

    Raises SourceError, or ConfigError for a `capture.size` beyond measure.
    """
    scheme = scheme_of(address)
    if scheme not in NETWORK_SCHEMES:
        known = ", ".join(f"{name}://" for name in sorted(NETWORK_SCHEMES))
        raise SourceError(f"{redacted(address)} begins with no scheme that can be read; there are {known}")
    target = network_target(address, config)
    start_s = time.monotonic()
    container = opened_within(target, config.open_timeout_s)
    took_s = time.monotonic() - start_s
    if scheme in _MAYBE_FILES and not is_endless(container):
        return ReadAhead(ContainerSource(container, target.name, config, clock))
    return LiveSource(replace(target, paced=container.format.name == "hls"), config, clock, container, took_s)
