"""Access to the web page: its address, and the allowed hosts, origins and tokens. Imports no server."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from stream.config import Config
from stream.errors import ConfigError
from stream.extensions.web import WEB
from stream.extensions.web.section import WebSection
from stream.http.address import TOKEN, TOKEN_CHARS_MIN, is_loopback, names_server, parse_address

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class WebAccess:
    """Place of the page, and who may see it. `control`: viewers may ask. `certificate` and `key` are files for TLS.

    `token` is required of every viewer; None if any user of this machine may look. `made_token`: the program made it,
    so the user does not know it yet. `demo`: it is the demo, whose first page has the others in frames.
    """

    host: str
    port: int
    control: bool
    token: str | None = field(default=None, repr=False)
    made_token: bool = False
    certificate: str | None = None
    key: str | None = None
    demo: bool = False

    @classmethod
    def of(cls, config: Config, environment: Mapping[str, str] = os.environ) -> WebAccess:
        """Return the access that a configuration with `web` asks for; the token may be in the environment.

        Raises ConfigError for an invalid address, a page beyond this machine without a token, a token that is too
        short, half of a certificate, and a missing library.
        """
        section = WebSection.of(config)
        assert section.address is not None
        WEB.require("the live page")
        host, port = parse_address(section.address)
        local = is_loopback(host)
        token = section.token or environment.get(TOKEN) or None
        if not local and token is None:
            raise ConfigError(
                f"--web {section.address} can be reached from other machines, and any user there could look; give "
                f"--web-token auto or a secret in {TOKEN}, or serve it on this machine only, with --web PORT"
            )
        name = "--web-token" if section.token else TOKEN
        if token is not None and token != AUTO and len(token) < TOKEN_CHARS_MIN:
            raise ConfigError(f"{name} needs at least {TOKEN_CHARS_MIN} characters; give more, or auto")
        for option, path, other in (
            ("--web-cert", section.cert, section.key),
            ("--web-key", section.key, section.cert),
        ):
            if path is None and other is not None:
                raise ConfigError("--web-cert and --web-key belong together; give both")
            if path is not None and not os.path.isfile(path):
                raise ConfigError(f"{option} {path!r} is not a file; name a PEM file")
        return cls(
            host,
            port,
            control=local if section.control is None else section.control,
            token=secrets.token_urlsafe(18) if token == AUTO else token,
            made_token=token == AUTO,
            certificate=section.cert,
            key=section.key,
        )

    @property
    def scheme(self) -> str:
        """Protocol of the page's address."""
        return "http" if self.certificate is None else "https"

    def address(self, port: int) -> str:
        """Return the page's address for a browser, with the token if the program made it."""
        if self.host in ("0.0.0.0", "::"):
            host = os.uname().nodename
        else:
            host = self.host
        if self.made_token:
            query = f"/?token={self.token}"
        else:
            query = "/demo" if self.demo else "/"
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{port}{query}"

    def allows_host(self, header: str | None) -> bool:
        """Return whether a request may be addressed to this host.

        A page on this machine only has this machine's names, so that another site cannot point its own name at it
        (DNS rebinding). Elsewhere the token keeps such a site out: its cookie belongs to another name.
        """
        return header is not None and names_server(header, self.host)

    def allows_origin(self, origin: str | None, host: str | None) -> bool:
        """Return whether a socket may be opened by a page of this origin: the same one, or no page at all."""
        if origin is None:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:  # such as "http://["
            return False
        return parts.scheme == self.scheme and host is not None and parts.netloc.lower() == host.lower()

    def allows_token(self, token: str | None) -> bool:
        """Return whether this is the token, or none is demanded; takes as long for a wrong one."""
        if self.token is None:
            return True
        return token is not None and hmac.compare_digest(token.encode(), self.token.encode())


def check(config: Config) -> None:
    """Raise ConfigError as `WebAccess.of`."""
    WebAccess.of(config)
