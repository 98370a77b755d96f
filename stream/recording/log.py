"""Append-only file of records, read up to the first incomplete or damaged one.

A file is `magic`, then records. Each is its length and CRC-32 (little-endian uint32 both), then the payload, which is
never empty: a file ends with zeros if the machine crashed before all data reached the disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from stream.untrusted import RECORD_BYTES_MAX

FRAMING = struct.Struct("<II")


class ForeignFile(ValueError):
    """File without the magic of the log that was expected; `start`: its first bytes."""

    def __init__(self, start: bytes) -> None:
        super().__init__(f"it begins with {start!r}")
        self.start = start


def frame_record(payload: bytes) -> bytes:
    """Return the payload with its header, as written to a file."""
    return FRAMING.pack(len(payload), zlib.crc32(payload)) + payload


class RecordLog:
    """File of records at `path`, for one thread: read with `records`, then opened to append after the records read.

    `end` is the offset of the last whole record's end, 0 if the magic is missing. `durable`: each record is on the
    disk when `append` returns. Records of more than `most_bytes` count as damage.
    """

    def __init__(self, path: Path, magic: bytes, *, durable: bool = False, most_bytes: int = RECORD_BYTES_MAX) -> None:
        self.path = path
        self.magic = magic
        self.end = 0
        self._durable = durable
        self._most_bytes = most_bytes
        self._size = 0
        self._fd: int | None = None
        self._status: os.stat_result | None = None

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`."""
        return self._fd is not None

    @property
    def torn_bytes(self) -> int:
        """Bytes after the last whole record that was read."""
        return self._size - self.end

    @property
    def is_in_place(self) -> bool:
        """Return True if the file that `open` opened is still at `path`."""
        with suppress(OSError):
            return self._status is not None and os.path.samestat(self.path.lstat(), self._status)
        return False

    def records(self) -> Iterator[bytes]:
        """Yield the payload of each whole record.

        Raises ForeignFile if the file does not begin with the magic, OSError if it cannot be read.
        """
        self.end = 0
        with _open_regular(self.path) as file:
            self._size = os.fstat(file.fileno()).st_size
            start = file.read(len(self.magic))
            if not self.magic.startswith(start):
                raise ForeignFile(start)
            if start != self.magic:
                return
            self.end = len(self.magic)
            while self.torn_bytes >= FRAMING.size:
                length, check = FRAMING.unpack(file.read(FRAMING.size))
                if not 0 < length <= min(self._most_bytes, self.torn_bytes - FRAMING.size):
                    return
                payload = file.read(length)
                if zlib.crc32(payload) != check:
                    return
                self.end += FRAMING.size + length
                yield payload

    def open(self, *, new: bool = False) -> None:
        """Open the file to append after `end`, and truncate it there. `new`: the file must not exist.

        Raises BlockingIOError if another process has it open, OSError if it cannot be written or is another file.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if new else 0)
        self._fd = os.open(self.path, flags, 0o666)
        try:
            status = os.fstat(self._fd)
            if stat.S_ISREG(status.st_mode):
                start = os.pread(self._fd, len(self.magic), 0)
            else:
                start = None
            if start is None or not self.magic.startswith(start):
                raise OSError(0, "there is something else of that name")
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._status = status
            self._cut_off()
            if not self.end:
                self._write(self.magic)
        except OSError:
            self.close()
            raise

    def append(self, payload: bytes) -> None:
        """Write a record. Raises OSError if there is no room for all of it, in which case nothing is written, or if the
        file was removed."""
        self._write(frame_record(payload))

    def close(self) -> None:
        """Close the file and keep it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def remove(self) -> None:
        """Close the file, and remove it if it is still the one that `open` opened."""
        if self.is_in_place:
            with suppress(OSError):
                self.path.unlink()
        self.close()

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            if self._durable:
                os.fsync(self._fd)
            if os.fstat(self._fd).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "its file was removed")
        except OSError:
            with suppress(OSError):
                self._cut_off()
            raise
        self.end += len(data)

    def _cut_off(self) -> None:
        """Truncate the file to `end`."""
        assert self._fd is not None
        os.ftruncate(self._fd, self.end)
        os.lseek(self._fd, self.end, os.SEEK_SET)


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. Raises OSError for others: a pipe or a device could block its reader forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a file")
    return os.fdopen(descriptor, "rb")
