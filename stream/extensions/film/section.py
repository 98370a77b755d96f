"""Section `[film]` of the configuration, and the check of a film's source before a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, ClassVar

from stream.config import Config, ExtensionSection
from stream.errors import OutputError
from stream.extensions.film import SUFFIXES
from stream.options.option import Option
from stream.sources.address import is_live_address, is_read_once, redacted, scheme_of


class FilmSection(ExtensionSection):
    """Captions in a film: what an output `.mp4`, `.mkv`, `.mov` or `.webm` holds (docs/films.md)."""

    section: ClassVar[str] = "film"

    soft: Annotated[
        bool,
        Option("--soft", "In a film, captions as a subtitle track; pictures are copied.", only="caption watch"),
    ] = False
    """Write captions as a subtitle track, which players switch on and off, and copy pictures and sound as they are.
    Otherwise they are drawn into the pictures. See docs/films.md."""

    def problems(self, config: Config) -> Iterator[tuple[str, str]]:
        """Yield keys whose values are right alone and not together, and the remedy."""
        if self.soft and not films_of(config):
            yield (
                "film.soft",
                f"captions become a track of a film; name one with -o, which ends in {', '.join(SUFFIXES)}",
            )


def films_of(config: Config) -> list[str]:
    """Return the outputs that are films."""
    return [path for path in config.output.paths if PurePath(path).suffix.lower() in SUFFIXES]


def check(config: Config) -> None:
    """Raise OutputError for a film of a source that cannot be read a second time, and for a subtitle track where
    packets cannot be copied."""
    film = films_of(config)[0]
    source = config.source
    name = redacted(source)
    if is_live_address(source) or is_read_once(source) or scheme_of(source) is not None:
        raise OutputError(
            f"output {film!r} is a film of a file or a drawn scene, and {name} is neither; save it in a file first, "
            "or write live/master.m3u8, video with captions while it runs"
        )
    if config.capture.follow:
        raise OutputError(f"output {film!r} is a film of a whole file, and {name} still grows; leave --follow out")
    if not FilmSection.of(config).soft:
        return
    if config.masks:
        raise OutputError(
            f"output {film!r} with --soft would show the masked zones, because its pictures are copied; leave --soft "
            "out, and captions are drawn into masked pictures"
        )
    if not os.path.isfile(os.path.expanduser(source)):
        raise OutputError(f"output {film!r} with --soft copies a video file, and {name} is none; leave --soft out")
