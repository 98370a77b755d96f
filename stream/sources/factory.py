"""Factory of sources by address, and the check of an address before anything is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stream.clock import Clock
from stream.config import CaptureConfig, NetworkConfig
from stream.errors import ConfigError, SourceNotFound
from stream.extension import SourceOpening, SourceType
from stream.media import Source
from stream.sources.address import is_live_address, redacted, scheme_of
from stream.sources.checks import refuse_stream, refuse_time_range
from stream.sources.types import FILE, SCENE, source_type

if TYPE_CHECKING:
    from stream.sources.segments import SegmentRecorder


def check_source(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    """Raise SourceError, or ConfigError for a ZeroMQ endpoint, if the source cannot exist."""
    kind = source_type(address)
    if is_live_address(address) and scheme_of(address) not in ("http", "https"):  # HLS may have an end
        refuse_time_range(capture, redacted(address))
    if kind.one_stream:
        refuse_stream(capture, redacted(address))
    _refuse_follow(address, capture, kind)
    kind.check_address(address, capture, network)


def open_source(
    address: str,
    config: CaptureConfig,
    clock: Clock,
    network: NetworkConfig | None = None,
    segments: SegmentRecorder | None = None,
) -> Source:
    """Open the source at an address.

    Args:
        address: One of the forms of docs/sources.md.
        config: Options of the capture.
        clock: Clock of the capture times.
        network: Access rules of ZeroMQ sources.
        segments: Recorder of the source's video.

    Raises:
        SourceNotFound: If the source does not exist.
        SourceError: If it cannot be read.
        ConfigError: If `capture.size` is too large, or keys are missing.
    """
    if not address.strip():
        raise SourceNotFound("no source was given; give the path of a video file, or scene:NAME for a generated clip")
    kind = source_type(address)
    if kind.one_stream:
        refuse_stream(config, redacted(address))
    _refuse_follow(address, config, kind)
    if config.loop and kind is not SCENE:
        raise ConfigError(f"capture.loop repeats drawn scenes, and {redacted(address)!r} is none; set it to false")
    return kind.open_source(SourceOpening(address, config, clock, network or NetworkConfig(), segments))


def _refuse_follow(address: str, config: CaptureConfig, kind: SourceType) -> None:
    """Raise ConfigError if a growing file is meant, and the source is no file."""
    if config.follow and kind is not FILE:
        raise ConfigError(
            f"--follow (capture.follow) waits for more of a file on this machine, and {redacted(address)!r} is none; "
            "leave it out"
        )
