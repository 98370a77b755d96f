"""Video of a source as segment files or as fragments in memory: its packets are copied, or its frames encoded if there
are none to copy."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import av

from arr_coc.types import NS_PER_MS, NS_PER_S
from stream.media import FragmentBytes, MediaSegment, SourceFrame
from stream.protocol.buffers import SlotTable
from stream.sources.encoding import FrameEncoder
from stream.sources.fragments import COPIED_CODECS, LONGEST_FRAGMENT_NS, Fragment, Fragmenter, codec_of
from stream.untrusted import MIB

SEGMENT_PREFIX = ".segment-"
"""Prefix of the names of files that no playlist lists yet."""

SENT_FRAGMENT_NS = NS_PER_S
"""Longest fragment that is sent along: how exactly a clip can end."""

WAITING_BYTES = 64 * MIB
"""Bytes of fragments that may wait for the events of their frames: 5 s of 100 Mbit/s."""

MAX_FAILURES = 3
"""Consecutive packets that cannot be copied, after which frames are encoded instead."""

log = logging.getLogger(__name__)


class SegmentFolder:
    """Writer of fragments into files: as many to a segment as make it `segment_ns` long, up to a key frame."""

    def __init__(self, folder: Path, segment_ns: int) -> None:
        self._folder = folder
        self._segment_ns = segment_ns
        self._parts: list[Fragment] = []
        self._header: tuple[bytes, str] = (b"", "")
        self._files = 0

    def add(self, fragment: Fragment) -> list[Fragment]:
        """Add a fragment; return the segments that are complete, each as one fragment."""
        if self._parts and not fragment.follows(self._parts[-1]):
            segments = self.end()
        else:
            segments = []
        self._parts.append(fragment)
        length_ns = fragment.pts_ns + fragment.duration_ns - self._parts[0].pts_ns
        longest = length_ns > LONGEST_FRAGMENT_NS - NS_PER_MS
        return segments + (self.end() if length_ns >= self._segment_ns and (fragment.ends_gop or longest) else [])

    def end(self) -> list[Fragment]:
        """Return the segment that has begun, if any; another one begins with the next fragment."""
        parts = self._parts
        self._parts = []
        if not parts:
            return []
        duration_ns = parts[-1].pts_ns + parts[-1].duration_ns - parts[0].pts_ns
        data = b"".join(part.data for part in parts)
        return [dataclasses.replace(parts[0], data=data, duration_ns=duration_ns)]

    def write(self, segment: Fragment) -> tuple[str, str]:
        """Write a segment, and its header unless the one before had the same; return the names of both.

        Raises OSError, and leaves no incomplete file then.
        """
        if segment.header != self._header[0]:
            self._header = segment.header, self._put(segment.header, ".mp4")
        return self._put(segment.data, ".m4s"), self._header[1]

    def begin_track(self) -> None:
        """Write another header for the next segment."""
        self._header = b"", ""

    def _put(self, data: bytes, suffix: str) -> str:
        name = f"{SEGMENT_PREFIX}{os.getpid()}-{self._files}{suffix}"
        self._files += 1
        try:
            (self._folder / name).write_bytes(data)
        except OSError:
            with suppress(OSError):
                (self._folder / name).unlink()
            raise
        return name


class SegmentRecorder:
    """Recorder of a source's video: into a folder, segment by segment, or into memory, fragment by fragment.

    A source calls `connect` for each stream that it opens, then `packet` and `shown`; the capture stage calls `attach`
    and `finish`, in another thread. A video without packets, or whose packets do not fit into MP4, is encoded from the
    attached frames.

    `folder` must exist; None writes no files. `segment_s`: least length of a segment, and greatest distance of key
    frames that are encoded. If a file cannot be written, the last segment has the reason as its `error`, and no other
    file follows. `in_memory`: fragments, of at most SENT_FRAGMENT_NS, travel with the frames; their bytes wait in the
    table `fragments`, `waiting_bytes` of them at most, and what finds no room there is dropped. `copies`: packets may
    be copied; they may not if parts of the picture are masked, and frames are encoded then.
    """

    def __init__(
        self,
        folder: str | None,
        segment_s: float,
        *,
        in_memory: bool = False,
        waiting_bytes: int = WAITING_BYTES,
        copies: bool = True,
    ) -> None:
        self.fragments: SlotTable[FragmentBytes] = SlotTable(waiting_bytes, len)
        self._segment_ns = round(segment_s * NS_PER_S)
        if folder is None:
            self._files = None
        else:
            self._files = SegmentFolder(Path(folder), self._segment_ns)
        self._in_memory = in_memory
        self._lock = threading.Lock()
        self._template: av.VideoStream | None = None
        self._fragmenter: Fragmenter | None = None
        self._encoder: FrameEncoder | None = None
        self._encoded_size = (0, 0)
        self._may_copy = copies
        self._copies = False
        self._failures = 0
        self._offset_ns: int | None = None
        self._first_ns = 0
        self._size = self._track_size = (0, 0)
        self._undated_packets: list[av.Packet] = []
        self._ended = False
        self._waiting: list[Fragment] = []
        self._segments: list[MediaSegment] = []

    @property
    def dropped_frames(self) -> int:
        """Frames not encoded because the encoder was too slow."""
        if self._encoder is None:
            return 0
        return self._encoder.dropped

    @property
    def dropped_fragments(self) -> int:
        """Fragments that found no room in the table: the run takes them out more slowly than they come."""
        return self.fragments.refused

    def connect(self, stream: av.VideoStream, *, timed: bool = True) -> None:
        """Start a newly opened stream, whose packets are independent of those before; they have times if `timed`."""
        with self._lock:
            self._close_track()
            codec = stream.codec_context.codec.canonical_name
            self._copies = self._may_copy and timed and codec in COPIED_CODECS
            self._template = stream if self._copies else None
            self._size = stream.codec_context.width, stream.codec_context.height
            if not self._copies:
                reason = f"{codec} {'cannot be copied' if timed else 'has no times'}"
                if not self._may_copy:
                    reason = "parts of the picture are masked"
                log.info("the video is encoded for the output: %s", reason)

    def restart(self) -> None:
        """Discard the unfinished segments; the video begins with the next key frame."""
        with self._lock:
            self._fragmenter = None
            self._offset_ns = None
            self._waiting.clear()
            self._undated_packets.clear()
            if self._files is not None:
                self._files.end()

    def stop_copying(self, reason: str) -> None:
        """Encode the frames until the next stream; `reason`: what is wrong with its packets."""
        with self._lock:
            if self._copies:
                self._end_track()
                self._give_up_copying(reason, after=1)

    def packet(self, packet: av.Packet) -> None:
        """Add a decoded packet, which must not be used afterwards."""
        with self._lock:
            if self._copies and not self._ended:
                # the first packets of a stream may lack DTS, which are computed from the next packet's; 16 is the
                # reorder limit of H.264 and HEVC in pictures
                if packet.dts is None and packet.pts is not None and len(self._undated_packets) < 16:
                    self._undated_packets.append(packet)
                else:
                    if packet.dts is not None:
                        self._copy_undated(packet.dts)
                    self._copy_dated(packet)

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
            segments = tuple(self._segments)
            self._segments = []
        if segments:
            return dataclasses.replace(frame, segments=segments)
        return frame

    def finish(self) -> tuple[MediaSegment, ...]:
        """End the video; return the remaining segments."""
        if self._encoder is not None:
            self._encoder.close()
        with self._lock:
            self._close_track()
            self._ended = True
            segments = tuple(self._segments)
            self._segments = []
        return segments

    def _copy_undated(self, next_dts: int) -> None:
        packets = self._undated_packets
        self._undated_packets = []
        for number, packet in enumerate(packets):
            packet.dts = next_dts - (len(packets) - number) * max(1, packet.duration or 0)
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
                self._begin_track(self._new_fragmenter(self._template))
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
                self._begin_track(self._new_fragmenter(None, size_px))
            self._add(packet)

    def _begin_track(self, fragmenter: Fragmenter) -> None:
        self._fragmenter, self._track_size = fragmenter, self._coded_size()
        if self._files is not None:
            self._files.begin_track()

    def _new_fragmenter(self, template: av.VideoStream | None, size_px: tuple[int, int] = (0, 0)) -> Fragmenter:
        if self._in_memory:
            longest_ns = SENT_FRAGMENT_NS
        else:
            longest_ns = LONGEST_FRAGMENT_NS
        return Fragmenter(template, size_px, longest_ns)

    def _coded_size(self) -> tuple[int, int]:
        """Return width and height of the pictures that are currently decoded."""
        if self._template is None:
            context = None
        else:
            context = self._template.codec_context
        if context is None:
            return (0, 0)
        return (context.width, context.height)

    def _add(self, packet: av.Packet) -> None:
        assert self._fragmenter is not None
        self._keep(self._fragmenter.add(packet))

    def _close_track(self) -> None:
        """End the track; later packets are independent of it."""
        if self._undated_packets and not self._ended:
            self._copy_undated(min(packet.pts or 0 for packet in self._undated_packets))
        self._end_track()
        self._offset_ns = None
        self._waiting.clear()

    def _end_track(self) -> None:
        fragmenter = self._fragmenter
        self._fragmenter = None
        if fragmenter is not None:
            with suppress(av.FFmpegError):
                self._keep(fragmenter.close())
        if self._files is not None:
            self._write(self._files.end())

    def _keep(self, fragment: Fragment | None) -> None:
        """Give out a fragment once its media time is known."""
        if fragment is not None:
            self._waiting.append(fragment)
        if self._offset_ns is None:
            return
        waiting = self._waiting
        self._waiting = []
        for part in waiting:
            if self._in_memory and not self._ended:
                slot = self.fragments.put(FragmentBytes(part.data, part.header))
                if slot is not None:
                    self._segments.append(self._describe(part, slot=slot, key=part.key))
            if self._files is not None:
                self._write(self._files.add(part))

    def _write(self, segments: Sequence[Fragment]) -> None:
        """Write segments, without those that precede the source's range."""
        for segment in segments:
            if self._offset_ns is None or self._files is None or self._ended:
                return
            if segment.pts_ns + segment.duration_ns + self._offset_ns <= self._first_ns:
                continue
            try:
                file, header = self._files.write(segment)
            except OSError as error:
                self._files = None
                self._ended = not self._in_memory
                self._segments.append(MediaSegment(error=error.strerror or str(error)))
                return
            self._segments.append(self._describe(segment, file=file, header=header))

    def _describe(self, fragment: Fragment, **place: Any) -> MediaSegment:
        """Return a segment with the times of a fragment; `place`: its files, or its slot."""
        assert self._offset_ns is not None
        return MediaSegment(
            start_ns=fragment.pts_ns + self._offset_ns,
            duration_ns=fragment.duration_ns,
            track_ns=fragment.track_ns,
            size_bytes=len(fragment.data),
            codec=codec_of(fragment.header),
            width_px=self._size[0],
            height_px=self._size[1],
            **place,
        )
