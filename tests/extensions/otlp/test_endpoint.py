"""Addresses of collectors, and the message if the library is missing."""

from __future__ import annotations

import pytest

from stream.errors import ConfigError
from stream.extensions.otlp.endpoint import traces_url


@pytest.mark.parametrize(
    ("address", "posted_to"),
    [
        ("http://localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
        ("https://otel.example/team/v1/traces", "https://otel.example/team/v1/traces"),
        ("https://otel.example/team/v1/traces/", "https://otel.example/team/v1/traces"),
        ("https://otel.example/team", "https://otel.example/team/v1/traces"),
    ],
)
def test_valid_addresses(address: str, posted_to: str) -> None:
    assert traces_url(address) == posted_to


@pytest.mark.parametrize(
    "address", ["localhost:4318", "grpc://x:1", "http://", "http://x:0", "http://x:99999", "http://x?a=b"]
)
def test_invalid_addresses(address: str) -> None:
    with pytest.raises(ConfigError, match=r"--otlp needs .*http://localhost:4318; got"):
        traces_url(address)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        traces_url("ftp://me:secret@host")
    assert "secret" not in str(raised.value)
