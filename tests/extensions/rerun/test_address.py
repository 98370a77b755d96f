"""Addresses of Rerun viewers, and the message if the library is missing."""

from __future__ import annotations

import pytest

from stream.errors import ConfigError
from stream.extensions.rerun.address import ViewerAddress


@pytest.mark.parametrize(
    ("text", "host", "port", "url"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876, "rerun+http://127.0.0.1:9876/proxy"),
        ("desk:80", "desk", 80, "rerun+http://desk:80/proxy"),
        ("[::1]:9876", "::1", 9876, "rerun+http://[::1]:9876/proxy"),
        ("rerun+http://desk/proxy", "desk", 9876, "rerun+http://desk:9876/proxy"),
        ("rerun+https://desk:443", "desk", 443, "rerun+https://desk:443/proxy"),
    ],
)
def test_valid_addresses(text: str, host: str, port: int, url: str) -> None:
    assert ViewerAddress.of(text) == ViewerAddress(host, port, url)


def test_a_viewer_that_is_opened_here_listens_on_this_machine_only() -> None:
    assert ViewerAddress.of("spawn") == ViewerAddress("127.0.0.1", 9876, "rerun+http://127.0.0.1:9876/proxy", True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("desk", "needs a port, such as desk:9876"),
        ("desk:0", "a port is a number from 1 to 65535"),
        ("desk:99999", "--rerun needs HOST:PORT"),
        ("http://desk:9876", "--rerun needs HOST:PORT"),
        ("a b:9876", "--rerun needs HOST:PORT"),
        ("me@desk:9876", "--rerun needs HOST:PORT"),
        ("desk:9876/recording", "the address of a viewer"),
        (":9876", "--rerun needs HOST:PORT"),
    ],
)
def test_invalid_addresses(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ViewerAddress.of(text)
