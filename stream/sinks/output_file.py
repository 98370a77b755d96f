"""A file that a run will write: claimed before the run begins, emptied only when it has something to write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
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
        self._fd: int | None = None
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
        except OSError as error:
            raise OutputError(_refusal(path, error)) from error
        self.regular = stat.S_ISREG(os.fstat(self._fd).st_mode)

    def keep(self) -> None:
        """The file stays although nothing was written here: another writer has taken it over."""
        self._begun = True

    def append(self, text: str) -> None:
        """Writes at the end."""
        with self._writing() as fd:
            _write_all(fd, text.encode())

    def replace_tail(self, offset: int, text: str) -> None:
        """Replaces everything from byte `offset` on, in a regular file."""
        data = text.encode()
        with self._writing() as fd:
            os.lseek(fd, offset, os.SEEK_SET)
            _write_all(fd, data)
            os.ftruncate(fd, offset + len(data))

    def close(self) -> None:
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        if self._made and not self._begun:
            Path(self.path).unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[int]:
        if self._fd is None:
            raise OutputError(f"{self.path!r} is closed already")
        try:
            if not self._begun and self.regular:
                os.ftruncate(self._fd, 0)
            self._begun = True
            yield self._fd
        except OSError as error:
            raise OutputError(f"cannot write {self.path!r}: {error.strerror}") from error


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _refusal(path: str, error: OSError) -> str:
    parent = Path(path).parent
    if not parent.exists():
        return f"cannot write {path!r}: there is no folder {str(parent)!r}; make it first"
    if os.path.isdir(path):
        return f"cannot write {path!r}: it is a folder; name a file in it"
    return f"cannot write {path!r}: {error.strerror}"
