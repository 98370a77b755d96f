"""Folder of an HTTP live stream: segments written by the frame process, their captions, and the playlists."""

from __future__ import annotations

import logging
import math
import os
import re
from collections import deque
from contextlib import suppress
from pathlib import Path

from arr_coc.errors import of_counted
from stream.errors import OutputError, OutputFailed
from stream.events import Answer, Event, FrameReady, Outage, Restarted, SegmentWritten, Summary
from stream.extension import SinkOpening
from stream.extensions.hls.captions import SegmentedCaptions
from stream.extensions.hls.folder import CAPTIONS_PLAYLIST, LISTED, MARK, VIDEO_PLAYLIST, check_folder
from stream.extensions.hls.playlists import (
    CAPTIONS_SUFFIX,
    VIDEO_SUFFIX,
    PlaylistSegment,
    PlaylistState,
    master_playlist,
    media_playlist,
)
from stream.extensions.hls.section import HlsSection
from stream.sinks.base import Sink
from stream.sinks.output_file import check_writable, claim, replace_file
from stream.sources.address import is_live_address

UNLISTED = re.compile(r"\.segment-\d+-\d+\.(m4s|mp4)|\.[\w.-]+\.\d+\.new")
"""Names of files that no playlist lists yet, or that a killed run left."""

NEW = ".new"

log = logging.getLogger(__name__)


class HlsSink(Sink):
    """Publisher of the segments of the source's video, each with its captions once they are known.

    A segment is held back until the newest frame is `config.hold_s` later than its end, the source is lost, or the run
    has ended. A captions file is written before the playlist lists it; playlists are replaced atomically. However the
    run ends, both are complete (`EXT-X-ENDLIST`).

    `live`: the source has no end, so old segments are deleted unless the configuration keeps them. They stay in the
    folder twice as long as in the playlists, for players that lag behind.

    The folder is created if its parent exists, and claimed: two runs cannot write to one. Raises OutputError if it
    cannot be written at the start, OutputFailed if a later write fails.
    """

    def __init__(self, path: str, config: HlsSection, *, live: bool) -> None:
        self._master = Path(path)
        self._folder = self._master.parent
        self._hold_s = config.hold_s
        keep_s: float | str = 60.0 if live else "all"
        if config.keep_s != "auto":
            keep_s = config.keep_s
        self._keep_s = math.inf if isinstance(keep_s, str) else keep_s
        check_writable(path)
        check_folder(path)
        self._is_new_folder = not self._folder.is_dir()
        try:
            self._folder.mkdir(exist_ok=True)
            folder = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise OutputError(f"cannot write {path!r}: {error.strerror}") from error
        claim(folder, path, "into the folder of ", "folder")
        self._claim: int | None = folder
        self._has_mark = self._mark(path)
        self._remove_all(UNLISTED)
        self._captions = SegmentedCaptions()
        self._waiting: deque[SegmentWritten] = deque()
        self._segments: deque[PlaylistSegment] = deque()
        self._unlisted: deque[PlaylistSegment] = deque()
        self._header = "", ""
        self._number = self._discontinuities = 0
        self._longest_s = config.segment_s
        self._codec = ""
        self._size = (0, 0)
        self._now_s = 0.0
        self._ended = self._broken = False

    @classmethod
    def open(cls, opening: SinkOpening) -> HlsSink:
        """Open the sink of a run."""
        return cls(opening.path, HlsSection.of(opening.config), live=is_live_address(opening.config.source))

    def write(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            self._now_s = event.pts_s
            self._release(self._now_s - self._hold_s)
        elif isinstance(event, Answer):
            self._captions.answer(event.pts_s, event.text, self._now_s)
        elif isinstance(event, SegmentWritten):
            if event.error is not None:
                raise self._failure(event.error)
            self._waiting.append(event)
        elif isinstance(event, (Outage, Restarted)):
            self._release(math.inf)
        elif isinstance(event, Summary):
            self._end()

    def close(self) -> None:
        if self._claim is None:
            return
        try:
            if self._broken:  # make room for the ends of the playlists
                self._ended = False
                self._waiting.clear()
                self._remove_all(UNLISTED)
            self._end()
        except OutputError as error:
            log.debug("%s", error)
        finally:
            self._remove_all(UNLISTED)
            if self._has_mark and not self._number:
                self._remove(MARK)
            if self._is_new_folder:
                with suppress(OSError):
                    self._folder.rmdir()  # succeeds if it is empty
            os.close(self._claim)
            self._claim = None
        if self._now_s and not self._number and not self._broken:
            log.warning("%s was not written: no video arrived that a stream could hold", self._master)
        if self._captions.late:
            late = of_counted(self._captions.late, self._captions.count, "caption")
            log.warning(
                "%s: %s came later than the stream, by up to %.1f s; set hls.hold_s above that",
                *(self._master, late, self._captions.latest_s),
            )

    def _end(self) -> None:
        """Release all waiting segments and end the playlists."""
        if self._ended:
            return
        self._ended = True
        self._release(math.inf)
        if self._segments:
            self._write_playlists()
            self._write_master()

    def _release(self, until_s: float) -> None:
        """Release the segments that end by `until_s`."""
        due = 0
        while self._waiting and self._waiting[0].start_s + self._waiting[0].duration_s <= until_s:
            self._add(self._waiting.popleft())
            due += 1
        if not due:
            return
        # segments beyond `keep_s` leave the playlists, and later the folder
        while len(self._segments) > 1 and _length_s(self._segments) - self._segments[0].duration_s >= self._keep_s:
            old = self._segments.popleft()
            self._discontinuities += old.header != self._segments[0].header
            self._unlisted.append(old)
        while self._unlisted and _length_s(self._unlisted) - self._unlisted[0].duration_s >= self._keep_s:
            segment = self._unlisted.popleft()
            headers = {segment.header for segment in (*self._unlisted, *self._segments)}
            for name in (segment.name + VIDEO_SUFFIX, segment.name + CAPTIONS_SUFFIX):
                self._remove(name)
            if segment.header not in headers:
                self._remove(segment.header)
        self._write_playlists()
        if self._number == due:
            self._write_master()

    def _add(self, event: SegmentWritten) -> None:
        if not self._number and (self._folder / CAPTIONS_PLAYLIST).exists():  # files of an earlier run
            for playlist in (self._master.name, VIDEO_PLAYLIST, CAPTIONS_PLAYLIST):
                self._remove(playlist)
            self._remove_all(LISTED)
        if event.header != self._header[0]:
            name = f"header-{self._number:05}.mp4"
            self._rename(event.header, name)
            self._header = event.header, name
        if not self._codec:
            self._codec = event.codec
            self._size = (event.width_px, event.height_px)
        segment = PlaylistSegment(
            number=self._number,
            header=self._header[1],
            start_s=event.start_s,
            duration_s=event.duration_s,
            track_s=event.track_s,
            size_bytes=event.size_bytes,
        )
        self._put(segment.name + CAPTIONS_SUFFIX, self._captions.cut(segment))
        self._rename(event.file, segment.name + VIDEO_SUFFIX)
        self._segments.append(segment)
        self._longest_s = max(self._longest_s, segment.duration_s)
        self._number += 1

    def _write_playlists(self) -> None:
        state = PlaylistState(
            segments=tuple(self._segments),
            discontinuities=self._discontinuities,
            longest_s=self._longest_s,
            growing=math.isinf(self._keep_s),
            ended=self._ended,
        )
        self._put(CAPTIONS_PLAYLIST, media_playlist(state, CAPTIONS_SUFFIX))
        self._put(VIDEO_PLAYLIST, media_playlist(state, VIDEO_SUFFIX))

    def _write_master(self) -> None:
        self._put(
            self._master.name,
            master_playlist(VIDEO_PLAYLIST, CAPTIONS_PLAYLIST, self._codec, self._size, self._segments),
        )

    def _put(self, name: str, text: str) -> None:
        """Replace a file atomically."""
        new = self._folder / f".{name}.{os.getpid()}{NEW}"
        try:
            replace_file(self._folder / name, new, text)
        except OSError as error:
            raise self._failure(error.strerror or str(error)) from error

    def _rename(self, name: str, to: str) -> None:
        try:
            (self._folder / name).replace(self._folder / to)
        except OSError as error:
            raise self._failure(error.strerror or str(error)) from error

    def _failure(self, reason: str) -> OutputFailed:
        self._broken = True
        if self._number:
            hint = "; what it lists can be played"
        else:
            hint = ""
        return OutputFailed(f"cannot write {str(self._master)!r}: {reason}{hint}")

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            (self._folder / name).unlink()

    def _remove_all(self, pattern: re.Pattern[str]) -> None:
        with suppress(OSError):
            for name in os.listdir(self._folder):
                if pattern.fullmatch(name):
                    self._remove(name)

    def _mark(self, path: str) -> bool:
        """Mark the folder as a stream's; return False if it was marked before."""
        mark = self._folder / MARK
        folder = self._claim
        if mark.exists():
            return False
        try:
            mark.touch()
        except OSError as error:
            assert folder is not None
            os.close(folder)
            raise OutputError(f"cannot write {path!r}: {error.strerror}") from error
        return True


def _length_s(segments: deque[PlaylistSegment]) -> float:
    return sum(segment.duration_s for segment in segments)
