"""Standard input: a video that another program writes, `ffmpeg … -f mpegts - | run_stream.py caption -`."""

from __future__ import annotations

import io
import logging
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator

import av

from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.base import SkippedItem, SourceFrame, never
from stream.sources.container import TEXT_DEMUXERS
from stream.sources.file import ContainerSource
from stream.sources.limits import file_options

NAME = "standard input"

WAIT_MS = 50
"""Longest single wait for data, before the reader looks whether it shall stop."""

SAY_WAITING_S = 3.0
"""After so long without a first byte the user is told what is waited for."""

REMEDY = "send MPEG-TS or Matroska, or an MP4 with its index in front (-movflags +faststart)"

log = logging.getLogger(__name__)


class StdinSource(ContainerSource):
    """The container that comes in on a descriptor, read to its end without seeking; a redirected file may seek."""

    _remedy = REMEDY

    def __init__(self, config: CaptureConfig, clock: Clock, descriptor: int = 0) -> None:
        """Waits for the first frame. Raises SourceError, or ConfigError for a `capture.size` beyond measure."""
        self._reader = _reader(descriptor)
        try:
            container = av.open(self._reader, options=file_options(config), metadata_errors="replace")
        except av.FFmpegError as error:
            raise _unreadable(self._reader, error.strerror or str(error)) from error
        if container.format.name in TEXT_DEMUXERS:
            container.close()
            raise _unreadable(self._reader, "it looks like text")
        super().__init__(container, NAME, config, clock)

    def frames(self, should_stop: Callable[[], bool] = never) -> Iterator[SourceFrame]:
        """As for a file; where `should_stop` says so, a wait for the writer counts as the end."""
        self._reader.should_stop = should_stop
        return super().frames(should_stop)

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        """As for a file; nothing is missing at an end that was asked for."""
        return () if self._reader.stopped else super().trailing_skipped()


class PipeReader:
    """What FFmpeg reads from: waits for the writer in slices, and reports an end once it shall stop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        self.should_stop: Callable[[], bool] = never
        self.stopped = False
        self.bytes_read = 0

    def read(self, size: int) -> bytes:
        """Up to `size` bytes as soon as there are some; none at the end."""
        since, told = time.monotonic(), False
        while not self.stopped:
            if self._poll.poll(WAIT_MS):
                data = os.read(self._descriptor, size)
                self.bytes_read += len(data)
                return data
            self.stopped = self.should_stop()
            if not self.bytes_read and not told and time.monotonic() - since > SAY_WAITING_S:
                log.warning("waiting for a video on standard input")
                told = True
        return b""


class FileReader(PipeReader):
    """The same for a file that was redirected, in which FFmpeg may seek."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def tell(self) -> int:
        return os.lseek(self._descriptor, 0, io.SEEK_CUR)


def _reader(descriptor: int) -> PipeReader:
    """The reader of a descriptor. Raises SourceError where nothing can come from it."""
    try:
        mode = None if descriptor == 0 and sys.stdin is None else os.fstat(descriptor).st_mode
    except OSError:
        mode = None
    if mode is None or stat.S_ISDIR(mode):
        raise SourceError(f"{NAME} is {'a folder' if mode else 'closed'}; pipe a video into it: cat a.ts | ...")
    if os.isatty(descriptor):
        raise SourceError(f"{NAME} is the terminal; pipe a video into it: cat a.ts | ...")
    return FileReader(descriptor) if stat.S_ISREG(mode) else PipeReader(descriptor)


def _unreadable(reader: PipeReader, reason: str) -> SourceError:
    if not reader.bytes_read:
        return SourceError(f"{NAME} ended without any data; does the program that writes it work?")
    return SourceError(f"{NAME} is no video that FFmpeg can read from a pipe: {reason}; {REMEDY}")
