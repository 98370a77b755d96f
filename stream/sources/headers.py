"""Headers of requests over HTTP, with values from the environment, redirects, to which only some go, and small fetches.

FFmpeg sends its option `headers` wherever a server redirects to, and cookies to each host whose name ends alike, with
or without a dot before. So it follows no redirect if there are any; the new address is opened in place of the old one,
on another server without them. That holds for the address alone: the further requests of HLS and DASH (segments, other
playlists, their redirects) are FFmpeg's own.
"""

from __future__ import annotations

import base64
import http.client
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from urllib.parse import unquote, urljoin, urlsplit

from stream.config import CaptureConfig
from stream.errors import ConfigError
from stream.sources.address import redacted, scheme_of
from stream.sources.tls import context_of
from stream.transport.http_replies import REPLY_BYTES_MAX, timed_connection

HTTP = frozenset({"http", "https"})
"""Schemes whose requests have headers."""

PORTS = {"http": 80, "https": 443}

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""Name of a header: a token as of RFC 9110."""

_VARIABLE = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")

_OWN = frozenset(
    {"connection", "content-length", "host", "icy-metadata", "range", "te", "transfer-encoding", "upgrade"}
)
"""Headers that the client sets."""

_FOR_ALL = frozenset({"accept", "accept-language", "origin", "referer", "user-agent"})
"""Headers that a redirect takes along to another server."""

REDIRECTS_MAX = 8
"""Redirects that are followed, as by FFmpeg."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """Headers of requests to one server, with the values of their variables; the names are as they were given."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, config: CaptureConfig, environment: Mapping[str, str] = os.environ) -> RequestHeaders:
        """Read `capture.headers`. Raises ConfigError for an invalid header, and for a variable that is not set."""
        values = {}
        for name, text in config.headers.items():
            if not _NAME.fullmatch(name) or name.lower() in _OWN:
                raise ConfigError(
                    f"capture.headers has {name!r}, which is no header that can be set; leave it out, or correct it"
                )
            value = _expanded(text, name, environment).strip()
            if not value or not value.isascii() or not value.isprintable():
                raise ConfigError(f"the value of {name} in capture.headers is no line of ASCII characters; correct it")
            values[name] = value
        return cls(values)

    @property
    def follow_no_redirect(self) -> bool:
        """True if FFmpeg would send other servers what only this one may get."""
        return not _FOR_ALL.issuperset(map(str.lower, self.values))

    def for_others(self) -> RequestHeaders:
        """Return the headers that another server may get."""
        return RequestHeaders({name: value for name, value in self.values.items() if name.lower() in _FOR_ALL})

    def ffmpeg_options(self, address: str) -> dict[str, str]:
        """Return FFmpeg's options for requests to an address, and for the segments of a playlist there."""
        options: dict[str, str] = {}
        lines = []
        for name, value in self.values.items():
            if name.lower() == "user-agent":
                options["user_agent"] = value
            elif name.lower() == "cookie":
                place = urlsplit(address).netloc.rpartition("@")[2]
                cookies = [cookie.strip() for cookie in value.split(";") if cookie.strip()]
                options["cookies"] = "\n".join(f"{cookie}; path=/; domain={place}" for cookie in cookies)
            else:
                lines.append(f"{name}: {value}\r\n")
        if lines:
            options["headers"] = "".join(lines)
        if self.follow_no_redirect:
            options["max_redirects"] = "0"
        return options


def check_headers(address: str, config: CaptureConfig) -> None:
    """Raise ConfigError for invalid headers, and for headers of an address without any."""
    RequestHeaders.of(config)
    if config.headers and scheme_of(address) not in HTTP:
        raise ConfigError(
            f"capture.headers are for http:// and https://, and {redacted(address)} is neither; leave them out"
        )


def redirect_of(address: str, headers: RequestHeaders, config: CaptureConfig, limit_s: float) -> str | None:
    """Return the address that a server redirects to; None if it does not.

    It asks once more, because FFmpeg's error does not contain the address.

    Args:
        address: URL that may redirect.
        headers: Headers of the request.
        config: Checks of certificates.
        limit_s: Time limit.
    """
    try:
        with _reply_of(address, headers, config, limit_s) as reply:
            return _target_of(reply, address)
    except (OSError, http.client.HTTPException, ValueError):
        return None


def fetched(
    address: str, headers: RequestHeaders, config: CaptureConfig, limit_s: float, beginning: bytes
) -> tuple[str, bytes] | None:
    """Return the content of a small resource that begins in a certain way, and its address after redirects.

    None if there is none, or another one, of which no more than its beginning is read. Redirects are followed if
    FFmpeg follows them.

    Args:
        address: URL of the resource.
        headers: Headers of the request.
        config: Checks of certificates.
        limit_s: Time limit.
        beginning: First bytes of the resource.
    """
    end_s = time.monotonic() + limit_s
    try:
        for _ in range(REDIRECTS_MAX):
            with _reply_of(address, headers, config, max(end_s - time.monotonic(), 0.1)) as reply:
                target = _target_of(reply, address)
                if target is None:
                    if reply.status != http.client.OK or reply.read(len(beginning)) != beginning:
                        return None
                    rest = reply.read(REPLY_BYTES_MAX + 1)
                    if len(rest) <= REPLY_BYTES_MAX:
                        return (address, beginning + rest)
                    return None
            if headers.follow_no_redirect:
                return None
            if not same_server(address, target):
                headers = headers.for_others()
            address = target
    except (OSError, http.client.HTTPException, ValueError):
        pass
    return None


@contextmanager
def _reply_of(
    address: str, headers: RequestHeaders, config: CaptureConfig, limit_s: float
) -> Iterator[http.client.HTTPResponse]:
    """Ask for an address, and close the connection after the block.

    Raises OSError, http.client.HTTPException, or ValueError for an address that cannot be asked for.
    """
    parts = urlsplit(address)
    if parts.scheme == "https":
        tls = context_of("https", config)
    else:
        tls = None
    server = parts.hostname or "", parts.port or PORTS[parts.scheme]
    values = dict(headers.values)
    if parts.username is not None and "authorization" not in map(str.lower, values):
        credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        values["Authorization"] = "Basic " + base64.b64encode(credentials.encode()).decode()
    with closing(timed_connection(server, limit_s, tls)) as connection:
        connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), headers=values)
        with connection.getresponse() as reply:
            yield reply


def _target_of(reply: http.client.HTTPResponse, address: str) -> str | None:
    """Return where a reply redirects to; None if it does not. Raises ValueError for an invalid address."""
    location = reply.headers.get("Location")
    if reply.status not in _REDIRECTS or not location:
        return None
    target = urljoin(address, location)
    _ = urlsplit(target).port
    if scheme_of(target) in HTTP and urlsplit(target).hostname:
        return target
    return None


def same_server(first: str, second: str) -> bool:
    """Return True if two addresses have the same scheme, host and port."""
    return _origin(first) == _origin(second)


def _origin(address: str) -> tuple[str, str | None, int]:
    parts = urlsplit(address)
    return parts.scheme, parts.hostname, parts.port or PORTS[parts.scheme]


def _expanded(text: str, name: str, environment: Mapping[str, str]) -> str:
    """Return the text of a header with the values of its variables. Raises ConfigError."""

    def value_of(match: re.Match[str]) -> str:
        variable = match[2] or match[3]
        if variable is None:
            return "$"
        value = environment.get(variable, "")
        if not value:
            raise ConfigError(
                f"{name} in capture.headers needs the environment variable {variable}, which is not set; set it, or "
                "write $$ for a $"
            )
        return value

    return _VARIABLE.sub(value_of, text)
