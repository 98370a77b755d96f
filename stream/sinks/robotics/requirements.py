"""Libraries and addresses that the outputs for robots' tools need. Imports none of these libraries."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from stream.config import MCAP_SUFFIX, Config, is_bag
from stream.errors import ConfigError
from stream.web.access import is_loopback, parse_address

FOXGLOVE, ROSBAGS = "foxglove-sdk", "rosbags"

FOXGLOVE_INSTALL, ROSBAGS_INSTALL = "pip install 'arr-coc-stream[foxglove]'", "pip install 'arr-coc-stream[ros2]'"


def has_foxglove() -> bool:
    """Return whether the library of the extra `foxglove` is installed."""
    return find_spec("foxglove") is not None


def has_rosbags() -> bool:
    """Return whether the library of the extra `ros2` is installed."""
    return find_spec("rosbags") is not None


def check_libraries(paths: Sequence[str]) -> None:
    """Raises ConfigError for an output whose library is not installed."""
    for path in paths:
        if path.lower().endswith(MCAP_SUFFIX) and not has_foxglove():
            raise ConfigError(f"-o {Path(path).name} needs {FOXGLOVE}; {FOXGLOVE_INSTALL}")
        if is_bag(path) and not has_rosbags():
            raise ConfigError(f"-o {Path(path).name} needs {ROSBAGS}; {ROSBAGS_INSTALL}")


def foxglove_address(config: Config) -> tuple[str, int]:
    """Return host and port of `output.foxglove`.

    Raises ConfigError for an address that is none, a missing library, and an address that other machines reach where
    the network does not allow anybody in.
    """
    address = config.output.foxglove
    assert address is not None
    if not has_foxglove():
        raise ConfigError(f"--foxglove needs {FOXGLOVE}; {FOXGLOVE_INSTALL}")
    host, port = parse_address(address, "--foxglove", "8765 or 0.0.0.0:8765")
    if not is_loopback(host) and not config.network.plain_tcp:
        raise ConfigError(
            f"--foxglove {address} can be reached from other machines, and anybody there could look; give --plain-tcp "
            "to allow that, or serve it on this machine only, with --foxglove PORT"
        )
    return host, port
