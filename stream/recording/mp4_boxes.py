"""Boxes of MP4 (ISO/IEC 14496-12), in memory and in files; of fragmented MP4 the header, whole fragments, and the times
that fragments begin at."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

_BOX = struct.Struct(">I4s")
_LARGE = struct.Struct(">Q")

BOXES_MAX = 65_536
"""Most boxes of a file that are looked at; a video of two minutes with a fragment a frame has 15,000."""


class Mp4Box(NamedTuple):
    """Box in a buffer or a file: its type, its begin, the begin of its content, and its end."""

    kind: bytes
    start: int
    content: int
    end: int


def boxes(data: bytes | bytearray | memoryview, start: int = 0, end: int | None = None) -> Iterator[Mp4Box]:
    """Yield the boxes between two offsets, without those inside them. The last one may end beyond the data."""
    end = len(data) if end is None else end
    while start + _BOX.size <= end:
        size, kind = _BOX.unpack_from(data, start)
        content = start + _BOX.size
        if size == 1 and content + _LARGE.size <= end:
            size = _LARGE.unpack_from(data, content)[0]
            content = content + _LARGE.size
        if size < content - start:  # to the end of the file (0), or damaged
            size = end - start
        yield Mp4Box(kind, start, content, start + size)
        start += size


def file_boxes(file: BinaryIO) -> Iterator[Mp4Box]:
    """Yield at most BOXES_MAX boxes of a file, without those inside them. The last one may end beyond the file.

    Only their headers are read. The file may be read between two boxes.
    """
    file_end = file.seek(0, os.SEEK_END)
    start = 0
    for _ in range(BOXES_MAX):
        file.seek(start)
        box = next(boxes(file.read(_BOX.size + _LARGE.size), 0, file_end - start), None)
        if box is None:
            break
        yield Mp4Box(box.kind, start, start + box.content, start + box.end)
        start = min(start + box.end, file_end)  # a damaged size may be more than can be sought


def header_length(data: bytes) -> int:
    """Return the length of the initialization section that a file begins with."""
    return next((box.start for box in boxes(data) if box.kind not in (b"ftyp", b"moov")), len(data))


def whole_length(file: BinaryIO) -> int:
    """Return the length of a file up to the end of its last whole fragment; 0 without one."""
    file_end = file.seek(0, os.SEEK_END)
    length = 0
    follows = False
    for box in file_boxes(file):
        if box.kind not in (b"ftyp", b"moov", b"moof", b"mdat") or box.end > file_end:
            break
        if box.kind == b"mdat" and follows:
            length = box.end
        follows = box.kind == b"moof"
    return length


def begin_ticks(data: bytes) -> int:
    """Return the time at which the first packet of a fragment is decoded, in the track's ticks. Raises ValueError."""
    for at, form in _decode_times(data):
        return int(form.unpack_from(data, at)[0])
    raise ValueError("the fragment has no decode time (tfdt)")


def earlier(data: bytes, ticks: int) -> bytes:
    """Return fragments whose packets are decoded so many ticks earlier."""
    buffer = bytearray(data)
    for at, form in _decode_times(data):
        form.pack_into(buffer, at, form.unpack_from(data, at)[0] - ticks)
    return bytes(buffer)


def _decode_times(data: bytes) -> Iterator[tuple[int, struct.Struct]]:
    """Yield offset and form of each base media decode time (tfdt)."""
    for moof in boxes(data):
        if moof.kind == b"moof":
            for traf in boxes(data, moof.content, moof.end):
                if traf.kind == b"traf":
                    for box in boxes(data, traf.content, traf.end):
                        if box.kind == b"tfdt":
                            yield box.content + 4, struct.Struct(">Q" if data[box.content] else ">I")
