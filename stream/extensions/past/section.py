"""Section `[past]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import Self

from stream.config import ExtensionSection, FileName
from stream.options.option import Option


class PastSection(ExtensionSection):
    """Memory of what cameras saw, for `search` and `recap` (docs/past.md)."""

    section: ClassVar[str] = "past"
    switch: ClassVar[str] = "file"

    def for_camera(self, name: str) -> Self:
        """Return the section with the camera's name, if it has none."""
        if self.camera is not None:
            return self
        return self.model_copy(update={"camera": name})

    file: Annotated[
        FileName | None,
        Option(
            "--remember FILE",
            "Keep answers, matches and pictures in a .sqlite, for `search` and `recap`. [off]",
            without="demo",
        ),
    ] = Field(default=None, examples=['"past.sqlite"'])
    """SQLite file that keeps answers, matches, outages and small pictures, of any number of cameras and runs
    (docs/past.md)."""
    camera: str | None = Field(default=None, min_length=1, max_length=256)
    """Name of the camera in that file; made from the source when absent. In a fleet it is the camera's own name."""
    max_days: float | None = Field(default=30.0, gt=0)
    """Age in days at which moments are deleted from the file; none for no limit."""
    max_mib: int | None = Field(default=1024, ge=1)
    """Size of the file, in MiB, above which the oldest pictures are deleted, and then the oldest moments; none for no
    limit."""
