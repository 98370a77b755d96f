"""Section `[on_match]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import ExtensionSection
from stream.options.option import Option


class OnMatchSection(ExtensionSection):
    """A command for each match of a watch (docs/watch.md#commands)."""

    section: ClassVar[str] = "on_match"
    switch: ClassVar[str] = "command"

    command: Annotated[
        str | None,
        Option(
            "--on-match COMMAND",
            "Run a command for each match of a watch, without a shell. [off]",
            without="demo",
            group="Question",
        ),
    ] = Field(default=None, pattern=r"\S", examples=['"notify-send {watch} {question}"'])
    """Command that each match of a watch starts, without a shell: {watch}, {question}, {time}, {camera} and other
    fields of the match are put into its words (docs/watch.md#commands)."""
    limit_s: float = Field(default=30.0, gt=0)
    """Time limit of such a command, in seconds; then it is killed."""
