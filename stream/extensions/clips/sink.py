"""Sink that writes a picture and a video of each match into a folder."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import PurePath

from msgspec.structs import replace

from stream import logs
from stream.config import Config
from stream.events import (
    AskedPicture,
    ClipWritten,
    Event,
    FrameReady,
    Match,
    Outage,
    Restarted,
    Summary,
    VideoFragment,
)
from stream.extension import SinkOpening
from stream.extensions.clips.folder import PICTURE, VIDEO, ClipFolder
from stream.extensions.clips.picture import match_picture
from stream.extensions.clips.ring import FragmentRing
from stream.extensions.clips.section import ClipsSection
from stream.extensions.clips.video import ClipVideo
from stream.sinks.base import ReportingSink
from stream.sources.address import camera_name
from stream.untrusted import MIB

LATE_S = 30.0
"""Time after a frame at which its match may still come, in seconds of video that the ring holds for it."""

RING_BYTES_MAX = 64 * MIB

PICTURES_MAX = 16
"""Pictures of frames whose match may still come."""

OVERDUE_S = 10.0
"""Media time after which a clip ends although the video that it waits for has not come."""

STEM_CHARS_MAX = 40

AGE_EVERY_S = 600.0
"""Time between two searches for files that are too old."""

DAY_S = 86_400.0


class ClipSink(ReportingSink):
    """Writer of a JPEG of each match at once, and of an MP4 of the time around it once that has passed.

    The video is that of the source, copied from a ring of the newest fragments; nothing is encoded here. A match within
    a clip that is being written extends that clip, up to `ClipVideo.longest_s`. A new track (after an outage, or with
    another size or format) ends a clip.

    A file that cannot be written is reported once, and in the event; the run goes on. Raises OutputError if the folder
    cannot be claimed.
    """

    def __init__(self, config: Config, now_s: Callable[[], float] = time.time) -> None:
        section = ClipsSection.of(config)
        assert section.folder is not None
        self._before_s = section.before_s
        self._after_s = section.after_s
        self._now_s = now_s
        self._camera = camera_name(config)
        self._folder = ClipFolder(
            section.folder,
            None if section.max_mib is None else section.max_mib * MIB,
            None if section.max_days is None else section.max_days * DAY_S,
            now_s,
        )
        self._aged_s = now_s()
        self._ring = FragmentRing(self._before_s + LATE_S, RING_BYTES_MAX)
        self._pictures: OrderedDict[int, AskedPicture] = OrderedDict()
        self._videos: list[ClipVideo] = []
        self._events: list[Event] = []
        self._failing = False

    @classmethod
    def open(cls, opening: SinkOpening) -> ClipSink:
        """Open the sink of a run."""
        return cls(opening.config)

    def write(self, event: Event) -> None:
        if isinstance(event, VideoFragment):
            self._ring.add(event)
            for video in list(self._videos):
                self._advance(video, [event])
        elif isinstance(event, FrameReady):
            # end the videos whose fragments do not come
            for overdue in list(self._videos):
                if event.pts_s > overdue.until_s + OVERDUE_S:
                    self._finish(overdue)
            if self._now_s() - self._aged_s > AGE_EVERY_S:
                self._aged_s = self._now_s()
                with suppress(OSError):
                    self._folder.delete_old()
        elif isinstance(event, AskedPicture):
            self._pictures[event.frame_index] = event
            if len(self._pictures) > PICTURES_MAX:
                self._pictures.popitem(last=False)
        elif isinstance(event, (Outage, Restarted)):
            self._finish_all()
        elif isinstance(event, Match):
            self._begin(event)

    def take_events(self, upcoming: Event) -> Sequence[Event]:
        if isinstance(upcoming, Summary):
            self._finish_all()
        events = self._events
        self._events = []
        return events

    def close(self) -> None:
        self._finish_all()
        self._folder.close()

    def _begin(self, match: Match) -> None:
        """Write the picture of a match, and begin or extend its video."""
        clip = ClipWritten(
            match=match.match,
            watch=match.watch,
            picture=None,
            video=None,
            start_s=match.pts_s,
            end_s=match.pts_s,
            time=match.time,
        )
        try:
            stem = self._folder.free_stem(self._stem(match))
            clip = replace(clip, picture=self._write_picture(match, stem))
        except OSError as error:
            self._events.append(replace(clip, error=self._report_failure(error)))
            return
        except ValueError as error:
            clip = replace(clip, error=str(error))
        self._events.append(clip)
        if any(video.extend(match, clip.picture, self._after_s) for video in self._videos):
            return
        try:
            video = ClipVideo(self._folder.create(f"{stem}{VIDEO}"), match.pts_s + self._after_s)
        except OSError as error:
            self._events.append(replace(clip, error=self._report_failure(error)))
            return
        video.matches.append((match, clip.picture))
        self._videos.append(video)
        self._advance(video, self._ring.around(match.pts_s, self._before_s, self._after_s))

    def _advance(self, video: ClipVideo, fragments: Sequence[VideoFragment]) -> None:
        """Write fragments of a video, which may end it."""
        try:
            for fragment in fragments:
                if not video.add(fragment):
                    self._finish(video)
                    return
        except OSError as error:
            self._finish(video, self._report_failure(error))

    def _finish(self, video: ClipVideo, error: str | None = None) -> None:
        """Complete a video and report it with each of its matches."""
        self._videos.remove(video)
        name = None
        try:
            name = video.file.finish()
            if name is None and error is None:
                error = "no video of that time arrived"
            elif error is None:
                self._failing = False
        except OSError as problem:
            error = error or self._report_failure(problem)
        for match, picture in video.matches:
            self._events.append(
                ClipWritten(
                    match=match.match,
                    watch=match.watch,
                    picture=picture,
                    video=name,
                    start_s=match.pts_s if name is None else video.start_s,
                    end_s=match.pts_s if name is None else video.end_s,
                    error=error,
                    time=match.time,
                )
            )

    def _finish_all(self) -> None:
        for video in list(self._videos):
            self._finish(video)

    def _write_picture(self, match: Match, stem: str) -> str | None:
        """Write the picture of the newest frame up to the match that was looked at. Raises OSError."""
        index = max((index for index in self._pictures if index <= match.frame_index), default=None)
        if index is None:
            return None
        data = match_picture(self._pictures[index], match, self._camera)
        file = self._folder.create(f"{stem}{PICTURE}")
        try:
            file.append(data)
        except OSError:
            file.discard()
            raise
        return file.finish()

    def _stem(self, match: Match) -> str:
        """Return a name for the files of a match: with the local time of a live source, with media time of others."""
        camera = _stem_part(self._camera.rpartition("://")[2])
        watch = _stem_part(match.watch)
        if match.time is None:
            return f"{_stem_part(PurePath(self._camera).stem)}-{match.pts_s:08.2f}s-{watch}-{match.match:04}"
        return f"{datetime.fromisoformat(match.time):%Y%m%d-%H%M%S}-{camera}-{watch}-{match.match:04}"

    def _report_failure(self, error: OSError) -> str:
        """Report that a file cannot be written, once until one can be; return the reason."""
        reason = error.strerror or str(error)
        if not self._failing:
            self._failing = True
            text = f"note: a clip cannot be written into {str(self._folder.path)!r}: {reason}; the run goes on"
            logs.say(text, "warning", event="clips", reason=reason)
        return reason


def _stem_part(text: str) -> str:
    """Return the letters and digits of a text, for a file's name; "_" without any."""
    return re.sub(r"\W+", "_", text).strip("_")[:STEM_CHARS_MAX] or "_"
