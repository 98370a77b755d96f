"""Who may see the page, and at which addresses it can be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stream.config import Config
from stream.errors import ConfigError
from stream.extensions.web.access import WebAccess
from stream.extensions.web.section import WebSection
from stream.http.address import parse_address


def access(**web: Any) -> WebAccess:
    return WebAccess.of(Config(web=WebSection(**{"address": "8080", **web})))


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("8080", "127.0.0.1", 8080),
        ("0.0.0.0:80", "0.0.0.0", 80),
        ("[::1]:8080", "::1", 8080),
        ("name.example:0", "name.example", 0),
    ],
)
def test_an_address_is_a_port_or_host_and_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize("text", ["", "http://x:80", "x", "8080x", "70000", ":80", "a b:80", "٣:٣", "me@host:80"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--web needs a port or HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.7", "camera.example"])
def test_beyond_this_machine_a_token_is_needed(host: str) -> None:
    with pytest.raises(ConfigError, match="--web-token auto"):
        access(address=f"{host}:8080")
    assert access(address=f"{host}:8080", token="long enough").token == "long enough"


def test_a_token_that_is_made_is_long_and_part_of_the_address() -> None:
    first, second = access(token="auto"), access(token="auto")
    assert first.token != second.token
    assert len(first.token or "") >= 20
    assert first.address(8080) == f"http://127.0.0.1:8080/?token={first.token}"
    assert "token" not in access(token="of my own").address(8080)
    assert first.token not in repr(first)


def test_a_short_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 8"):
        access(token="1234567")


def test_the_token_may_be_in_the_environment() -> None:
    config = Config(web=WebSection(address="0.0.0.0:8080"))
    assert WebAccess.of(config, {"ARR_COC_WEB_TOKEN": "from outside"}).token == "from outside"
    assert WebAccess.of(config, {"ARR_COC_WEB_TOKEN": "auto"}).made_token
    with_token = config.with_values({"web.token": "from the option"})
    assert WebAccess.of(with_token, {"ARR_COC_WEB_TOKEN": "from outside"}).token == "from the option"
    with pytest.raises(ConfigError, match="ARR_COC_WEB_TOKEN needs at least 8"):
        WebAccess.of(config, {"ARR_COC_WEB_TOKEN": "short"})
    with pytest.raises(ConfigError, match="--web-token auto"):
        WebAccess.of(config, {"ARR_COC_WEB_TOKEN": ""})


def test_only_the_token_is_the_token() -> None:
    guarded = access(token="für immer")
    assert guarded.allows_token("für immer")
    assert not any(guarded.allows_token(token) for token in (None, "", "für immer ", "fur immer"))
    assert access().allows_token(None)


def test_questions_are_taken_on_this_machine_only_unless_configured_otherwise() -> None:
    options = {"address": "0.0.0.0:8080", "token": "long enough"}
    assert access().control
    assert not access(control=False).control
    assert not access(**options).control
    assert access(**options, control=True).control


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "LOCALHOST", "[::1]:8080"])
def test_a_local_page_has_the_names_of_this_machine(host: str) -> None:
    assert access().allows_host(host)


@pytest.mark.parametrize("host", [None, "", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.7"])
def test_a_local_page_has_no_other_name(host: str | None) -> None:
    assert not access().allows_host(host)


def test_elsewhere_any_name_will_do_as_the_token_decides() -> None:
    assert access(address="0.0.0.0:8080", token="long enough").allows_host("camera.example:8080")


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (None, True),
        ("http://127.0.0.1:8080", True),
        ("http://127.0.0.1:9090", False),
        ("https://127.0.0.1:8080", False),
        ("http://evil.example", False),
        ("null", False),
        ("http://[", False),
        ("http://[::1", False),
    ],
)
def test_a_socket_is_opened_by_the_page_itself(origin: str | None, allowed: bool) -> None:
    assert access().allows_origin(origin, "127.0.0.1:8080") is allowed


def test_certificate_and_key_belong_together(tmp_path: Path) -> None:
    path = tmp_path / "cert.pem"
    path.touch()
    with pytest.raises(ConfigError, match="belong together"):
        access(cert=str(path))
    with pytest.raises(ConfigError, match=r"--web-key .* is not a file"):
        access(cert=str(path), key=str(tmp_path / "absent.pem"))
    assert access(cert=str(path), key=str(path)).scheme == "https"
