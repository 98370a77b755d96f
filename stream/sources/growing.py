"""File that still grows, such as a recording that goes on: at its end, more is waited for."""

from __future__ import annotations

import time
from pathlib import Path
from typing import BinaryIO

from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.recording.mp4_boxes import file_boxes
from stream.sources.checks import check_file
from stream.sources.file import ReaderSource, WaitingReader
from stream.sources.segments import SegmentRecorder

WAIT_S = 0.05
"""Length of one wait for more, and between two checks of `should_stop`."""

_FORMS = "record MPEG-TS, Matroska or fragmented MP4 (ffmpeg -movflags +frag_keyframe+empty_moov)"


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
        outer_boxes = file_boxes(file)
        first = next(outer_boxes, None)
        if first is None or first.kind != b"ftyp":
            return
        index_or_data = next((box.kind for box in outer_boxes if box.kind in (b"moov", b"mdat")), None)
    if index_or_data == b"mdat":
        raise SourceError(
            f"{path} is an MP4 whose index (moov) is written when its recording ends, so it cannot be read while it "
            f"grows; wait for its end and leave --follow out, or {_FORMS}"
        )
