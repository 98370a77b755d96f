"""Records in a file that may end in the middle of one.

Each is its length and CRC-32 (little-endian uint32 both), then the payload, which is never empty: zeros are what a file
ends with where a machine went down before the disk had all of it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

FRAMING = struct.Struct("<II")


def framed(payload: bytes) -> bytes:
    """The payload as it stands in a file."""
    return FRAMING.pack(len(payload), zlib.crc32(payload)) + payload


def read_framed(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """The payload of each whole record from the file's position on, and where it ends.

    Stops before the first one that was cut short or damaged, and at the end.
    """
    start = end = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(start)
    while end + FRAMING.size <= size:
        length, check = FRAMING.unpack(file.read(FRAMING.size))
        end += FRAMING.size + length
        if not length or end > size:
            return
        payload = file.read(length)
        if zlib.crc32(payload) != check:
            return
        yield payload, end
