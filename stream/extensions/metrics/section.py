"""Section `[metrics]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import ExtensionSection
from stream.options.option import Option


class MetricsSection(ExtensionSection):
    """Prometheus metrics and health, over HTTP (docs/metrics.md)."""

    section: ClassVar[str] = "metrics"
    switch: ClassVar[str] = "port"

    port: Annotated[
        int | None,
        Option(
            "--metrics-port PORT",
            "Serve Prometheus metrics and health on 127.0.0.1.",
            without="demo",
            also="serve-answers",
        ),
    ] = Field(default=None, ge=1, le=65535)
    """Port of Prometheus metrics (/metrics) and health (/healthz), over HTTP (docs/metrics.md)."""
    host: str = "127.0.0.1"
    """Address that the metrics are served on; 0.0.0.0 for every network of this machine."""
