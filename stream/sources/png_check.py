"""How large a PNG file unfolds, before FFmpeg takes memory for it: its picture, and its compressed metadata.

PNG (ISO/IEC 15948): IHDR begins with width and height; zTXt and iCCP are a keyword, a zero byte, the method of
compression, and data in zlib's form, of which a megabyte may unfold to a gigabyte.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

from stream.errors import SourceError

SCALE_DOWN = "scale it down, or raise capture.max_pixels"

SIGNATURE = b"\x89PNG\r\n\x1a\n"

METADATA_MAX_BYTES = 16 << 20
"""All unfolded metadata of a file; a colour profile of a printing press has two or three MB."""

_COMPRESSED = (b"zTXt", b"iCCP")


def check_png(path: Path, max_pixels: int) -> None:
    """Raises SourceError for a PNG of more than `max_pixels`, or whose metadata unfold to more than
    `METADATA_MAX_BYTES`; other files pass."""
    try:
        with path.open("rb") as file:
            if file.read(len(SIGNATURE)) != SIGNATURE:
                return
            size, metadata_bytes = _size_px(file), _unfolded_bytes(file)
    except OSError:
        return  # who opens it says what is wrong with it
    if size[0] * size[1] > max_pixels:
        raise SourceError(f"{path} has {size[0]}x{size[1]} pixels, {more_than(max_pixels)}; {SCALE_DOWN}")
    if metadata_bytes > METADATA_MAX_BYTES:
        raise SourceError(
            f"{path} has metadata of more than {METADATA_MAX_BYTES >> 20} MB, which a picture has no use for; save the "
            "picture again without them"
        )


def more_than(max_pixels: int) -> str:
    return f"more than capture.max_pixels = {max_pixels}"


def _size_px(file: BinaryIO) -> tuple[int, int]:
    """Width and height; the file stands behind its signature afterwards, as before."""
    head = file.read(16)
    file.seek(len(SIGNATURE))
    return struct.unpack(">8xII", head) if len(head) == 16 and head[4:8] == b"IHDR" else (0, 0)


def _unfolded_bytes(file: BinaryIO) -> int:
    """How long the metadata are, counted no further than the limit."""
    total = 0
    while total <= METADATA_MAX_BYTES and len(head := file.read(8)) == 8:
        length, kind = struct.unpack(">I4s", head)
        if kind not in _COMPRESSED:
            file.seek(length + 4, os.SEEK_CUR)
            continue
        data = file.read(min(length, METADATA_MAX_BYTES + 1))
        file.seek(length - len(data) + 4, os.SEEK_CUR)
        total += max(len(data), _unfolded(data.partition(b"\0")[2][1:], METADATA_MAX_BYTES + 1 - total))
    return total


def _unfolded(data: bytes, most: int) -> int:
    try:
        return len(zlib.decompressobj().decompress(data, most))
    except zlib.error:
        return 0
