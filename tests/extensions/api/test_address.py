"""Address and key of a server with an API."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stream.config import Config, NetworkConfig
from stream.errors import ConfigError
from stream.extensions.api import API, EXTENSION
from stream.extensions.api.address import ApiAddress
from stream.extensions.api.section import ApiSection

KEY = "ARR_COC_API_KEY"


@pytest.fixture(autouse=True)
def _without_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)


def config(url: str, **network: bool) -> Config:
    return Config(api=ApiSection(url=url), network=NetworkConfig(**network))


@pytest.mark.parametrize(
    ("url", "base", "local"),
    [
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000/v1", True),
        ("http://localhost:8000/", "http://localhost:8000/v1", True),
        ("http://localhost", "http://localhost/v1", True),
        ("http://[::1]:80/v1/", "http://[::1]:80/v1", True),
        ("https://models.example.org/api/v3", "https://models.example.org/api/v3", False),
        ("https://models.example.org/v1/chat/completions", "https://models.example.org/v1", False),
    ],
)
def test_an_address_is_accepted_in_the_usual_spellings(url: str, base: str, local: bool) -> None:
    assert ApiAddress.of(config(url)) == ApiAddress(base, local)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host/v1", "http://", "http://host:port/v1", "http://[::1/v1"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a server; write http://HOST:PORT/v1"):
        ApiAddress.of(config(url))


@pytest.mark.parametrize("url", ["https://me:secret@host/v1", "https://host/v1?key=secret", "https://host/v1#secret"])
def test_a_key_in_the_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match=KEY) as refused:
        ApiAddress.of(config(url))
    assert "secret" not in str(refused.value)


def test_a_password_before_an_invalid_host_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        ApiAddress.of(config("https://me:secret@host:port/v1"))
    assert "secret" not in str(refused.value)


def test_the_key_comes_from_the_environment_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-1234")
    address = ApiAddress.of(config("https://host/v1"))
    assert address.key == "sk-1234"
    assert "sk-1234" not in repr(address)


def test_an_invalid_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "two words")
    with pytest.raises(ConfigError, match="holds no key") as refused:
        ApiAddress.of(config("https://host/v1"))
    assert "two words" not in str(refused.value)


def test_a_key_is_not_sent_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-1234")
    with pytest.raises(ConfigError, match="use https, or allow it with --plain-tcp"):
        ApiAddress.of(config("http://192.0.2.1:8000/v1"))
    assert ApiAddress.of(config("http://192.0.2.1:8000/v1", plain_tcp=True)).key == "sk-1234"
    assert ApiAddress.of(config("http://127.0.0.1:8000/v1")).key == "sk-1234"


def test_a_missing_library_is_named_with_its_extra() -> None:
    model_type = replace(EXTENSION.models[0], extra=replace(API, libraries=("no_such_library",)))
    with pytest.raises(ConfigError, match=r"needs no_such_library; pip install 'arr-coc-stream\[api\]'"):
        model_type.name_of(config("http://127.0.0.1:8000/v1"))
