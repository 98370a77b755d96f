"""Section `[past]` of the configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import Self

from stream.config import Config, ExtensionSection, FileName
from stream.errors import ConfigError
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

    @classmethod
    def check_together(cls, cameras: Mapping[str, Config]) -> None:
        """Raise ConfigError if two cameras remember in one file, which has one writer, with different limits."""
        first: dict[str, str] = {}
        for name, config in cameras.items():
            section = cls.of(config)
            if section.file is None:
                continue
            other = first.setdefault(os.path.realpath(section.file), name)
            limits = cls.of(cameras[other])
            if (limits.max_days, limits.max_mib) != (section.max_days, section.max_mib):
                raise ConfigError(
                    f"the cameras {other} and {name} both remember in {section.file!r}, with different limits; give "
                    "both the same past.max_days and past.max_mib"
                )

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
    """Age at which moments are deleted, in days; none for no limit."""
    max_mib: int | None = Field(default=1024, ge=1)
    """Size, in MiB, above which the oldest pictures are deleted, and then moments; none for no limit."""
