"""A file that a run will write: claimed before the run begins, emptied only when it has something to write."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stream.errors import OutputError, OutputFailed

log = logging.getLogger(__name__)


class OutputFile:
    """A text file (UTF-8), each write of which is in the file before the call returns.

    What the path held before stays until the first write, so a run that fails to start destroys nothing; a file
    that was made and never written is removed. Raises OutputError where the path cannot be written, or another run
    writes it, and OutputFailed where it cannot be written any more.

    `resume`: the file was written by a run that is now continued from its beginning. It stays as it is until as much
    has been written again as it holds, or `catch_up` says that there is no more: nothing in it is lost however this
    run ends. Raises OutputError where it is no regular file.
    """

    def __init__(self, path: str, *, resume: bool = False) -> None:
        self.path = path
        self._begun = False
        self._fd: int | None = None
        try:
            self._fd, self._made = _opened(path)
        except OSError as error:
            raise OutputError(_refusal(path, error)) from error
        about = os.fstat(self._fd)
        self.regular = stat.S_ISREG(about.st_mode)
        if self.regular:
            self._claim()
        self._held = about.st_size
        self._again: bytearray | None = bytearray() if resume else None
        if resume and not self.regular:
            self.close()
            raise OutputError(f"cannot continue {path!r}: it is not a regular file; leave --resume out")

    def keep(self) -> None:
        """The file stays although nothing was written here: another writer has taken it over."""
        self._begun = True

    def append(self, text: str) -> None:
        """Writes at the end."""
        data = text.encode()
        if self._again is not None:
            self._write_again(len(self._again), data)
            return
        with self._writing() as fd:
            if self.regular:
                _put(fd, os.fstat(fd).st_size, data)
            else:
                _write_all(fd, data)

    def replace_tail(self, offset: int, text: str) -> None:
        """Replaces everything from byte `offset` on, in a regular file."""
        data = text.encode()
        if self._again is not None:
            self._write_again(offset, data)
            return
        with self._writing() as fd:
            _put(fd, offset, data)

    def catch_up(self) -> None:
        """A continued run has written all that it will write: the file holds that from here on."""
        again, self._again = self._again, None
        if again is None:
            return
        self._begun = True
        with self._writing() as fd:
            held = os.pread(fd, self._held, 0)
            pairs = enumerate(zip(held, again, strict=False))
            same = next((at for at, (old, new) in pairs if old != new), min(len(held), len(again)))
            _put(fd, same, bytes(again[same:]))

    def close(self) -> None:
        if self._fd is None:
            return
        if self._made and not self._begun:
            self._remove(self._fd)
        os.close(self._fd)
        self._fd = None

    def _remove(self, fd: int) -> None:
        """Removes the file that was made, unless somebody has written it, or laid another one in its place."""
        with suppress(OSError):
            if os.fstat(fd).st_size == 0 and os.path.samestat(os.lstat(self.path), os.fstat(fd)):
                os.unlink(self.path)

    def _claim(self) -> None:
        """Keeps other runs from writing the file; where the file system has no locks, they are not kept from it."""
        assert self._fd is not None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            self._fd = None
            raise OutputError(
                f"another run is writing {self.path!r}; wait until it has ended, or name another output"
            ) from None
        except OSError:
            log.debug("%s cannot be locked", self.path, exc_info=True)

    def _write_again(self, offset: int, data: bytes) -> None:
        assert self._again is not None
        self._again[offset:] = data
        if len(self._again) >= self._held:
            self.catch_up()

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
            raise OutputFailed(f"cannot write {self.path!r}: {error.strerror}") from error


def _opened(path: str) -> tuple[int, bool]:
    """A descriptor of the file, and whether it was made here. Raises OSError."""
    flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
    with suppress(FileExistsError):
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
    return os.open(path, flags | os.O_CREAT, 0o666), False


def _put(fd: int, offset: int, data: bytes) -> None:
    """Replaces everything from byte `offset` on; where there is no room for that, what was there is put back."""
    before = os.pread(fd, max(0, os.fstat(fd).st_size - offset), offset)
    try:
        os.lseek(fd, offset, os.SEEK_SET)
        _write_all(fd, data)
        os.ftruncate(fd, offset + len(data))
    except OSError:
        with suppress(OSError):
            os.lseek(fd, offset, os.SEEK_SET)
            _write_all(fd, before)
        with suppress(OSError):
            os.ftruncate(fd, offset + len(before))
        raise


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def check_place(path: str) -> None:
    """Raises OutputError where it can be seen, without making anything, that a file cannot be written at `path`."""
    parent = Path(path).parent
    if os.path.isdir(path) or not parent.exists():
        raise OutputError(_refusal(path, OSError()))
    if not os.access(path if os.path.lexists(path) else parent, os.W_OK):
        raise OutputError(_refusal(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES))))


def _refusal(path: str, error: OSError) -> str:
    parent = Path(path).parent
    if not parent.exists():
        return f"cannot write {path!r}: there is no folder {str(parent)!r}; make it first"
    if os.path.isdir(path):
        return f"cannot write {path!r}: it is a folder; name a file in it"
    return f"cannot write {path!r}: {error.strerror}"
