"""Addresses of servers of this program, and the names by which they may be called. Imports no server."""

from __future__ import annotations

import ipaddress

from stream.config import PORT_MAX
from stream.errors import ConfigError

LOOPBACK = "127.0.0.1"

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

TOKEN_CHARS_MIN = 8

TOKEN = "ARR_COC_WEB_TOKEN"
"""Environment variable of the token: unlike an option, it does not stand in the process list."""


def parse_address(text: str, option: str = "--web", example: str = "8090 or 0.0.0.0:8090") -> tuple[str, int]:
    """Return host and port of "[HOST:]PORT". Raises ConfigError, which names the option and gives an example."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") if colon else LOOPBACK
    if not port.isascii() or not port.isdigit() or int(port) > PORT_MAX or not host or any(c in host for c in "/@ "):
        raise ConfigError(f"{option} needs a port or HOST:PORT, such as {example}; got {text!r}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def names_server(header: str, host: str) -> bool:
    """Return whether a Host header may name a server at `host`: one on this machine only has this machine's names."""
    name = split_host(header)
    return not is_loopback(host) or name in LOCAL_NAMES or name == host


def split_host(header: str) -> str:
    """Return the name in a Host header, in lower case, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
