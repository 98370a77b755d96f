"""Address at which the Foxglove app connects. Does not import Foxglove's library."""

from __future__ import annotations

from stream.config import Config
from stream.errors import ConfigError
from stream.extensions.robotics import FOXGLOVE
from stream.extensions.robotics.section import RoboticsSection
from stream.http.address import is_loopback, parse_address


def foxglove_address(config: Config) -> tuple[str, int]:
    """Return host and port of `robotics.foxglove`.

    Raises ConfigError for an invalid address, a missing library, and an address that other machines reach unless
    `network.plain_tcp` is set.
    """
    address = RoboticsSection.of(config).foxglove
    assert address is not None
    FOXGLOVE.require("--foxglove")
    host, port = parse_address(address, "--foxglove", "8765 or 0.0.0.0:8765")
    if not is_loopback(host) and not config.network.plain_tcp:
        raise ConfigError(
            f"--foxglove {address} can be reached from other machines, and every program there could watch; give "
            "--plain-tcp to allow that, or serve it on this machine only, with --foxglove PORT"
        )
    return host, port
