"""Address of an OpenTelemetry collector, and its library. Imports no OpenTelemetry."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import urlsplit

from stream.errors import ConfigError
from stream.sources.address import redacted

LIBRARY = "opentelemetry-exporter-otlp-proto-http"

INSTALL = "pip install 'arr-coc-stream[otlp]'"

PATH = "/v1/traces"
"""Path of traces (OTLP specification 1.10, OTLP/HTTP request)."""

EXAMPLE = "http://localhost:4318"


def has_library() -> bool:
    """Return True if the libraries of the extra `otlp` are installed."""
    try:
        return all(find_spec(part) for part in ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.sdk.trace"))
    except ModuleNotFoundError:
        return False


def traces_url(base: str) -> str:
    """Return where traces are posted, for the address that `--otlp` names.

    Raises ConfigError for what is no address, and where the library is missing.
    """
    try:
        parts = urlsplit(base)
        port = parts.port
    except ValueError:
        parts, port = None, None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"--otlp needs an address such as {EXAMPLE}; got {redacted(base)!r}")
    if parts.query or parts.fragment:
        raise ConfigError(f"--otlp needs no more than {EXAMPLE}; got {redacted(base)!r}")
    if not has_library():
        raise ConfigError(f"--otlp needs {LIBRARY}; {INSTALL}")
    base = base.rstrip("/")
    return base if base.endswith(PATH) else base + PATH
