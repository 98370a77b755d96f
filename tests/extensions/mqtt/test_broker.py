"""Addresses of brokers, and configurations refused before any connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from stream.config import Config, NetworkConfig
from stream.errors import ConfigError
from stream.extensions.mqtt.broker import PASSWORD, Broker, device_name
from stream.extensions.mqtt.section import MqttSection
from tests.support.sections import sections


def of(url: str, environment: dict[str, str] | None = None, *, plain_tcp: bool = False, **values: object) -> Broker:
    config = Config(network=NetworkConfig(plain_tcp=plain_tcp), **sections(mqtt__url=url, **values))
    return Broker.of(config, environment or {})


def test_an_address_is_read() -> None:
    assert of("mqtt://home") == Broker("home", 1883, tls=False)
    assert of("mqtts://home/") == Broker("home", 8883, tls=True)
    assert of("mqtt://[::1]:5").address == "mqtt://[::1]:5"
    broker = of("mqtts://a:p%2Fq@home:9")
    assert (broker.user, broker.password, broker.port) == ("a", "p/q", 9)
    assert of("mqtt://a@home", {PASSWORD: "secret"}).password == "secret"
    assert of("mqtt://a:own@home", {PASSWORD: "secret"}).password == "own"
    assert "own" not in repr(of("mqtt://a:own@home"))
    assert of("mqtt://a:own@home").address == "mqtt://home:1883"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("home", "needs an address such as"),
        ("http://home", "needs an address such as"),
        ("mqtt://", "needs an address such as"),
        ("mqtt://home:port", "needs an address such as"),
        ("mqtt://home:0", "a port is a number from 1"),
        ("mqtt://home/topic", "topics are named with --mqtt-name"),
        ("mqtt://a:secret/word@home", "has a / in its password; write it as %2F"),
    ],
)
def test_an_invalid_address_is_reported_without_its_password(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        of(url)
    assert "secret" not in str(caught.value)


def test_a_password_needs_a_user() -> None:
    with pytest.raises(ConfigError, match="write mqtt://USER@home"):
        of("mqtt://home", {PASSWORD: "secret"})


def test_questions_are_taken_only_from_a_private_broker() -> None:
    for url in ("mqtt://home", "mqtt://a:b@home", "mqtts://home"):
        with pytest.raises(ConfigError, match="--mqtt-ask lets every client of the broker ask"):
            of(url, mqtt__ask=True)
        of(url, mqtt__ask=True, plain_tcp=True)
    for url in ("mqtt://127.0.0.1", "mqtt://localhost", "mqtts://a:b@home"):
        of(url, mqtt__ask=True)


def test_the_authority_is_a_file_and_for_tls(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file"):
        of("mqtts://home", mqtt__ca=str(tmp_path / "none.pem"))
    (tmp_path / "ca.pem").touch()
    with pytest.raises(ConfigError, match="write mqtts://"):
        of("mqtt://home", mqtt__ca=str(tmp_path / "ca.pem"))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("rtsp://me:secret@door.local:554/live?token=abcdef", "door_local_554_live_token"),
        ("scene:demo", "scene_demo"),
        ("/videos/Front Door.mp4", "front_door"),
        ("99", "video99"),
        ("/dev/video3", "video3"),
        ("-", "stream"),
    ],
)
def test_a_device_is_called_after_its_source_without_secrets(source: str, name: str) -> None:
    assert device_name(Config(source=source)) == name
    assert device_name(Config(source=source, mqtt=MqttSection(name="Porch"))) == "Porch"
