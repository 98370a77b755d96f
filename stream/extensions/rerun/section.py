"""Section `[rerun]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import ExtensionSection, FileName
from stream.options.option import Option


class RerunSection(ExtensionSection):
    """The Rerun viewer (docs/rerun.md)."""

    section: ClassVar[str] = "rerun"
    switch: ClassVar[str] = "address"

    address: Annotated[
        FileName | None,
        Option("--rerun ADDRESS", "Show the run in a Rerun viewer: spawn, or HOST:PORT. [off]", without="demo"),
    ] = Field(default=None, examples=['"spawn"'])
    """Rerun viewer that shows the run: "HOST:PORT", or `spawn` to open one here (docs/rerun.md)."""
