"""Folder of pictures and videos of matches: own files only, limits of size and age, and valid files after any end."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stream.clock import AgingClock
from stream.config import Config
from stream.errors import ConfigError, OutputError
from stream.extensions.clips.section import ClipsSection
from stream.recording.clip_manifest import CLIP_NAME, MANIFEST, read_manifest
from stream.recording.mp4_boxes import whole_length
from stream.recording.writable import write_obstacle

PICTURE = ".jpg"
VIDEO = ".mp4"

PART = ".part"
"""Suffix of a file that is being written; its name begins with a dot."""

FILE_MODE = 0o600
FOLDER_MODE = 0o700
"""Clips show people: other users of the machine cannot read them."""

DELETED_MAX = 256
"""Number of deleted files after which the manifest is written anew."""


@dataclass(frozen=True, slots=True)
class _Entry:
    size_bytes: int
    unix_s: float


class ClipFolder:
    """Folder that one run writes clips into. It is made if the folder above it exists, or the one above that.

    A file has its name once it is complete, and stands in the manifest before that. Only files in the manifest are
    deleted: the oldest, if all together have more than `max_bytes` or they are older than `max_age_s`, by a clock that
    is trusted; None for no limit. Videos that a killed run has left unfinished are cut after their last whole fragment
    and kept. Nothing is written into a file that is a link, or has another name besides: it may be one of the user's.

    Raises OutputError if the folder cannot be written, or another run writes it.
    """

    def __init__(
        self,
        path: str,
        max_bytes: int | None = None,
        max_age_s: float | None = None,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._now_s = now_s
        self._deleted = 0
        self._entries: dict[str, _Entry] = {}
        self._open: set[ClipFile] = set()
        check_clip_folder(path)
        self._new_folders = [folder for folder in (self.path.parent, self.path) if not folder.exists()]
        try:
            for folder in self._new_folders:
                folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
            self._fd: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise OutputError(_refusal(path, error.strerror)) from error
        self._claim(path)
        self._finish_parts()
        self._read()
        newest_s = max((entry.unix_s for entry in self._entries.values()), default=None)
        self._clock = AgingClock(newest_s, path, monotonic_s)
        self.delete_old()

    @property
    def size_bytes(self) -> int:
        """Size of all files of the manifest, and of those that are being written."""
        return sum(entry.size_bytes for entry in self._entries.values()) + sum(file.size_bytes for file in self._open)

    def free_stem(self, stem: str) -> str:
        """Return a name without suffix that no file of the folder has: `stem`, or with a number after it."""
        names = set(os.listdir(self.folder_fd))
        number = 1
        free = stem
        while {free + PICTURE, free + VIDEO, part_of(free + PICTURE), part_of(free + VIDEO)} & names:
            number += 1
            free = f"{stem}-{number}"
        return free

    def create(self, name: str) -> ClipFile:
        """Return a new file of that name, to be written. Raises OSError."""
        assert CLIP_NAME.fullmatch(name), name
        # the manifest lists a file before it exists
        descriptor = _open_own(MANIFEST, os.O_RDWR | os.O_APPEND | os.O_CREAT, self.folder_fd)
        try:
            size = os.fstat(descriptor).st_size
            is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a killed run or a full disk
            line = (b"\n" if is_torn else b"") + name.encode() + b"\n"
            if os.write(descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
        file = ClipFile(self, name)
        self._open.add(file)
        return file

    def make_room(self, size_bytes: int) -> None:
        """Delete the oldest files until there is room for more bytes. Raises OSError if there is none."""
        while self._max_bytes is not None and self.size_bytes + size_bytes > self._max_bytes:
            if not self._entries:
                raise OSError(errno.EDQUOT, "it is larger than clips.max_mib")
            self._delete(next(iter(self._entries)))

    def delete_old(self) -> None:
        """Delete the files that are too old, and the oldest ones if all are too large."""
        if self._max_age_s is not None and self._clock.is_trusted(self._now_s()):
            before_s = self._now_s() - self._max_age_s
            for name in [name for name, entry in self._entries.items() if entry.unix_s < before_s]:
                self._delete(name)
        with suppress(OSError):
            self.make_room(0)

    def complete(self, file: ClipFile) -> None:
        """Count a file that has its final name."""
        self._open.discard(file)
        if file.size_bytes:
            self._entries[file.name] = _Entry(file.size_bytes, self._now_s())

    def close(self) -> None:
        """Release the folder; remove it if it was made and stayed empty. Files that are still open are discarded."""
        if self._fd is None:
            return
        for file in list(self._open):
            file.discard()
        if self._deleted:
            self._rewrite()
        if not self._entries and self._new_folders:
            with suppress(OSError):
                os.unlink(MANIFEST, dir_fd=self._fd)
            for folder in reversed(self._new_folders):
                with suppress(OSError):
                    folder.rmdir()
        os.close(self._fd)
        self._fd = None

    @property
    def folder_fd(self) -> int:
        """Descriptor of the folder, which stays the same if the folder is renamed."""
        assert self._fd is not None, "the folder is closed"
        return self._fd

    def _claim(self, path: str) -> None:
        try:
            fcntl.flock(self.folder_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.folder_fd)
            self._fd = None
            raise OutputError(
                f"another run is writing clips into {path!r}; wait until it has ended, or name another folder"
            ) from None
        except OSError:
            return  # a file system without locks

    def _finish_parts(self) -> None:
        """Complete the videos that a killed run was writing, and remove its pictures."""
        names = set(read_manifest(self.path))
        for name in names & {whole_name(part) for part in os.listdir(self.folder_fd)}:
            with suppress(OSError):
                unfinished = part_of(name)
                with os.fdopen(_open_own(unfinished, os.O_RDWR, self.folder_fd), "r+b") as file:
                    length = whole_length(file) if name.endswith(VIDEO) else 0
                    file.truncate(length)
                if length and not _exists(name, self.folder_fd):
                    os.rename(unfinished, name, src_dir_fd=self.folder_fd, dst_dir_fd=self.folder_fd)
                else:
                    os.unlink(unfinished, dir_fd=self.folder_fd)
        with suppress(OSError):
            os.unlink(MANIFEST + PART, dir_fd=self.folder_fd)

    def _read(self) -> None:
        """Read the manifest; forget the names of files that are gone."""
        names = read_manifest(self.path)
        entries = {}
        present = set(os.listdir(self.folder_fd))
        for name in filter(present.__contains__, names):
            with suppress(OSError):
                status = os.stat(name, dir_fd=self.folder_fd, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    entries[name] = _Entry(status.st_size, status.st_mtime)
        self._entries = dict(sorted(entries.items(), key=lambda item: item[1].unix_s))
        if len(entries) < len(names) or not self._has_own_manifest(present):
            self._rewrite()

    def _has_own_manifest(self, present: set[str]) -> bool:
        """Return False if a line that is added to the manifest would go into another file."""
        if MANIFEST not in present:
            return True
        with suppress(OSError):
            os.close(_open_own(MANIFEST, os.O_RDONLY, self.folder_fd))
            return True
        return False

    def _delete(self, name: str) -> None:
        """Delete a file of the manifest; one that is no longer a regular file stays."""
        del self._entries[name]
        with suppress(OSError):
            if stat.S_ISREG(os.stat(name, dir_fd=self.folder_fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=self.folder_fd)
        self._deleted += 1
        if self._deleted >= DELETED_MAX:
            self._rewrite()

    def _rewrite(self) -> None:
        """Replace the manifest by one of the files that are there. A manifest that cannot be written stays."""
        self._deleted = 0
        new = MANIFEST + PART
        names = [*self._entries, *(file.name for file in self._open)]
        with suppress(OSError):
            with suppress(FileNotFoundError):
                os.unlink(new, dir_fd=self.folder_fd)  # of a killed run, or a link
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(new, flags, FILE_MODE, dir_fd=self.folder_fd), "wb") as file:
                file.write("".join(f"{name}\n" for name in names).encode())
            os.rename(new, MANIFEST, src_dir_fd=self.folder_fd, dst_dir_fd=self.folder_fd)


class ClipFile:
    """File of a ClipFolder while it is written. A failed `append` leaves what was whole before it."""

    def __init__(self, folder: ClipFolder, name: str) -> None:
        self.name = name
        self.size_bytes = 0
        self._folder = folder
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd: int | None = os.open(part_of(name), flags, FILE_MODE, dir_fd=folder.folder_fd)

    def append(self, data: bytes) -> None:
        """Write more bytes. Raises OSError if there is no room for all of them, and writes none then."""
        assert self._fd is not None
        self._folder.make_room(len(data))
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self.size_bytes)
            raise
        self.size_bytes += len(data)

    def finish(self) -> str | None:
        """Give the file its name and return that; None if nothing was written, which leaves no file. Raises OSError."""
        if not self.size_bytes:
            self.discard()
            return None
        self._close()
        folder_fd = self._folder.folder_fd
        try:
            os.rename(part_of(self.name), self.name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except OSError:
            self.discard()
            raise
        self._folder.complete(self)
        return self.name

    def discard(self) -> None:
        """Remove the file."""
        self._close()
        with suppress(OSError):
            os.unlink(part_of(self.name), dir_fd=self._folder.folder_fd)
        self.size_bytes = 0
        self._folder.complete(self)

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def part_of(name: str) -> str:
    """Return the name that a file has while it is written."""
    return f".{name}{PART}"


def whole_name(part: str) -> str:
    """Return the name that a file will have; "" for names of other files."""
    if part.startswith(".") and part.endswith(PART):
        return part[1 : -len(PART)]
    return ""


def check(config: Config) -> None:
    """Raise ConfigError if there is nothing to write clips of, or the folder cannot be used."""
    if not config.watch and config.value("web.address") is None:  # the page's programs may add one
        raise ConfigError("--clips writes the moments of watches; give one, with --watch QUESTION, or give --web")
    check_clip_folder(ClipsSection.of(config).folder or "")


def check_clip_folder(path: str) -> None:
    """Raise OutputError if clips cannot be written into a folder, as far as can be checked without making it."""
    place = Path(path)
    if os.path.lexists(place):
        if not place.is_dir():
            raise OutputError(_refusal(path, "it is a file"))
        if (obstacle := write_obstacle(place, os.W_OK | os.X_OK)) is not None:
            raise OutputError(_refusal(path, obstacle))
        return
    above = next((folder for folder in (place.parent, place.parent.parent) if folder.is_dir()), None)
    if above is None:
        raise OutputError(f"cannot write clips into {path!r}: there is no folder {str(place.parent)!r}; make it first")
    if (obstacle := write_obstacle(above, os.W_OK | os.X_OK)) is not None:
        raise OutputError(_refusal(path, obstacle))


def _refusal(path: str, reason: str | None) -> str:
    return f"cannot write clips into {path!r}: {reason}; name another folder"


def _open_own(name: str, flags: int, folder_fd: int) -> int:
    """Return a descriptor of a regular file without another name, which O_CREAT makes. Raises OSError for others."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(name, flags, FILE_MODE, dir_fd=folder_fd)
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EMLINK, f"{name!r} is a link or no file")


def _exists(name: str, folder_fd: int) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
