"""Section `[overlay]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from stream.config import ExtensionSection, FileName
from stream.options.option import Option


class OverlaySection(ExtensionSection):
    """The newest answer in a text file, for OBS (docs/streaming.md#obs)."""

    section: ClassVar[str] = "overlay"
    switch: ClassVar[str] = "file"

    file: Annotated[
        FileName | None,
        Option("--overlay FILE", "Keep the newest answer in a .txt, for OBS.", without="web demo", group="Outputs"),
    ] = None
    """A text file with the newest answer alone (.txt), for OBS; replaced as a whole, and empty at the end. See
    docs/streaming.md#obs."""
