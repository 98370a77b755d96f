"""Packets into frames, past what does not decode."""

from __future__ import annotations

from collections.abc import Iterator

import av

from stream.sources.base import SkippedItem
from stream.sources.limits import decoder_options, decoding_failure
from stream.sources.losses import LossLedger
from stream.sources.timeline import MediaTimeline

ONE_THREAD_MAX_PX = 1920 * 1088
"""Up to this many pixels one thread decodes faster than frames are taken, leaves the other cores to the other stages,
and names the very packet that failed."""

LARGE_PICTURE_THREADS = 4
"""Threads for larger pictures. A failure is then told this many packets late, and a file that is damaged in its last
few packets may lose as many of its last frames, because PyAV cannot drain a decoder past an error."""

MAX_READ_ERRORS = 16
"""Failed reads in a row after which the rest of a file is given up."""


class VideoDecoder:
    """Decodes one stream of a container; what fails is noted in `losses` and skipped."""

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: av.video.stream.VideoStream,
        timeline: MediaTimeline,
        max_pixels: int,
    ) -> None:
        self._container = container
        self._stream = stream
        self._timeline = timeline
        self._packets = 0
        self._losses = LossLedger()
        self._max_pixels = max_pixels
        context = stream.codec_context
        self._one_thread = context.width * context.height <= ONE_THREAD_MAX_PX
        context.options = decoder_options(max_pixels)
        context.thread_type = "AUTO"
        context.thread_count = 1 if self._one_thread else LARGE_PICTURE_THREADS

    def frames(self) -> Iterator[av.VideoFrame]:
        """The frames that decode, in the order in which they are shown; to be called once."""
        for packet in self._read():
            yield from self._decode(packet)
        yield from self._flush()

    def lost_before(self, pts: int | None) -> tuple[SkippedItem, ...]:
        """Takes out what was lost before the frame with this PTS."""
        return self._losses.before(pts)

    def lost_after_last(self) -> tuple[SkippedItem, ...]:
        """Takes out what else was lost."""
        return self._losses.rest()

    def _read(self) -> Iterator[av.Packet]:
        failures = 0
        while failures < MAX_READ_ERRORS:
            try:
                for packet in self._container.demux(self._stream):
                    if packet.size:
                        failures = 0
                        self._packets += 1
                        yield packet
                return
            except av.FFmpegError as error:
                failures += 1
                self._losses.lost(self._packets + 1, _reason(error), None, None, exact=False)

    def _decode(self, packet: av.Packet) -> list[av.VideoFrame]:
        try:
            return self._stream.codec_context.decode(packet)
        except av.FFmpegError as error:
            media_ns = self._timeline.at_ns(packet.pts) if self._one_thread else None
            pts = packet.pts if self._one_thread else None
            reason = decoding_failure(error, self._max_pixels)
            self._losses.lost(self._packets, reason, pts, media_ns, exact=self._one_thread)
            return []

    def _flush(self) -> list[av.VideoFrame]:
        try:
            return self._stream.codec_context.decode(None)
        except av.FFmpegError as error:
            self._losses.lost(self._packets, _reason(error), None, None, exact=False)
            return []


def _reason(error: av.FFmpegError) -> str:
    return error.strerror or str(error)
