"""Section `[otlp]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import ExtensionSection
from stream.options.option import Option


class OtlpSection(ExtensionSection):
    """Traces of answers for OpenTelemetry (docs/tracing.md)."""

    section: ClassVar[str] = "otlp"
    switch: ClassVar[str] = "url"

    url: Annotated[
        str | None,
        Option("--otlp URL", "Send a trace of each answer to an OpenTelemetry collector. [off]", without="demo"),
    ] = Field(default=None, min_length=1, examples=['"http://localhost:4318"'])
    """OpenTelemetry collector that a trace of each answer is sent to, by OTLP over HTTP (docs/tracing.md)."""
    text: bool = False
    """Send questions and answers in the traces, too."""
