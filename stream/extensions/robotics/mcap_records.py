"""Records of MCAP files (https://mcap.dev/spec), as far as needed to end a file after a failed write."""

from __future__ import annotations

import logging
import os
import struct
from contextlib import suppress
from typing import BinaryIO

MAGIC = b"\x89MCAP0\r\n"

RECORD = struct.Struct("<BQ")
"""Header of a record: opcode, and length of its content in bytes."""

DATA_END = 0x0F

ENDING = RECORD.pack(DATA_END, 4) + bytes(4) + RECORD.pack(0x02, 20) + bytes(20) + MAGIC
"""Ending of a file without an index: the record of the data's end, the footer, the magic bytes."""

log = logging.getLogger(__name__)


class RecordFile:
    """File for an MCAP writer that only appends. After the first failed write, whose error is `error`, writes are
    ignored, and closing the file leaves its whole records as a complete file without an index.

    Raises OSError if it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self._file: BinaryIO = open(path, "w+b", buffering=0)  # noqa: SIM115
        self._size_bytes = 0
        self.error: OSError | None = None

    def write(self, data: bytes | bytearray) -> int:
        if self.error is None:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[self._file.write(rest) :]
            except OSError as error:
                log.debug("an MCAP file can no longer be written", exc_info=True)
                self.error = error
        self._size_bytes += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Return the position; the writer asks for it and never moves it."""
        return self._size_bytes

    def flush(self) -> None:
        """Do nothing: the file is unbuffered."""

    def close(self) -> None:
        """Close the file; after a failed write, complete it first."""
        if self._file.closed:
            return
        with self._file:
            if self.error is not None:
                with suppress(OSError):
                    end_records(self._file.fileno())


def end_records(fd: int) -> bool:
    """End an MCAP file without an index after its last whole record; return whether a record follows the header.

    If the disk has no room for the ending, records are removed for it. Raises OSError.
    """
    size = os.fstat(fd).st_size
    at = len(MAGIC)
    ends: list[int] = []
    while len(head := os.pread(fd, RECORD.size, at)) == RECORD.size:
        opcode, length = RECORD.unpack(head)
        at += RECORD.size + length
        if opcode == DATA_END or at > size:
            break
        ends.append(at)
    while ends:
        os.ftruncate(fd, ends[-1])
        try:
            _write_at(fd, ENDING, ends.pop())
        except OSError:
            if not ends:
                raise
        else:
            return bool(ends)
    return False


def _write_at(fd: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(fd, rest, at)
        rest = rest[count:]
        at = at + count
