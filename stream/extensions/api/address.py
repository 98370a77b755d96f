"""Address and key of an OpenAI-compatible server, checked before anything is opened."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from stream.config import Config, is_local
from stream.errors import ConfigError
from stream.extensions.api.section import ApiSection

CHAT = "/chat/completions"


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """Base address of a server, without a slash at its end, and its API key, None for none.

    `local`: the server is on this machine.
    """

    base: str
    local: bool
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, config: Config) -> ApiAddress:
        """Return the address that `api.url` gives, with the key that the environment holds.

        Raises ConfigError if the address is invalid, or the key could be read on its way.
        """
        api = ApiSection.of(config)
        url = api.url or ""
        parts = _split(url)
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{_without_userinfo(url)!r} is no address of a server; write http://HOST:PORT/v1")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigError(
                f"--api takes an address without user, password or parameters; put the key into the environment "
                f"variable {api.key_env}"
            )
        path = parts.path.rstrip("/").removesuffix(CHAT) or "/v1"
        local = is_local(f"tcp://{parts.netloc}" if parts.port else f"tcp://{parts.netloc}:80")
        key = os.environ.get(api.key_env, "").strip() or None
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigError(f"{api.key_env} holds no key: a key is one word of ASCII characters")
        if key is not None and parts.scheme == "http" and not local and not config.network.plain_tcp:
            raise ConfigError(
                f"the key of {api.key_env} could be read on its way to {parts.hostname}; use https, or allow it with "
                "--plain-tcp"
            )
        return cls(f"{parts.scheme}://{parts.netloc}{path}", local, key)


def _split(text: str) -> SplitResult | None:
    """Return the parts of an address; None if it is invalid."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    return parts


def _without_userinfo(text: str) -> str:
    """Return an address without the part before its host, which may hold a password."""
    scheme, separator, rest = text.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def served_name(config: Config) -> str:
    """Return the name of a model behind an API, as shown to users.

    Raises ConfigError if the address or the key is invalid.
    """
    address = ApiAddress.of(config)
    return f"{config.answer.model or 'the model'} at {address.base}"
