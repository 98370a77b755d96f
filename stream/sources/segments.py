"""Video of a source as segment files: its packets are copied, or its frames encoded if there are none to copy."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

import av

from arr_coc.types import NS_PER_S
from stream.media import MediaSegment, SourceFrame
from stream.sources.encoding import FrameEncoder
from stream.sources.fragments import COPIED_CODECS, Fragmenter, Fragments, codec_of

SEGMENT_PREFIX = ".segment-"
"""Prefix of the names of files that no playlist lists yet."""

MAX_FAILURES = 3
"""Consecutive packets that cannot be copied, after which frames are encoded instead."""

log = logging.getLogger(__name__)


class SegmentRecorder:
    """Recorder of a source's video into a folder, segment by segment.

    A source calls `connect` for each stream that it opens, then `packet` and `shown`; the capture stage calls `attach`
    and `finish`, in another thread. A video without packets, or whose packets do not fit into MP4, is encoded from the
    attached frames.

    `folder` must exist. `segment_s`: least length of a segment. `copies`: packets may be copied; they may not if parts
    of the picture are masked, and frames are encoded then. If a file cannot be written, the last segment has the
    reason as its `error`, and no other follows.
    """

    def __init__(self, folder: str, segment_s: float, *, copies: bool = True) -> None:
        self._folder = Path(folder)
        self._segment_ns = round(segment_s * NS_PER_S)
        self._lock = threading.Lock()
        self._template: av.VideoStream | None = None
        self._fragmenter: Fragmenter | None = None
        self._encoder: FrameEncoder | None = None
        self._encoded_size = (0, 0)
        self._may_copy, self._copies = copies, False
        self._failures = 0
        self._offset_ns: int | None = None
        self._first_ns = 0
        self._size = self._track_size = (0, 0)
        self._header: tuple[bytes, str] = (b"", "")
        self._undated: list[av.Packet] = []
        self._files = 0
        self._ended = False
        self._waiting: list[Fragments] = []
        self._done: list[MediaSegment] = []

    @property
    def dropped(self) -> int:
        """Frames not encoded because the encoder was too slow."""
        return 0 if self._encoder is None else self._encoder.dropped

    def connect(self, stream: av.VideoStream) -> None:
        """Start a newly opened stream, whose packets are independent of those before."""
        with self._lock:
            self._close_track()
            codec = stream.codec_context.codec.canonical_name
            self._copies = self._may_copy and codec in COPIED_CODECS
            self._template = stream if self._copies else None
            self._size = stream.codec_context.width, stream.codec_context.height
            if not self._copies:
                reason = f"{codec} cannot be copied" if self._may_copy else "parts of the picture are masked"
                log.info("the video is encoded for the output: %s", reason)

    def restart(self) -> None:
        """Discard the unfinished segments; the video begins with the next key frame."""
        with self._lock:
            self._fragmenter, self._offset_ns = None, None
            self._waiting.clear()
            self._undated.clear()

    def packet(self, packet: av.Packet) -> None:
        """Add a decoded packet, which must not be used afterwards."""
        with self._lock:
            if self._copies and not self._ended:
                self._copy(packet)

    def shown(self, frame: av.VideoFrame, media_ns: int) -> None:
        """Relate the PTS of a frame of the current stream to its media time."""
        if frame.pts is None or frame.time_base is None:
            return
        pts_ns = frame.pts * frame.time_base.numerator * NS_PER_S // frame.time_base.denominator
        with self._lock:
            if self._offset_ns is None:
                self._first_ns = media_ns
            self._offset_ns = media_ns - pts_ns
            if self._copies:
                self._size = frame.width, frame.height

    def attach(self, frame: SourceFrame, *, wait: bool) -> SourceFrame:
        """Return the frame with the segments completed since the one before; encode it, if required.

        `wait`: wait for a slow encoder instead of dropping frames.
        """
        with self._lock:
            encodes = not self._copies and not self._ended
        if encodes:
            if self._encoder is None:
                self._encoder = FrameEncoder(self._take_encoded, self._segment_ns)
            self._encoder.put(frame, wait=wait)
        with self._lock:
            done, self._done = tuple(self._done), []
        return dataclasses.replace(frame, segments=done) if done else frame

    def finish(self) -> tuple[MediaSegment, ...]:
        """End the video; return the remaining segments."""
        if self._encoder is not None:
            self._encoder.close()
        with self._lock:
            self._close_track()
            self._ended = True
            done, self._done = tuple(self._done), []
        return done

    def _copy(self, packet: av.Packet) -> None:
        """Add a packet; the first packets of a stream may lack DTS, which are computed from the next packet's."""
        # 16: reorder limit of H.264 and HEVC in pictures
        if packet.dts is None and packet.pts is not None and len(self._undated) < 16:
            self._undated.append(packet)
            return
        if packet.dts is not None:
            self._copy_undated(packet.dts)
        self._copy_dated(packet)

    def _copy_undated(self, next_dts: int) -> None:
        undated, self._undated = self._undated, []
        for number, packet in enumerate(undated):
            packet.dts = next_dts - (len(undated) - number) * max(1, packet.duration or 0)
            self._copy_dated(packet)

    def _copy_dated(self, packet: av.Packet) -> None:
        if packet.pts is None or packet.dts is None or packet.pts < packet.dts:
            self._end_track()
            self._give_up_copying("they have no usable times", after=MAX_FAILURES)
            return
        changed = packet.is_keyframe and self._coded_size() != self._track_size
        # a packet this much later than the one before belongs to another timeline
        if self._fragmenter is not None and (changed or not self._fragmenter.follows(packet, 10 * NS_PER_S)):
            self._end_track()
        if self._fragmenter is None and not packet.is_keyframe:
            return
        try:
            if self._fragmenter is None:
                self._begin_track(Fragmenter(self._segment_ns, self._template))
            self._add(packet)
            self._failures = 0
        except (av.FFmpegError, ValueError) as error:
            self._give_up_copying(str(error), after=1 if self._fragmenter is None else MAX_FAILURES)
            self._fragmenter = None

    def _give_up_copying(self, reason: str, after: int) -> None:
        """Count a failure; after `after` consecutive failures, encode from now on."""
        self._failures += 1
        if self._failures >= after:
            self._copies = False
            log.warning("the video is encoded for the output: its packets cannot be copied (%s)", reason)

    def _take_encoded(self, packet: av.Packet, size_px: tuple[int, int]) -> None:
        with self._lock:
            if self._ended or self._copies:
                return
            if size_px != self._encoded_size:
                self._close_track()
                self._encoded_size = self._size = size_px
            self._offset_ns = self._first_ns = 0
            if self._fragmenter is None:
                self._begin_track(Fragmenter(self._segment_ns, size_px=size_px))
            self._add(packet)

    def _begin_track(self, fragmenter: Fragmenter) -> None:
        self._fragmenter, self._header, self._track_size = fragmenter, (b"", ""), self._coded_size()

    def _coded_size(self) -> tuple[int, int]:
        """Return width and height of the pictures that are currently decoded."""
        context = None if self._template is None else self._template.codec_context
        return (0, 0) if context is None else (context.width, context.height)

    def _add(self, packet: av.Packet) -> None:
        assert self._fragmenter is not None
        self._keep(self._fragmenter.add(packet))

    def _close_track(self) -> None:
        """End the track; later packets are independent of it."""
        if self._undated and not self._ended:
            self._copy_undated(min(packet.pts or 0 for packet in self._undated))
        self._end_track()
        self._offset_ns = None
        self._waiting.clear()

    def _end_track(self) -> None:
        fragmenter, self._fragmenter = self._fragmenter, None
        if fragmenter is not None:
            with suppress(av.FFmpegError):
                self._keep(fragmenter.close())

    def _keep(self, fragments: Fragments | None) -> None:
        """Write a segment once its media time is known."""
        if fragments is not None:
            self._waiting.append(fragments)
        if self._offset_ns is None:
            return
        while self._waiting and not self._ended:
            done = self._waiting.pop(0)
            if done.pts_ns + done.duration_ns + self._offset_ns > self._first_ns:  # else it precedes the source's range
                self._write(done, self._offset_ns)

    def _write(self, fragments: Fragments, offset_ns: int) -> None:
        try:
            if fragments.header != self._header[0]:
                self._header = fragments.header, self._put(fragments.header, ".mp4")
            file = self._put(fragments.data, ".m4s")
        except OSError as error:
            self._ended = True
            self._done.append(MediaSegment(error=error.strerror or str(error)))
            return
        self._done.append(
            MediaSegment(
                file=file,
                header=self._header[1],
                start_ns=fragments.pts_ns + offset_ns,
                duration_ns=fragments.duration_ns,
                track_ns=fragments.track_ns,
                size_bytes=len(fragments.data),
                codec=codec_of(fragments.header),
                width_px=self._size[0],
                height_px=self._size[1],
            )
        )

    def _put(self, data: bytes, suffix: str) -> str:
        """Write a file and return its name. Raises OSError, and leaves no file then."""
        name = f"{SEGMENT_PREFIX}{os.getpid()}-{self._files}{suffix}"
        self._files += 1
        try:
            (self._folder / name).write_bytes(data)
        except OSError:
            with suppress(OSError):
                (self._folder / name).unlink()
            raise
        return name
