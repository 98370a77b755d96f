"""Outputs for robots' tools that cannot be had, and one line about each."""

from __future__ import annotations

import pytest

from stream.config import Config, NetworkConfig, OutputConfig
from stream.errors import ConfigError
from stream.sinks.robotics import requirements
from stream.sinks.robotics.requirements import check_libraries, foxglove_address


def address(text: str, *, plain_tcp: bool = False) -> tuple[str, int]:
    return foxglove_address(Config(output=OutputConfig(foxglove=text), network=NetworkConfig(plain_tcp=plain_tcp)))


def test_an_address_is_on_this_machine_unless_it_says_otherwise() -> None:
    assert address("8765") == ("127.0.0.1", 8765)
    assert address("[::1]:0") == ("::1", 0)
    assert address("0.0.0.0:8765", plain_tcp=True) == ("0.0.0.0", 8765)
    with pytest.raises(ConfigError, match="anybody there could look; give --plain-tcp"):
        address("0.0.0.0:8765")
    with pytest.raises(ConfigError, match=r"--foxglove needs a port or HOST:PORT, such as 8765 .*; got 'door'"):
        address("door")


def test_without_its_library_an_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_libraries(["a.mcap", "b.rosbag", "c.vtt"])
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    check_libraries(["c.vtt", "-"])
    with pytest.raises(ConfigError, match=r"-o a\.MCAP needs foxglove-sdk; pip install 'arr-coc-stream\[foxglove\]'"):
        check_libraries(["c.vtt", "shop/a.MCAP"])
    with pytest.raises(ConfigError, match=r"-o b\.rosbag needs rosbags; pip install 'arr-coc-stream\[ros2\]'"):
        check_libraries(["b.rosbag"])
    with pytest.raises(ConfigError, match=r"--foxglove needs foxglove-sdk; pip install 'arr-coc-stream\[foxglove\]'"):
        address("8765")
