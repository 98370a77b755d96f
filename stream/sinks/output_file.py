"""A file that a run will write: claimed before the run begins, emptied only when it has something to write."""

from __future__ import annotations

import os
from pathlib import Path

from stream.errors import OutputError


class OutputFile:
    """A text file (UTF-8), each write of which is in the file before the call returns.

    What the path held before stays until the first write, so a run that fails to start destroys nothing; a file
    that was made and never written is removed. Raises OutputError where the path cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._made = not os.path.lexists(path)
        self._begun = False
        try:
            self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            raise OutputError(_refusal(path, error)) from error

    def keep(self) -> None:
        """The file stays although nothing was written here: another writer has taken it over."""
        self._begun = True

    def append(self, text: str) -> int:
        """Writes at the end; returns where the text begins, in bytes."""
        self._begin()
        try:
            offset = os.lseek(self._open_fd, 0, os.SEEK_END) if self.seekable else 0
            self._write(text)
        except OSError as error:
            raise OutputError(f"cannot write {self.path!r}: {error.strerror}") from error
        return offset

    def replace_tail(self, offset: int, text: str) -> None:
        """Replaces everything from byte `offset` on."""
        self._begin()
        try:
            os.lseek(self._open_fd, offset, os.SEEK_SET)
            self._write(text)
            os.ftruncate(self._open_fd, offset + len(text.encode()))
        except OSError as error:
            raise OutputError(f"cannot write {self.path!r}: {error.strerror}") from error

    @property
    def seekable(self) -> bool:
        """Whether the tail can be replaced: not for pipes and terminals."""
        try:
            os.lseek(self._open_fd, 0, os.SEEK_CUR)
        except OSError:
            return False
        return True

    def close(self) -> None:
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        if self._made and not self._begun:
            Path(self.path).unlink(missing_ok=True)

    @property
    def _open_fd(self) -> int:
        if self._fd is None:
            raise OutputError(f"{self.path!r} is closed already")
        return self._fd

    def _begin(self) -> None:
        if not self._begun and self.seekable:
            os.ftruncate(self._open_fd, 0)
        self._begun = True

    def _write(self, text: str) -> None:
        data = memoryview(text.encode())
        while data:
            data = data[os.write(self._open_fd, data) :]


def _refusal(path: str, error: OSError) -> str:
    parent = Path(path).parent
    if not parent.exists():
        return f"cannot write {path!r}: there is no folder {str(parent)!r}; make it first"
    if os.path.isdir(path):
        return f"cannot write {path!r}: it is a folder; name a file in it"
    return f"cannot write {path!r}: {error.strerror}"
