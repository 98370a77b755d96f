"""Which pictures a folder or a pattern names, and in which order."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from stream.errors import SourceError, SourceNotFound

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif"})
"""What counts as a picture in a folder."""

_VIDEO_SUFFIXES = frozenset({".mp4", ".mkv", ".mov", ".webm", ".avi", ".ts", ".m4v", ".mpg", ".mpeg", ".flv"})
"""What is looked for where a folder holds no pictures, to say so."""

_KINDS = "png, jpg, webp, bmp, tif or gif"

_SHOWN = 3
"""Names that a message lists."""


def is_pattern(address: str) -> bool:
    """Whether an address names files by a pattern such as `shots/*.png`."""
    return glob.has_magic(address) and not os.path.lexists(address)


def natural_order(path: Path) -> tuple[list[tuple[int, int, str]], str]:
    """Sorts as people count: img2 before img10."""
    parts = re.split(r"(\d+)", path.name.casefold())
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part], str(path)


def pictures_of(address: str) -> list[Path]:
    """The pictures that an address names, in order. Raises SourceNotFound or SourceError where there are none."""
    if is_pattern(address):
        found = [Path(name) for name in glob.iglob(address, recursive=True)]
        if not found:
            raise SourceNotFound(f"no file is called {address}; check the pattern, or give the folder alone")
        where = f"what {address} names"
    else:
        found = [path for path in _listed(Path(address)) if not path.name.startswith(".")]
        where = address
    pictures = sorted(
        (path for path in found if path.suffix.casefold() in SUFFIXES and path.is_file()), key=natural_order
    )
    if not pictures:
        raise SourceError(_none_there(where, found))
    return pictures


def root_of(address: str) -> Path:
    """The folder that an address names, or that in which its pattern looks."""
    if not is_pattern(address):
        return Path(address)
    plain = list(takewhile(lambda part: not glob.has_magic(part), Path(address).parts))
    return Path(*plain)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise SourceError(f"the folder {folder} cannot be read: {error.strerror}; change its permissions") from error


def _none_there(where: str, found: Sequence[Path]) -> str:
    if not found:
        return f"{where} is an empty folder; put pictures there ({_KINDS}), or give a video file"
    videos = sorted(str(path) for path in found if path.suffix.casefold() in _VIDEO_SUFFIXES)
    if videos:
        names = ", ".join(videos[:_SHOWN]) + (", ..." if len(videos) > _SHOWN else "")
        return f"{where} holds videos and no pictures; give one of them: {names}"
    return f"no picture is in {where}; pictures are {_KINDS}"
