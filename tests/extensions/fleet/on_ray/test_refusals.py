"""Clusters that cannot be used: one line with the remedy, with or without ray."""

from __future__ import annotations

import re
import socket

import pytest

from stream.errors import ConfigError
from stream.extensions.fleet.on_ray import cluster
from stream.extensions.fleet.on_ray.cluster import RayCluster
from stream.options.extra import Extra


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Extra, "missing", lambda extra: ["ray"])
    with pytest.raises(ConfigError, match=re.escape("--ray needs ray; pip install 'arr-coc-stream[ray]'")):
        RayCluster("auto")


@pytest.mark.parametrize("address", ["nowhere", "10.0.0.1", "10.0.0.1:99999", "ray://10.0.0.1:10001", ""])
def test_an_invalid_address_is_reported(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(Extra, "missing", lambda extra: [])
    with pytest.raises(ConfigError, match="is not the address of a Ray cluster; give HOST:PORT"):
        RayCluster(address)


def test_an_address_without_a_listener_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Extra, "missing", lambda extra: [])
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    with pytest.raises(ConfigError, match=f"no Ray cluster at 127.0.0.1:{port}: Connection refused; start one with"):
        RayCluster(f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("address", "error", "line"),
    [
        (
            "h:1",
            "Version mismatch: The cluster was started with:\n Ray: 2.9",
            "has another version: .*; install the clu",
        ),
        (
            "h:1",
            "Token authentication is enabled but no token was found",
            "does not accept this user: .*; copy its token",
        ),
        (
            "h:1",
            "Can't find a node",
            "cannot join .*; this machine has to be one of its nodes: `ray start --address=h:1`",
        ),
        ("auto", "Could not find any running Ray instance", "there is no Ray cluster on this machine; start one with"),
    ],
)
def test_an_error_of_ray_becomes_one_line(address: str, error: str, line: str) -> None:
    refusal = cluster._refusal(address, RuntimeError(error))
    assert re.search(line, refusal), refusal
    assert "\n" not in refusal


def test_the_end_of_an_actor_is_reported_in_one_line() -> None:
    missing = "ray::X\n  File a.py\nModuleNotFoundError: No module named 'stream.extensions.fleet'\nmore"
    assert cluster._reason(missing) == ("its node has no Python package stream; install arr-coc-stream on every node")
    assert cluster._reason("a\n\n  ValueError: b\n") == "ValueError: b"
    assert cluster._reason("") == "it died"
    assert len(cluster._reason("x" * 999)) == 200


def test_the_command_that_starts_a_node() -> None:
    assert cluster._start_command({"GPU": 1, "camera_host": 2}) == (
        "`ray start --num-gpus=1 --resources='{\"camera_host\": 2}' --address=…`"
    )
