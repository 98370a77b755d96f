"""List of the files that runs have written into a folder of clips, read within a bound."""

from __future__ import annotations

import os
import re
import stat
import threading
from contextlib import suppress
from pathlib import Path

from stream.untrusted import MIB

MANIFEST = ".arr-coc-clips"
"""Name of the list in the folder; it has one name a line."""

CLIP_NAME = re.compile(r"\w[\w.-]{0,150}\.(?:jpg|mp4)")

MANIFEST_BYTES_MAX = 16 * MIB
"""Longest part that is read, from the end: the names of some 200,000 files."""


def read_manifest(folder: Path) -> list[str]:
    """Return the names in a folder's manifest, each once, in order; lines that are no names of clips are left out."""
    try:
        descriptor = os.open(folder / MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return []
        file.seek(max(0, status.st_size - MANIFEST_BYTES_MAX))
        lines = file.read(MANIFEST_BYTES_MAX).decode(errors="replace").splitlines(keepends=True)
    names = (line[:-1] for line in lines if line.endswith("\n"))
    return list(dict.fromkeys(name for name in names if CLIP_NAME.fullmatch(name)))


class ClipIndex:
    """Names in a folder's manifest, read again only once it has changed. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._names: frozenset[str] = frozenset()
        self._version: tuple[int, int, int] | None = None

    def find(self, name: str) -> Path | None:
        """Return the path of a file that a run has written into the folder; None for any other name."""
        if CLIP_NAME.fullmatch(name) is None or name not in self._current_names():
            return None
        path = self._folder / name
        with suppress(OSError):
            if stat.S_ISREG(path.lstat().st_mode):
                return path
        return None

    def _current_names(self) -> frozenset[str]:
        with self._lock:
            version = None
            with suppress(OSError):
                status = os.lstat(self._folder / MANIFEST)
                version = status.st_ino, status.st_size, status.st_mtime_ns
            if version != self._version:
                self._names = frozenset(read_manifest(self._folder))
                self._version = version
            return self._names
