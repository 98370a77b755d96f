"""Endpoints of ZeroMQ sockets, as text: what is one, what stays on this machine, and what needs keys."""

from __future__ import annotations

import ipaddress

from stream.config import NetworkConfig
from stream.errors import ConfigError

PORT_MAX = 65_535
"""ZeroMQ takes a larger number modulo 65536, and binds or reaches another port than was asked for."""


def is_local(endpoint: str) -> bool:
    """Whether an endpoint stays on this machine: inproc, ipc, or TCP on loopback."""
    scheme, _, rest = endpoint.partition("://")
    if scheme != "tcp":
        return True
    host = rest.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in {"localhost", "lo"}


def needs_keys(network: NetworkConfig, endpoint: str) -> bool:
    """Whether keys are used for `endpoint`. Raises ConfigError for what is no endpoint, and where keys are missing."""
    scheme, separator, rest = endpoint.partition("://")
    host, colon, port = rest.rpartition(":")
    if scheme == "ipc" and rest:
        return False
    if scheme == "inproc":
        raise ConfigError(f"{endpoint!r} would stay inside one program; write tcp://HOST:PORT or ipc://PATH")
    if scheme != "tcp" or not separator or not host or not colon or not (port.isdigit() or port == "*"):
        raise ConfigError(f"{endpoint!r} is no address for a socket; write tcp://HOST:PORT or ipc://PATH")
    if network.keys is not None:
        return True
    if not is_local(endpoint) and not network.plain_tcp:
        raise ConfigError(
            f"{endpoint} leaves this machine without keys: make some with `keys FOLDER` and give --keys FOLDER, or "
            "allow anybody in with --plain-tcp"
        )
    return False


def check_reachable(endpoint: str) -> None:
    """Raises ConfigError for a port at which nobody can be, to connect to."""
    port = endpoint.rpartition(":")[2]
    if endpoint.startswith("tcp://") and port.isdigit() and not 0 < int(port) <= PORT_MAX:
        raise ConfigError(f"nobody can be reached at {endpoint!r}: a port is a number from 1 to {PORT_MAX}")
