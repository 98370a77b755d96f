"""`RecordLog`: append-only file of length+CRC records, locked, torn tail dropped; used by journal and recording.

Each is its length and CRC-32 (little-endian uint32 both), then the payload, which is never empty: zeros are what a file
ends with where a machine went down before the disk had all of it.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stream.untrusted import RECORD_BYTES_MAX

FRAMING = struct.Struct("<II")


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading. Raises OSError where it is none: a pipe or a device could keep its reader for ever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "it is not a file")
    return os.fdopen(descriptor, "rb")


def framed(payload: bytes) -> bytes:
    """The payload as it stands in a file."""
    return FRAMING.pack(len(payload), zlib.crc32(payload)) + payload


def read_framed(file: BinaryIO, most_bytes: int = RECORD_BYTES_MAX) -> Iterator[tuple[bytes, int]]:
    """The payload of each whole record from the file's position on, and where it ends.

    Stops before the first one that was cut short or damaged or has more than `most_bytes`, and at the end.
    """
    start = end = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(start)
    while end + FRAMING.size <= size:
        length, check = FRAMING.unpack(file.read(FRAMING.size))
        end += FRAMING.size + length
        if not length or length > most_bytes or end > size:
            return
        payload = file.read(length)
        if zlib.crc32(payload) != check:
            return
        yield payload, end
