"""Section `[why]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import ExtensionSection
from stream.options.option import Option


class WhySection(ExtensionSection):
    """Reasons for each token (docs/cli.md#why-this-token)."""

    section: ClassVar[str] = "why"
    switch: ClassVar[str] = "file"

    file: Annotated[
        str | None,
        Option(
            "--why FILE",
            "Also write the reasons for each token, as .jsonl: the newest 64 MiB.",
            without="web",
            group="Outputs",
        ),
    ] = None
    """Reasons for each token of each frame that was answered about (.jsonl). See docs/cli.md#why-this-token."""
    max_mib: int | None = Field(default=64, ge=1)
    """Most disk space, in MiB, of the newest reasons, in FILE and FILE.1; none for no limit."""
