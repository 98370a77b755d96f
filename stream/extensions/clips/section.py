"""Section `[clips]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stream.config import ExtensionSection, FileName
from stream.options.option import Option


class ClipsSection(ExtensionSection):
    """A picture and a video of each match of a watch (docs/clips.md)."""

    section: ClassVar[str] = "clips"
    switch: ClassVar[str] = "folder"

    folder: Annotated[
        FileName | None,
        Option(
            "--clips FOLDER",
            "With --until: write a picture and a clip of each yes into a folder.",
            without="demo",
            group="Outputs",
        ),
    ] = Field(default=None, examples=['"clips"'])
    """A folder for a picture and a video of each moment at which the answer to a standing question became yes. See
    docs/clips.md."""
    before_s: float = Field(default=5.0, ge=0, le=60)
    """Time before the match that a clip shows, in seconds, from the key frame before it."""
    after_s: float = Field(default=5.0, ge=0, le=300)
    """Time after the match that a clip shows, in seconds."""
    max_mib: int | None = Field(default=2048, ge=1)
    """Most disk space, in MiB: the oldest clips are deleted first; none for no limit."""
    max_days: float | None = Field(default=30.0, gt=0)
    """Age at which clips are deleted, in days; none for never."""
