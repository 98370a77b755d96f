"""Whether what was given as a source can be an address at all; read off its text, before anything is opened."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from stream.errors import SourceError, SourceNotFound
from stream.sources.address import NETWORK_SCHEMES, ZMQ_PREFIX, has_slashed_credentials, redacted, scheme_of

PORT_MAX = 65_535

_FORMS = {
    "rtsp": "rtsp://HOST/PATH", "rtsps": "rtsps://HOST/PATH", "http": "http://HOST/PATH", "https": "https://HOST/PATH",
    "rtmp": "rtmp://HOST/APP/STREAM", "rtmps": "rtmps://HOST/APP/STREAM",
    "udp": "udp://HOST:PORT", "rtp": "rtp://HOST:PORT", "tcp": "tcp://HOST:PORT",
}  # fmt: skip

_NEED_A_PORT = frozenset({"udp", "rtp", "tcp"})

_MAY_LISTEN_ANYWHERE = frozenset({"udp", "rtp"})
"""Without a host they take what comes to the port on any address of this machine, as `udp://@:5000` does elsewhere."""

_BARE_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*):")


@dataclass(frozen=True, slots=True)
class _Authority:
    """What stands between "://" and the path: the host in brackets where it is IPv6, the port as it is written."""

    host: str
    port: str | None

    @classmethod
    def of(cls, address: str) -> _Authority:
        text = re.split(r"[/?#]", address.partition("://")[2], maxsplit=1)[0].rpartition("@")[2]
        if text.startswith("["):
            host, bracket, rest = text.partition("]")
            return cls(host + bracket, rest[1:] if rest.startswith(":") else None)
        host, colon, port = text.partition(":")
        return cls(host, port if colon else None)


def check_address(address: str) -> None:
    """Raises SourceError for an address that cannot be reached whatever runs there: no host, no port, or no such port;
    SourceNotFound for the beginning of an address that is no file either."""
    scheme = scheme_of(address)
    if scheme is None:
        _check_bare_scheme(address)
    elif not address.startswith(ZMQ_PREFIX):
        _check_network(scheme, address)


def _check_network(scheme: str, address: str) -> None:
    name = redacted(address)
    if scheme not in NETWORK_SCHEMES:
        known = ", ".join(f"{known}://" for known in sorted(NETWORK_SCHEMES))
        raise SourceError(f"{name} begins with no scheme that can be read; there are {known}")
    if has_slashed_credentials(address):
        raise SourceError(f"the password in {name} has a / in it; write %2F in its place")
    authority, form = _Authority.of(address), _FORMS[scheme]
    if authority.host.startswith("[") and not authority.host.endswith("]"):
        raise SourceError(f"{name} has an IPv6 address without its closing bracket; write {form} with [::1] as HOST")
    listens = scheme in _MAY_LISTEN_ANYWHERE or "listen" in address.partition("?")[2]
    if not authority.host and not listens:
        raise SourceError(f"{name} names no host; write {form}")
    if authority.port is None:
        if scheme in _NEED_A_PORT:
            raise SourceError(f"{name} names no port; write {form}")
    elif not _is_port(authority.port):
        raise SourceError(f"{name} has no usable port: it is a number from 1 to {PORT_MAX}; write {form}")


def _check_bare_scheme(address: str) -> None:
    """`rtsp:cam` and the like; a file of that name is that file."""
    match = _BARE_SCHEME.match(address)
    if match is None or os.path.lexists(address):
        return
    scheme = match[1].lower()
    form = f"{ZMQ_PREFIX}tcp://HOST:PORT" if scheme.startswith("zmq") else _FORMS.get(scheme)
    if form is not None:
        raise SourceNotFound(f"{redacted(address)} is neither a file nor a whole address; write {form}")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= PORT_MAX
