"""Section `[otlp]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import Self

from stream.config import ExtensionSection
from stream.options.option import Option
from stream.sources.address import redacted


class OtlpSection(ExtensionSection):
    """Traces of answers for OpenTelemetry (docs/tracing.md)."""

    section: ClassVar[str] = "otlp"
    switch: ClassVar[str] = "url"

    def shown(self) -> Self:
        """Return the section without the credentials of the address."""
        return self.model_copy(update={"url": None if self.url is None else redacted(self.url)})

    url: Annotated[
        str | None,
        Option("--otlp URL", "Send a trace of each answer to an OpenTelemetry collector. [off]", without="demo"),
    ] = Field(default=None, min_length=1, examples=['"http://localhost:4318"'])
    """OpenTelemetry collector that a trace of each answer is sent to, by OTLP over HTTP (docs/tracing.md)."""
    text: bool = False
    """Send questions and answers in the traces, too."""
