"""Place of a Rerun viewer. Imports no Rerun."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from stream.config import PORT_MAX
from stream.errors import ConfigError

PORT = 9876
"""Port of a viewer that nobody gave another one."""

SCHEMES = ("rerun+http", "rerun+https")

EXAMPLE = "HOST:PORT, a rerun+http:// address, or spawn"


@dataclass(frozen=True, slots=True)
class ViewerAddress:
    """Place of a viewer: `host` and `port`, and the `url` that the library takes. `spawn`: it is opened here."""

    host: str
    port: int
    url: str
    spawn: bool = False

    @classmethod
    def of(cls, text: str) -> ViewerAddress:
        """Return the place that `--rerun` names. Raises ConfigError where it is none."""
        if text == "spawn":  # in place of an address: a viewer of this machine, which is opened if there is none
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
    return f"{scheme}://[{host}]:{port}/proxy" if ":" in host else f"{scheme}://{host}:{port}/proxy"
