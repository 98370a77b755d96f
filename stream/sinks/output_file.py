"""Output files: claimed before the run, valid at every moment, resumable; JSON lines in them."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from stream.errors import OutputError, OutputFailed
from stream.events import (
    OF_FRAMES,
    AnswerPoint,
    Event,
    Glance,
    Summary,
    YesNoResult,
    encode_event,
)
from stream.extension import SinkOpening
from stream.recording.writable import write_obstacle
from stream.sinks.base import Sink
from stream.sinks.paths import STDOUT
from stream.sinks.types import path_form
from stream.sources.address import STDIN

STDIN_FD = 0

log = logging.getLogger(__name__)


class OutputFile:
    """Text file (UTF-8); each write is in the file before the call returns.

    The old content stays until the first write, so a run that fails to start destroys nothing; a file that was created
    and never written is removed. Raises OutputError if the path cannot be written or another run is writing it, and
    OutputFailed if a later write fails.

    `resume`: the file was written by a run that is now continued from its beginning. It is not changed until more has
    been written again than it holds, or `catch_up` is called, so that nothing is lost however this run ends. Raises
    OutputError if it is not a regular file.
    """

    def __init__(self, path: str, *, resume: bool = False) -> None:
        self.path = path
        self._has_written = False
        self._fd: int | None = None
        try:
            self._fd, self._is_new = _open(path)
        except OSError as error:
            raise OutputError(_refusal(path, error)) from error
        about = os.fstat(self._fd)
        self.regular = stat.S_ISREG(about.st_mode)
        self._has_name = self.regular and about.st_nlink > 0  # /dev/fd/3 may never have had a name
        if self.regular:
            claim(self._fd, path)
        self._old_bytes = about.st_size
        self._rewritten: bytearray | None = bytearray() if resume else None
        if resume and not self.regular:
            self.close()
            raise OutputError(f"cannot continue {path!r}: it is not a regular file; leave --resume out")

    def keep(self) -> None:
        """Keep the file although nothing was written here, because another writer has taken it over."""
        self._has_written = True

    def append(self, text: str) -> None:
        """Append text."""
        data = text.encode()
        if self._rewritten is not None:
            self._rewrite(len(self._rewritten), data)
            return
        with self._writing() as fd:
            if self.regular:
                _replace_from(fd, os.fstat(fd).st_size, data)
            else:
                _write_all(fd, data)

    def replace_tail(self, offset: int, text: str) -> None:
        """Replace everything from byte `offset` on, in a regular file."""
        data = text.encode()
        if self._rewritten is not None:
            self._rewrite(offset, data)
            return
        with self._writing() as fd:
            _replace_from(fd, offset, data)

    def catch_up(self) -> None:
        """Replace the file by what a continued run has written."""
        content = self._rewritten
        self._rewritten = None
        if content is None:
            return
        self._has_written = True
        with self._writing() as fd:
            before = os.pread(fd, self._old_bytes, 0)
            pairs = enumerate(zip(before, content, strict=False))
            same = next((at for at, (old, new) in pairs if old != new), min(len(before), len(content)))
            _replace_from(fd, same, bytes(content[same:]))

    def close(self) -> None:
        """Close the file. Idempotent. Raises OutputFailed if it was removed during the run."""
        if self._fd is None:
            return
        fd = self._fd
        self._fd = None
        try:
            if self._is_new and not self._has_written:
                # remove the created file, unless another program has written or replaced it
                with suppress(OSError):
                    if os.fstat(fd).st_size == 0 and os.path.samestat(os.lstat(self.path), os.fstat(fd)):
                        os.unlink(self.path)
            elif self._has_written:
                self._check_name(fd)
        finally:
            os.close(fd)

    def _check_name(self, fd: int) -> None:
        if self._has_name and os.fstat(fd).st_nlink == 0:
            raise OutputFailed(f"{self.path!r} is lost: the file or its folder was removed during the run")

    def _rewrite(self, offset: int, data: bytes) -> None:
        assert self._rewritten is not None
        self._rewritten[offset:] = data
        if len(self._rewritten) > self._old_bytes:
            self.catch_up()

    @contextmanager
    def _writing(self) -> Iterator[int]:
        if self._fd is None:
            raise OutputError(f"{self.path!r} is closed already")
        self._check_name(self._fd)
        try:
            if not self._has_written and self.regular:
                os.ftruncate(self._fd, 0)
            self._has_written = True
            yield self._fd
        except OSError as error:
            raise OutputFailed(f"cannot write {self.path!r}: {error.strerror}") from error


def replace_file(path: str | Path, new: str | Path, text: str) -> None:
    """Replace a text file (UTF-8) atomically, by way of the file `new` beside it; who may read it stays.

    Raises OSError, with `new` gone.
    """
    try:
        with suppress(FileNotFoundError):
            os.unlink(new)  # it may be a link to a file of the user
        with open(new, "x", encoding="utf-8", errors="replace", newline="") as file:
            with suppress(FileNotFoundError):
                os.chmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
            file.write(text)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        raise


def claim(descriptor: int, path: str, place: str = "", other: str = "output") -> None:
    """Lock a file or folder against other runs, if the file system has locks.

    Args:
        descriptor: Open file descriptor of the file or folder; closed if the lock is held elsewhere.
        path: Its path, for the message.
        place: Words before the path in the message, such as "into the folder of ".
        other: Noun of what to name instead.

    Raises:
        OutputError: If another run holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OutputError(
            f"another run is writing {place}{path!r}; wait until it has ended, or name another {other}"
        ) from None
    except OSError:
        log.debug("%s cannot be locked", path, exc_info=True)


def _open(path: str) -> tuple[int, bool]:
    """Return a descriptor of the file, and whether it was created. Raises OSError."""
    flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
    with suppress(FileExistsError):
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
    return os.open(path, flags | os.O_CREAT, 0o666), False


def _replace_from(fd: int, offset: int, data: bytes) -> None:
    """Replace everything from byte `offset` on; if the disk is full, restore the previous content."""
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


def check_writable(path: str) -> None:
    """Raise OutputError if a file cannot be written at `path`, as far as can be checked without creating anything."""
    parent = Path(path).parent
    if path_form(path) == "file in own folder" and not os.path.lexists(parent):  # it will be created
        path = str(parent)
        parent = parent.parent
    if parent.exists() and not parent.is_dir():
        raise OutputError(f"cannot write {path!r}: {str(parent)!r} is no folder; name another")
    if os.path.isdir(path) or not parent.exists():
        raise OutputError(_refusal(path, OSError()))
    if (obstacle := write_obstacle(path if os.path.exists(path) else parent)) is not None:
        raise OutputError(_refusal(path, OSError(0, obstacle)))


def check_database(path: str, others: Sequence[str], source: str) -> None:
    """Raise OutputError if a database at `path` would be the source, one of the `others`, a folder, or in no folder."""
    check_distinct([*others, path], source)
    if os.path.isdir(path) or not Path(path).parent.is_dir():
        raise OutputError(_refusal(path, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))))


def _refusal(path: str, error: OSError) -> str:
    parent = Path(path).parent
    if not parent.exists():
        return f"cannot write {path!r}: there is no folder {str(parent)!r}; make it first"
    if os.path.isdir(path):
        return f"cannot write {path!r}: it is a folder; name a file in it"
    return f"cannot write {path!r}: {error.strerror}; name another output"


def check_distinct(paths: Sequence[str], source: str, *others: str | None) -> None:
    """Raise OutputError if two outputs are one file, or an output would overwrite the source or another input.

    Hard and symbolic links are followed; the source may be standard input redirected from a file.
    """
    inputs = {_file_of(STDIN_FD if source == STDIN else source), *(_file_of(path) for path in others if path)}
    paths_by_file: dict[object, str] = {}
    for path in paths:
        file = _file_of(path)
        if file in inputs:
            raise OutputError(f"output {path!r} is the input; it would be overwritten: name another file")
        if file in paths_by_file:
            if path == paths_by_file[file]:
                also = ""
            else:
                also = f", as {paths_by_file[file]!r} and {path!r}"
            raise OutputError(f"output {path!r} is given twice{also}; give each its own file")
        paths_by_file[file] = path
    # the segments of all streams have the same names
    folders: dict[str, str] = {}
    for stream in [path for path in paths if path_form(path) == "file in own folder"]:
        folder = os.path.realpath(os.path.dirname(stream))
        if folder in folders:
            raise OutputError(
                f"outputs {folders[folder]!r} and {stream!r} are two streams in one folder; give each a separate folder"
            )
        folders[folder] = stream


def _file_of(path: str | int) -> object:
    """Return a key that is equal for two names of one file. Non-regular files are never equal, except for stdout."""
    if path == STDOUT:
        return path
    try:
        about = os.stat(path)
    except OSError:
        if isinstance(path, int):
            return path
        return os.path.realpath(path)
    if stat.S_ISREG(about.st_mode):
        return (about.st_dev, about.st_ino)
    return object()


def check_suffix(path: str, suffixes: Sequence[str], subject: str, hint: str) -> None:
    """Check the suffix of an output's path.

    Args:
        path: Path of the output.
        suffixes: Valid suffixes, in lower case.
        subject: Noun of the output, for the message.
        hint: Options for other outputs, for the message.

    Raises:
        OutputError: If the path has none of the suffixes.
    """
    suffix = Path(path).suffix
    if suffix.lower() not in suffixes:
        actual = f"suffix {suffix!r}" if suffix else "no suffix"
        raise OutputError(f"output {path!r} has {actual}; {subject} can be {', '.join(suffixes)} ({hint})")


class LineFile(Protocol):
    """Interface of a file of lines that JsonlSink uses."""

    def append(self, text: str) -> None: ...

    def catch_up(self) -> None: ...

    def close(self) -> None: ...


class StdoutLines:
    """Standard output in the place of a file. Raises ReaderGone if its reader has closed the pipe."""

    def append(self, text: str) -> None:
        from stream.logs import print_line

        print_line(text.removesuffix("\n"))

    def catch_up(self) -> None:
        """Do nothing: there is no earlier content."""

    def close(self) -> None:
        """Leave standard output open."""


def without_timing(event: Event) -> Event:
    """Return the event without fields that depend on the clock."""
    if isinstance(event, (AnswerPoint, Glance, YesNoResult, Summary)):
        return replace(event, timing=None, time=None)
    return replace(event, time=None)


class JsonlSink(Sink):
    """Writer of JSON lines: every event except frames, their reasons and pictures, and pieces of text.

    Without `timing`, nothing that depends on the clock is written, so that two runs give the same bytes. `resume`: the
    file belongs to a run that is being continued, see OutputFile. `camera`: name to write in each line. `file`: an open
    file to use instead of `path`, such as one that several runs share.
    """

    def __init__(
        self,
        path: str,
        *,
        timing: bool = True,
        resume: bool = False,
        camera: str | None = None,
        file: LineFile | None = None,
    ) -> None:
        self._file = file or (StdoutLines() if path == STDOUT else OutputFile(path, resume=resume))
        self._timing = timing
        self._camera = camera

    @classmethod
    def open(cls, opening: SinkOpening) -> JsonlSink:
        """Open the sink of a run."""
        return cls(opening.path, timing=opening.config.output.timing, resume=opening.resume)

    def write(self, event: Event) -> None:
        if isinstance(event, OF_FRAMES):
            return
        self._file.append(encode_event(event if self._timing else without_timing(event), self._camera) + "\n")
        if isinstance(event, Summary) and event.ended == "finished":
            self._file.catch_up()

    def close(self) -> None:
        self._file.close()
