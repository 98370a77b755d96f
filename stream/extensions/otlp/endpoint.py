"""Address of an OpenTelemetry collector, and the path of traces. Imports no OpenTelemetry."""

from __future__ import annotations

from urllib.parse import urlsplit

from stream.config import Config
from stream.errors import ConfigError
from stream.extensions.otlp import OTLP
from stream.extensions.otlp.section import OtlpSection
from stream.sources.address import redacted

PATH = "/v1/traces"
"""Path of traces (OTLP specification 1.10, OTLP/HTTP request)."""

EXAMPLE = "http://localhost:4318"


def traces_url(base: str) -> str:
    """Return the URL to which traces are posted, for the address that `--otlp` names.

    Raises ConfigError if the address is invalid or the library is missing.
    """
    try:
        parts = urlsplit(base)
        port = parts.port
    except ValueError:
        parts = None
        port = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"--otlp needs an address such as {EXAMPLE}; got {redacted(base)!r}")
    if parts.query or parts.fragment:
        raise ConfigError(f"--otlp needs no more than {EXAMPLE}; got {redacted(base)!r}")
    OTLP.require("--otlp")
    base = base.rstrip("/")
    return base if base.endswith(PATH) else base + PATH


def check(config: Config) -> None:
    """Raise ConfigError if the collector's address is invalid."""
    traces_url(OtlpSection.of(config).url or "")
