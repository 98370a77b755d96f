"""Section `[zeromq]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import Config, ExtensionSection, needs_keys
from stream.options.option import Option


class ZeromqSection(ExtensionSection):
    """Sockets for robots and other programs (docs/robots.md)."""

    section: ClassVar[str] = "zeromq"

    publish: Annotated[
        str | None,
        Option(
            "--publish ENDPOINT", "Publish events over ZeroMQ, for example at tcp://127.0.0.1:5556.", without="demo"
        ),
    ] = Field(default=None, min_length=1)
    """Endpoint of the ZeroMQ PUB socket for robots and AR, such as tcp://127.0.0.1:5556 (docs/robots.md)."""
    control: Annotated[
        str | None,
        Option(
            "--control ENDPOINT", "Accept questions over ZeroMQ, for example at tcp://127.0.0.1:5557.", without="demo"
        ),
    ] = Field(default=None, min_length=1)
    """Endpoint of the ZeroMQ REP socket that takes questions, as `ask` sends them, such as tcp://127.0.0.1:5557."""


def check_publish(config: Config) -> None:
    """Raise ConfigError for an invalid address or missing keys."""
    needs_keys(config.network, ZeromqSection.of(config).publish or "")


def check_control(config: Config) -> None:
    """Raise ConfigError for an invalid address or missing keys."""
    needs_keys(config.network, ZeromqSection.of(config).control or "")
