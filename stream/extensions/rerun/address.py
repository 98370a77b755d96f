"""Address of a Rerun viewer. Does not import Rerun."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from stream.config import PORT_MAX, Config
from stream.errors import ConfigError
from stream.extensions.rerun.section import RerunSection

PORT = 9876
"""Default port of a viewer."""

SCHEMES = ("rerun+http", "rerun+https")

EXAMPLE = "HOST:PORT, a rerun+http:// address, or spawn"


@dataclass(frozen=True, slots=True)
class ViewerAddress:
    """Address of a viewer: `host` and `port`, and the `url` for the library. `spawn`: this program opens the viewer."""

    host: str
    port: int
    url: str
    spawn: bool = False

    @classmethod
    def of(cls, text: str) -> ViewerAddress:
        """Return the address that `--rerun` names. Raises ConfigError if it is invalid."""
        if text == "spawn":  # a viewer on this machine, opened if none is running
            return cls("127.0.0.1", PORT, _url("127.0.0.1", PORT), spawn=True)
        try:
            parts = urlsplit(text if "://" in text else f"rerun+http://{text}")
            port = parts.port
        except ValueError:
            raise ConfigError(f"--rerun needs {EXAMPLE}; got {text!r}") from None
        host = parts.hostname or ""
        if (
            parts.scheme not in SCHEMES
            or not re.fullmatch(r"[\w.:-]+", host)
            or parts.username is not None
            or parts.query
        ):
            raise ConfigError(f"--rerun needs {EXAMPLE}; got {text!r}")
        if parts.path not in ("", "/", "/proxy"):
            raise ConfigError(f"--rerun needs the address of a viewer, {EXAMPLE}; got {text!r}")
        if port is None and "://" not in text:
            raise ConfigError(f"--rerun needs a port, such as {host}:{PORT}; got {text!r}")
        if port is not None and not 0 < port <= PORT_MAX:
            raise ConfigError(f"{text!r} is not a valid address: a port is a number from 1 to {PORT_MAX}")
        return cls(host, port or PORT, _url(host, port or PORT, parts.scheme))


def _url(host: str, port: int, scheme: str = SCHEMES[0]) -> str:
    if ":" in host:
        return f"{scheme}://[{host}]:{port}/proxy"
    return f"{scheme}://{host}:{port}/proxy"


def check(config: Config) -> None:
    """Raise ConfigError for an invalid address."""
    ViewerAddress.of(RerunSection.of(config).address or "")
