"""Standard input of the MCP server, in lines of bounded length: the library reads a line of any length into memory."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from stream.untrusted import MIB

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

LINE_BYTES_MAX = MIB
"""Longest line; a question of 4,000 escaped characters has 48 KB."""


class BoundedLines(io.RawIOBase):
    """Bytes of a descriptor; the end of each line that is too long is left out, so that it is no message any more."""

    def __init__(self, descriptor: int, line_bytes_max: int = LINE_BYTES_MAX) -> None:
        self._descriptor = descriptor
        self._line_bytes_max = line_bytes_max
        self._line_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        while data := os.read(self._descriptor, len(view)):
            bounded = b"".join(map(self._bound, io.BytesIO(data)))  # its lines end with \n alone
            if bounded:
                view[: len(bounded)] = bounded
                return len(bounded)
        return 0

    def _bound(self, part: bytes) -> bytes:
        """Return what is read of the next part of a line, which ends with it if its last byte is a line's end."""
        room = max(0, self._line_bytes_max - self._line_bytes)
        is_end = part.endswith(b"\n")
        self._line_bytes = 0 if is_end else self._line_bytes + len(part)
        if len(part) <= room:
            return part
        return part[:room] + (b"\n" if is_end else b"")


def bounded_stdin(descriptor: int = 0) -> io.TextIOWrapper:
    """Return standard input for the library, which reads the buffer below it."""
    return io.TextIOWrapper(io.BufferedReader(BoundedLines(descriptor)), encoding="utf-8", errors="replace")
