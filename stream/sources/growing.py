"""File that still grows, such as a recording that goes on: at its end, more is waited for."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import BinaryIO

from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.checks import check_file
from stream.sources.file import ReaderSource, WaitingReader
from stream.sources.segments import SegmentRecorder

WAIT_S = 0.05
"""Length of one wait for more, and between two checks of `should_stop`."""

_FORMS = "record MPEG-TS, Matroska or fragmented MP4 (ffmpeg -movflags +frag_keyframe+empty_moov)"

_BOX_BYTES = 8
"""Bytes of a box's size and type in MP4 (ISO/IEC 14496-12)."""


class GrowingReader(WaitingReader):
    """Growing file as an input of FFmpeg, without seeking: a file's end is no place to seek from while it moves."""

    def __init__(self, path: Path, idle_s: float) -> None:
        """Open the file, which ends once it has not grown for `idle_s`. Raises OSError."""
        super().__init__()
        self._path = path
        self._waits_max = max(round(idle_s / WAIT_S), 1)
        self._ended = False
        self._file: BinaryIO = path.open("rb", buffering=0)

    def read_some(self, size: int) -> bytes:
        if self._ended:  # FFmpeg asks again after an end
            return b""
        for _ in range(self._waits_max):
            if data := self._file.read(size):
                return data
            if self.should_stop():
                self.stopped = True
                return b""
            self.wait()
        data = self._file.read(size)
        self._ended = not data
        return data

    def close(self) -> None:
        self._file.close()

    def wait(self) -> None:
        """Wait for the writer, once."""
        time.sleep(WAIT_S)

    def unreadable(self, reason: str) -> SourceError:
        if not self.bytes_read:
            return SourceError(f"{self._path} is still empty; check that something records into it")
        return SourceError(f"{self._path} is not a video that FFmpeg can read while it grows: {reason}; {_FORMS}")


class GrowingFileSource(ReaderSource):
    """Video file that grows: read as any file, until it has not grown for `capture.follow_idle_s`."""

    _remedy = _FORMS

    def __init__(
        self, path: Path, config: CaptureConfig, clock: Clock, segments: SegmentRecorder | None = None
    ) -> None:
        """Wait for the first frame.

        Raises SourceNotFound, SourceError, or ConfigError for a `capture.size` that is too large.
        """
        if path.stat().st_size:  # the recording of an empty file has just begun
            check_file(path, config.max_pixels)
        check_readable_while_growing(path)
        super().__init__(GrowingReader(path, config.follow_idle_s), str(path), config, clock, segments)


def check_readable_while_growing(path: Path) -> None:
    """Raise SourceError for an MP4 whose index is written at the end of its recording."""
    with path.open("rb") as file:
        kinds = []
        while len(head := file.read(_BOX_BYTES)) == _BOX_BYTES:
            size, kind = struct.unpack(">I4s", head)
            kinds.append(kind)
            if size < _BOX_BYTES or kind in (b"moov", b"mdat"):
                break
            file.seek(size - _BOX_BYTES, os.SEEK_CUR)
    if kinds[:1] == [b"ftyp"] and kinds[-1] == b"mdat":
        raise SourceError(
            f"{path} is an MP4 whose index (moov) is written when its recording ends, so it cannot be read while it "
            f"grows; wait for its end and leave --follow out, or {_FORMS}"
        )
