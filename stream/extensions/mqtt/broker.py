"""Address of an MQTT broker, and name of a run's device. Imports no MQTT library."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from urllib.parse import unquote, urlsplit

from stream.config import PORT_MAX, Config, is_local
from stream.errors import ConfigError
from stream.extensions.mqtt import MQTT
from stream.extensions.mqtt.section import MqttSection
from stream.sources.address import HIDDEN, camera_of, has_slashed_credentials, redacted, scheme_of

PASSWORD = "ARR_COC_MQTT_PASSWORD"
"""Environment variable of the password."""

PORTS = {"mqtt": 1883, "mqtts": 8883}

NAME_CHARS = 64

EXAMPLE = "mqtt://homeassistant.local or mqtts://USER@HOST:8883"


@dataclass(frozen=True, slots=True)
class Broker:
    """Address of a broker and credentials. `ca`: file with the authority's certificate; None for the system's."""

    host: str
    port: int
    tls: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None

    @classmethod
    def of(cls, config: Config, environment: Mapping[str, str] = os.environ) -> Broker:
        """Return the broker that a configuration with `mqtt.url` names.

        Raises ConfigError for an invalid address, a missing library or certificate, a password without a user, and
        questions from a broker that is not private.
        """
        section = MqttSection.of(config)
        assert section.url is not None
        MQTT.require("--mqtt")
        broker = _parsed(section.url, environment.get(PASSWORD) or None, section.ca)
        if broker.ca is not None and not os.path.isfile(broker.ca):
            raise ConfigError(f"mqtt.ca {broker.ca!r} is not a file; name a PEM file")
        if broker.ca is not None and not broker.tls:
            raise ConfigError("mqtt.ca is for TLS; write mqtts:// in --mqtt, or leave it out")
        if section.ask and not broker.is_private and not config.network.plain_tcp:
            raise ConfigError(
                "--mqtt-ask lets every client of the broker ask; use mqtts:// with a user and a password, or allow "
                "that with --plain-tcp"
            )
        return broker

    @property
    def address(self) -> str:
        """Address without credentials."""
        if ":" in self.host:
            host = f"[{self.host}]"
        else:
            host = self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"

    @property
    def is_private(self) -> bool:
        """True if only authorized clients reach the broker's topics: on this machine, or over TLS with a password."""
        return is_local(f"tcp://{self.host}:{self.port}") or (self.tls and self.password is not None)


def _parsed(url: str, password: str | None, ca: str | None) -> Broker:
    if has_slashed_credentials(url):
        raise ConfigError(f"--mqtt {redacted(url)!r} has a / in its password; write it as %2F, or use {PASSWORD}")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts = None
        port = None
    if parts is None or parts.scheme not in PORTS or not parts.hostname:
        raise ConfigError(f"--mqtt needs an address such as {EXAMPLE}; got {redacted(url)!r}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigError(
            f"--mqtt needs no more than {EXAMPLE}; got {redacted(url)!r}: topics are named with --mqtt-name"
        )
    if port is not None and not 0 < port <= PORT_MAX:
        raise ConfigError(f"{redacted(url)!r} is not a valid address: a port is a number from 1 to {PORT_MAX}")
    if parts.username:
        user = unquote(parts.username)
    else:
        user = None
    secret = unquote(parts.password) if parts.password else password
    if secret is not None and user is None:
        raise ConfigError(f"the password of the MQTT broker needs a user; write {parts.scheme}://USER@{parts.hostname}")
    return Broker(parts.hostname, port or PORTS[parts.scheme], parts.scheme == "mqtts", user, secret, ca)


def device_name(config: Config) -> str:
    """Return the name of a run's device: the configured one, or one made from the source without its secrets."""
    if (name := MqttSection.of(config).name) is not None:
        return name
    source = camera_of(config.source) or config.source
    if scheme_of(source) is None:
        if not source.startswith("/dev/"):
            text = PurePath(source).stem
        else:
            text = PurePath(source).name
    else:
        text = redacted(source).partition("://")[2].replace(HIDDEN, "")
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")[:NAME_CHARS].lower() or "stream"
