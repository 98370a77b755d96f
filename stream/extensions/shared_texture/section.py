"""Section `[shared_texture]` of the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import Self

from stream.config import ExtensionSection, FileName
from stream.options.option import Option


class SharedTextureSection(ExtensionSection):
    """Picture, tiles and answers of a run for programs that draw them, such as AR (docs/ar.md)."""

    section: ClassVar[str] = "shared_texture"
    switch: ClassVar[str] = "socket"

    socket: Annotated[
        FileName | None,
        Option(
            "--share-texture SOCKET",
            "Let other programs draw the picture and its tiles, from shared memory.",
            only="watch fleet",
        ),
    ] = Field(default=None, examples=['"ar.sock"'])
    """A Unix socket at which programs of this user get the run's picture in shared memory, with its tiles and answers.
    Of several cameras each has its own, `ar-NAME.sock`. See docs/ar.md."""

    def for_camera(self, name: str) -> Self:
        """Return the section with a socket that is named after the camera."""
        if self.socket is None:
            return self
        path = Path(self.socket)
        letters = "".join(char if char.isalnum() or char in "_-" else "_" for char in name)
        return self.model_copy(update={"socket": str(path.with_name(f"{path.stem}-{letters}{path.suffix}"))})
