"""Address at which the Foxglove app connects."""

from __future__ import annotations

import pytest

from stream.config import Config, NetworkConfig
from stream.errors import ConfigError
from stream.extensions.robotics.address import foxglove_address
from stream.extensions.robotics.section import RoboticsSection


def address(text: str, *, plain_tcp: bool = False) -> tuple[str, int]:
    return foxglove_address(Config(robotics=RoboticsSection(foxglove=text), network=NetworkConfig(plain_tcp=plain_tcp)))


def test_an_address_is_on_this_machine_unless_it_says_otherwise() -> None:
    assert address("8765") == ("127.0.0.1", 8765)
    assert address("[::1]:0") == ("::1", 0)
    assert address("0.0.0.0:8765", plain_tcp=True) == ("0.0.0.0", 8765)
    with pytest.raises(ConfigError, match="every program there could watch; give --plain-tcp"):
        address("0.0.0.0:8765")
    with pytest.raises(ConfigError, match=r"--foxglove needs a port or HOST:PORT, such as 8765 .*; got 'door'"):
        address("door")
