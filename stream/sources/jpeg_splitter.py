"""Finding JPEG pictures in a stream of bytes: pure buffer logic without I/O.

Source of the format: ITU-T T.81, Annex B. A picture is a sequence of marker segments; after a start of scan come
entropy-coded bytes, in which 0xFF is followed by 0x00 or a restart marker unless the scan has ended.
"""

from __future__ import annotations

import re

PICTURE_BYTES_MAX = 32 << 20
"""Largest picture; one of 8K in the best quality has less. A longer one is discarded."""

_BEGIN = b"\xff\xd8\xff"
"""Start of image, and the first byte of the next marker."""

_SCAN_END = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""A marker after entropy-coded bytes that is no restart marker."""

_START_OF_IMAGE = 0xD8
_END_OF_IMAGE = 0xD9
_START_OF_SCAN = 0xDA

_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})
"""Markers without a segment: for private use, and restart markers."""


class JpegSplitter:
    """Splitter of bytes into the JPEG pictures among them, whatever stands between two pictures.

    Segments are skipped by their lengths, so a thumbnail within a picture begins no other one. A picture that breaks
    off ends where the next one begins.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._in_picture = False
        self._has_picture = False
        self._at = 0
        self._in_scan = False

    @property
    def found_picture(self) -> bool:
        """True if a picture is complete, or what is read may be one."""
        return self._has_picture or self._in_picture

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes, and return the pictures that are complete with them."""
        self._buffer += data
        pictures = []
        while self._in_picture or self._begin():
            size = self._picture_size()
            if size is None:
                break
            if size:
                self._has_picture = True
                pictures.append(bytes(self._buffer[:size]))
            self._discard(size or len(_BEGIN) - 1)
        if len(self._buffer) > PICTURE_BYTES_MAX:
            self._discard(len(self._buffer))
        return pictures

    def _discard(self, count: int) -> None:
        del self._buffer[:count]
        self._in_picture = False

    def _begin(self) -> bool:
        """Discard what stands before the next picture; return False if there is none."""
        begin = self._buffer.find(_BEGIN)
        if begin < 0:
            del self._buffer[: max(0, len(self._buffer) - len(_BEGIN) + 1)]
            return False
        del self._buffer[:begin]
        self._in_picture = True
        self._in_scan = False
        self._at = len(_BEGIN) - 1
        return True

    def _picture_size(self) -> int | None:
        """Return the size in bytes of the picture that the buffer begins with; 0 if it is none, None if bytes are
        missing."""
        buffer = self._buffer
        while True:
            if self._in_scan and not self._skip_scan():
                return None
            if self._at + 2 > len(buffer):
                return None
            if buffer[self._at] != 0xFF:
                return 0
            kind = buffer[self._at + 1]
            if kind == _END_OF_IMAGE:
                return self._at + 2
            if kind == _START_OF_IMAGE:
                return self._at
            if kind == 0xFF:  # a fill byte
                self._at += 1
            elif kind in _WITHOUT_LENGTH:
                self._at += 2
            elif self._at + 4 > len(buffer):
                return None
            else:
                self._at += 2 + int.from_bytes(buffer[self._at + 2 : self._at + 4], "big")
                self._in_scan = kind == _START_OF_SCAN

    def _skip_scan(self) -> bool:
        """Move to the marker that ends the scan; return False if more bytes are needed."""
        end = _SCAN_END.search(self._buffer, self._at)
        if end is None:
            # the last byte may be the first one of the marker
            self._at = max(self._at, len(self._buffer) - 1)
            return False
        self._at = end.start()
        self._in_scan = False
        return True
