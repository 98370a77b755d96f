"""Checks of a run before any library is loaded for it: paths, addresses, endpoints.

Loading torch, OpenCV and FFmpeg takes seconds; a mistyped name is reported at once. Nothing is opened here, and the
code that opens it checks again.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from stream.answer.model import model_name
from stream.config import CaptureConfig, Config, NetworkConfig, check_reachable, needs_keys
from stream.errors import OutputError, SourceNotFound
from stream.sinks.output_file import check_outputs
from stream.sources.address import (
    PULL,
    SCENE_PREFIX,
    STDIN,
    ZMQ_PREFIX,
    camera_of,
    is_live_address,
    redacted,
    scheme_of,
)
from stream.sources.checks import check_address, check_file, is_pattern, pictures_of, refuse_time_range


def check_run(config: Config) -> None:
    """Raises StreamError or ArrCocError where a run of this configuration would fail at once."""
    check_outputs(config.output, config.source)
    if config.output.record is not None:
        _check_record(config.output.record)
    check_source(config.source, config.capture, config.network)
    for endpoint in (config.output.publish, config.output.control):
        if endpoint is not None:
            needs_keys(config.network, endpoint)
    if config.answer.server is not None:
        needs_keys(config.network, config.answer.server)
        check_reachable(config.answer.server)
    else:
        model_name(config)


def _check_record(folder: str) -> None:
    """Raises OutputError where no folder for a recording can be."""
    problem = "it is a file" if os.path.isfile(folder) else os.strerror(errno.ENOENT)
    if not os.path.isdir(folder) and (os.path.lexists(folder) or not Path(folder).parent.is_dir()):
        raise OutputError(f"cannot record into {folder!r}: {problem}; name a folder, new or empty")


def check_source(address: str, capture: CaptureConfig, network: NetworkConfig) -> None:
    """Raises SourceError, or ConfigError for an endpoint of ZeroMQ, where there cannot be such a source."""
    device = camera_of(address)
    if is_live_address(address) and scheme_of(address) not in ("http", "https"):  # HLS may have an end
        refuse_time_range(capture, redacted(address))
    if address == STDIN or address.startswith(SCENE_PREFIX):
        return
    if device is not None:
        if not os.path.exists(device):
            raise SourceNotFound(f"{device} is not there; plug the camera in, or choose one that `devices` lists")
    elif address.startswith(ZMQ_PREFIX):
        endpoint = address.removeprefix(ZMQ_PREFIX).removesuffix(PULL)
        needs_keys(network, endpoint)
        check_reachable(endpoint)
    else:
        check_address(address)
        if scheme_of(address) is None:
            _check_path(os.path.expanduser(address), capture)


def _check_path(path: str, capture: CaptureConfig) -> None:
    if os.path.isdir(path) or is_pattern(path):
        pictures_of(path)
    else:
        check_file(Path(path), capture.max_pixels)
