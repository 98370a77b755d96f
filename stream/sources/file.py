"""Sources of containers with an end: a file, an episode within a file, and standard input."""

from __future__ import annotations

import io
import logging
import os
import select
import stat
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av

from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import SkippedItem, Source, SourceFrame, SourceInfo, never_stop
from stream.sources.checks import SCALE_DOWN, TimeRange
from stream.sources.connection import file_options, too_large
from stream.sources.decoder import (
    TEXT_DEMUXERS,
    VideoDecoder,
    begin_near,
    declared_end_ns,
    duration_ns_of,
    open_container,
    source_info,
    timeline_of,
)
from stream.sources.fit import FrameFitter, FrameFormat
from stream.sources.hardware import HardwareDecoding
from stream.sources.planes import shown_size, to_planes
from stream.sources.segments import SegmentRecorder
from stream.sources.timing import MediaTimeline
from stream.sources.variants import chosen_stream

log = logging.getLogger(__name__)


class ContainerSource(Source):
    """Video stream of an open container, read from its first frame to its last.

    The first frame is decoded on opening, so that a container without frames fails at once.
    """

    _remedy = "check the file, or convert it"

    def __init__(
        self,
        container: av.container.InputContainer,
        name: str,
        config: CaptureConfig,
        clock: Clock,
        hardware: HardwareDecoding | None = None,
        part: TimeRange | None = None,
        segments: SegmentRecorder | None = None,
    ) -> None:
        """Take ownership of the container; read `part` of it, by default the configured range, and pass its packets to
        `segments`.

        Raises SourceError, or ConfigError for a `capture.size` that is too large.
        """
        self._segments = segments
        self._container = container
        self._name = name
        self._max_frames = config.max_frames
        self._max_pixels = config.max_pixels
        self._part = part or TimeRange.of(config)
        self._clock = clock
        self._trailing: tuple[SkippedItem, ...] = ()
        try:
            self._fit = FrameFitter.of(config)
            self._stream = chosen_stream(self._container, self._name, config)
            self._timeline = timeline_of(self._container, self._stream)
            self._declared_ns = self._part.limit_ns or declared_end_ns(self._container, self._stream)
            if segments is not None:
                segments.connect(self._stream)
            self._decoder = VideoDecoder(self._container, self._stream, self._timeline, config, segments)
            self._decoded = self._decoder.frames()
            self._first = self._decode_first()
            self._info = source_info(
                name,
                self._stream,
                self._first,
                shown_size(self._first, self._decoder.aspect),
                live=False,
                duration_ns=duration_ns_of(container, self._stream),
                frames=self._stream.frames or None,
                device=None if hardware is None else hardware.device_of(self._stream),
            )
        except BaseException:
            self._container.close()
            raise

    @property
    def timeline(self) -> MediaTimeline:
        """Clock of the stream, with its counts of made and clamped PTS."""
        return self._timeline

    def describe(self) -> SourceInfo:
        """Return the properties that the container declares and the first frame has."""
        return self._info

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame]:
        """Yield the frames in presentation order; to be called once.

        Raises SourceError if a frame has a pixel format that cannot be converted, or a shape that cannot be scaled
        as configured.
        """
        frame: av.VideoFrame | None = self._first
        index = 0
        previous = None
        while frame is not None:
            capture_ns = self._clock.now_ns()
            losses = self._in_part(self._decoder.lost_before(frame.pts))
            media_ns = self._timeline.next_ns(frame.pts)
            if self._segments is not None:
                self._segments.shown(frame, media_ns)
            if self._part.ended_by(media_ns):
                return
            planes = to_planes(frame, self._fit, self._name, self._decoder.aspect, self._decoder.deinterlacer.reach_px)
            form = FrameFormat.of((frame.height, frame.width), planes)
            duration_ns = self._duration_ns(frame, media_ns)
            change = form.change_since(previous)
            shown_ns = self._shifted_ns(media_ns)
            yield SourceFrame(index, shown_ns, capture_ns, planes, change, losses, duration_ns)
            previous = form
            index += 1
            if index == self._max_frames:
                return
            last = frame
            frame = next(self._decoded, None)
        # the last frame lasts its packet's duration, at least one period
        duration_s = (last.duration or 0) * (self._stream.time_base or 0)
        missing = self._missing_end(media_ns + int(max(duration_s, self._timeline.period) * NS_PER_S))
        self._trailing = self._in_part(self._decoder.lost_after_last() + missing)

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        """Return the losses after the last good frame; none if `max_frames` ended the run before the file did."""
        return self._trailing

    def repaired_pts(self) -> tuple[int, int]:
        """Return the numbers of made and of clamped PTS."""
        return self._timeline.made_pts, self._timeline.clamped_pts

    def close(self) -> None:
        """Close the file; yielded frames stay valid."""
        self._container.close()

    def _decode_first(self) -> av.VideoFrame:
        if self._part.start_ns:
            first = self._first_after_start()
        else:
            first = next(self._decoded, None)
        if first is None:
            losses = self._decoder.lost_after_last()
            if losses:
                reason = f"{losses[0].what}: {losses[0].reason}"
            else:
                reason = "it holds none"
            if self._part.start_ns:
                if losses:
                    instead = f", or cannot be decoded from there on ({reason})"
                else:
                    instead = ""
                raise self._part.empty(self._name, None if losses else self._declared_ns, instead)
            raise SourceError(self._nothing_decoded(reason))
        if self._part.ended_by(self._media_ns(first, missing_ns=self._part.start_ns)):
            raise self._part.empty(self._name, self._declared_ns)
        return first

    def _nothing_decoded(self, reason: str) -> str:
        """Return the error message for a source without a single decodable frame, with the remedy."""
        if too_large(self._max_pixels) in reason:
            remedy = SCALE_DOWN
        else:
            remedy = self._remedy
        return f"no frame of {self._name} can be decoded ({reason}); {remedy}"

    def _first_after_start(self) -> av.VideoFrame | None:
        """Return the first frame at or after `capture.start_s`.

        A container that cannot seek there is read from its beginning. So is a stream without times, by counting frames.
        """
        if self._stream.start_time is None:
            period_ns = self._timeline.period * NS_PER_S
            passed_ns = Fraction(0)
            frame = next(self._decoded, None)
            while frame is not None and self._media_ns(frame, missing_ns=int(passed_ns)) < self._part.start_ns:
                self._timeline.next_ns(frame.pts)
                passed_ns += period_ns
                frame = next(self._decoded, None)
            return frame
        start_ns = self._part.start_ns
        # seek this many seconds before `capture.start_s`, then read from the beginning: a seek in a container without
        # an index, such as MPEG-TS, may end behind the key frame that is needed
        for begin_ns in (*(start_ns - rewind_s * NS_PER_S for rewind_s in (0, 2, 20)), None):
            begin_near(self._container, self._stream, begin_ns)
            self._decoded = self._decoder.frames()
            first = next(self._decoded, None)
            if first is not None and self._media_ns(first, missing_ns=start_ns + 1) <= start_ns:
                break
        while first is not None and self._media_ns(first, missing_ns=start_ns) < start_ns:
            first = next(self._decoded, None)
        if first is not None:
            self._decoder.lost_before(first.pts)  # losses before the start are not reported
        return first

    def _shifted_ns(self, media_ns: int) -> int:
        """Convert a media time of the container to media time of the source."""
        return max(0, media_ns - self._part.origin_ns)

    def _in_part(self, losses: tuple[SkippedItem, ...]) -> tuple[SkippedItem, ...]:
        """Return losses with media times of the source."""
        if not self._part.origin_ns:
            return losses
        return tuple(
            item if item.media_ns is None else replace(item, media_ns=self._shifted_ns(item.media_ns))
            for item in losses
        )

    def _media_ns(self, frame: av.VideoFrame, *, missing_ns: int) -> int:
        """Return the media time of a frame; `missing_ns` if it has no PTS."""
        media_ns = self._timeline.at_ns(frame.pts)
        return missing_ns if media_ns is None else media_ns

    def _duration_ns(self, frame: av.VideoFrame, media_ns: int) -> int:
        """Return the duration of a frame: its packet's or one period, limited to the stream's declared end."""
        duration_ns = int((frame.duration or 0) * (self._stream.time_base or 0) * NS_PER_S)
        if duration_ns <= 0:
            duration_ns = int(self._timeline.period * NS_PER_S)
        if self._declared_ns is not None and self._declared_ns > media_ns:
            duration_ns = min(duration_ns, self._declared_ns - media_ns)
        return duration_ns

    def _missing_end(self, end_ns: int) -> tuple[SkippedItem, ...]:
        declared_ns = self._declared_ns
        # tolerance between the declared and the actual end: containers round and count differently
        if declared_ns is None or declared_ns - end_ns <= NS_PER_S // 2:
            return ()
        missing = f"the last {(declared_ns - end_ns) / NS_PER_S:.2f} s"
        reason = f"the file ends early: it declares {declared_ns / NS_PER_S:.2f} s"
        return (SkippedItem(missing, reason, end_ns),)


class FileSource(ContainerSource):
    """Source of one video file."""

    def __init__(
        self, path: Path, config: CaptureConfig, clock: Clock, segments: SegmentRecorder | None = None
    ) -> None:
        """Raise SourceNotFound, SourceError, or ConfigError for a `capture.size` that is too large."""
        hardware = HardwareDecoding(config, str(path))
        super().__init__(open_container(path, config, hardware), str(path), config, clock, hardware, segments=segments)


NAME = "standard input"

WAIT_MS = 50
"""Longest single wait for data between two checks of `should_stop`."""

SAY_WAITING_S = 3.0
"""Time without a first byte after which a message reports the wait."""

REMEDY = "send MPEG-TS or Matroska, or an MP4 with its index in front (-movflags +faststart)"


class ReaderSource(ContainerSource):
    """Container that is read through a Python object to its end, which may wait for a writer."""

    def __init__(
        self, reader: WaitingReader, name: str, config: CaptureConfig, clock: Clock, segments: SegmentRecorder | None
    ) -> None:
        """Wait for the first frame.

        Args:
            reader: Reader of the container's bytes.
            name: Name of the source in messages.
            config: Options of the capture.
            clock: Clock of the capture times.
            segments: Recorder of the source's video.

        Raises:
            SourceError: If the bytes are no video.
            ConfigError: If `capture.size` is too large.
        """
        self._reader = reader
        hardware = HardwareDecoding(config, name)
        try:
            container = av.open(
                reader, options=file_options(config), metadata_errors="replace", hwaccel=hardware.accelerator
            )
            if container.format.name in TEXT_DEMUXERS:
                container.close()
                raise reader.unreadable("it looks like text")
            super().__init__(container, name, config, clock, hardware, segments=segments)
        except BaseException as error:
            reader.close()
            if reader.interrupted:
                raise KeyboardInterrupt from error
            if isinstance(error, av.FFmpegError):
                raise reader.unreadable(error.strerror or str(error)) from error
            raise
        if reader.interrupted:
            self.close()
            raise KeyboardInterrupt

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame]:
        """Yield frames as for a file; if `should_stop` returns True, a wait for the writer counts as the end."""
        self._reader.should_stop = should_stop
        return super().frames(should_stop)

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        """Return losses as for a file; none after a requested stop."""
        if self._reader.stopped:
            return ()
        return super().trailing_skipped()

    def close(self) -> None:
        """Close the container and its reader; yielded frames stay valid."""
        super().close()
        self._reader.close()


class StdinSource(ReaderSource):
    """Container from a descriptor, read to its end without seeking; a redirected file may seek."""

    _remedy = REMEDY

    def __init__(
        self, config: CaptureConfig, clock: Clock, descriptor: int = 0, segments: SegmentRecorder | None = None
    ) -> None:
        """Wait for the first frame. Raises SourceError, or ConfigError for a `capture.size` that is too large."""
        super().__init__(_reader(descriptor), NAME, config, clock, segments)


class WaitingReader(ABC):
    """Input of FFmpeg that waits for a writer in slices, and reports the end once `should_stop` is True."""

    def __init__(self) -> None:
        self.should_stop: Callable[[], bool] = never_stop
        self.stopped = False
        self.interrupted = False
        self.bytes_read = 0

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes as soon as there are any; none at the end, and none after an interrupt, which PyAV
        would print and then ignore."""
        try:
            data = b"" if self.stopped else self.read_some(size)
        except KeyboardInterrupt:
            self.stopped = self.interrupted = True
            return b""
        self.bytes_read += len(data)
        return data

    @abstractmethod
    def read_some(self, size: int) -> bytes:
        """Return up to `size` bytes as soon as there are any; none at the end, or once `stopped` is True."""

    @abstractmethod
    def unreadable(self, reason: str) -> SourceError:
        """Return the error of bytes that are no video."""

    @abstractmethod
    def close(self) -> None:
        """Close what the reader has opened. Idempotent."""


class PipeReader(WaitingReader):
    """Pipe as an input of FFmpeg."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def read_some(self, size: int) -> bytes:
        since = time.monotonic()
        reported = False
        while not self.stopped:
            if self._poll.poll(WAIT_MS):
                return os.read(self._descriptor, size)
            self.stopped = self.should_stop()
            if not self.bytes_read and not reported and time.monotonic() - since > SAY_WAITING_S:
                log.warning("waiting for a video on standard input")
                reported = True
        return b""

    def unreadable(self, reason: str) -> SourceError:
        if not self.bytes_read:
            return SourceError(f"{NAME} ended without any data; does the program that writes it work?")
        return SourceError(f"{NAME} is not a video that FFmpeg can read from a pipe: {reason}; {REMEDY}")

    def close(self) -> None:
        """Close nothing: the descriptor is the caller's."""


class FileReader(PipeReader):
    """Redirected file as an input of FFmpeg, with seeking."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def tell(self) -> int:
        return os.lseek(self._descriptor, 0, io.SEEK_CUR)


def _reader(descriptor: int) -> PipeReader:
    """Return the reader of a descriptor. Raises SourceError if it cannot be read."""
    try:
        if descriptor == 0 and sys.stdin is None:
            mode = None
        else:
            mode = os.fstat(descriptor).st_mode
    except OSError:
        mode = None
    if mode is None or stat.S_ISDIR(mode):
        raise SourceError(f"{NAME} is {'a folder' if mode else 'closed'}; pipe a video into it: cat a.ts | ...")
    if os.isatty(descriptor):
        raise SourceError(f"{NAME} is the terminal; pipe a video into it: cat a.ts | ...")
    if stat.S_ISREG(mode):
        return FileReader(descriptor)
    return PipeReader(descriptor)
