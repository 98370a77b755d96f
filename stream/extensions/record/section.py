"""Section `[record]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from stream.config import ExtensionSection, FileName
from stream.options.option import Option


class RecordSection(ExtensionSection):
    """Recording of requests to the answer stage and its replies, for `replay` (docs/recording.md)."""

    section: ClassVar[str] = "record"
    switch: ClassVar[str] = "folder"

    folder: Annotated[
        FileName | None,
        Option(
            "--record FOLDER",
            "Also record packets, questions and answers, for `replay`.",
            without="web",
            group="Outputs",
        ),
    ] = None
    """A folder, new or empty, for a recording of requests to the answer stage and its replies, for `replay`
    (docs/recording.md)."""
