"""Sink that remembers a run in an SQLite file: answers, matches, outages and small pictures (docs/past.md)."""

from __future__ import annotations

import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec

from stream.config import Config
from stream.events import (
    Answer,
    AnswerPoint,
    AnswerUnchanged,
    AskedPicture,
    ClipWritten,
    Cut,
    Event,
    Match,
    Outage,
    Started,
    Summary,
    json_value,
)
from stream.extension import SinkOpening
from stream.extensions.past.moments import (
    ANSWER,
    HELD_MAX_MS,
    MATCH,
    OUTAGE,
    ClipFiles,
    Moment,
    MomentExtension,
    PastRun,
    Record,
    RunEnded,
)
from stream.extensions.past.retention import Limits
from stream.extensions.past.section import PastSection
from stream.extensions.past.writer import WRITERS, PastWriter
from stream.protocol.picture_files import smaller_jpeg
from stream.sinks.base import Sink
from stream.sinks.output_file import check_database
from stream.sinks.types import output_files
from stream.sources.address import camera_name, redacted
from stream.untrusted import KIB

PICTURE_WIDTH_PX = 320
"""Greatest width of a picture in the file: about 10 kB."""

PICTURE_BYTES_MAX = 256 * KIB
"""A larger picture, as of a frame many times as tall as wide, is left out."""

PICTURES_KEPT = 16
"""Pictures of frames whose answers have not come yet."""

MATCHES_KEPT = 256
"""Matches whose clips may still come."""

log = logging.getLogger(__name__)


class PastSink(Sink):
    """Sink that writes a run's moments to `past.file`, which runs of this process and of others may share.

    No method waits for the disk, but for `close`; a file that cannot be written ends no run. An answer with the words
    of the one before it extends that, for up to HELD_MAX_MS. `resume`: the run repeats an interrupted one. `unix_ms`
    returns the Unix time.
    """

    def __init__(
        self,
        config: Config,
        *,
        resume: bool = False,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        section = PastSection.of(config)
        assert section.file is not None
        self._path = section.file
        self._unix_ms = unix_ms
        self._run = PastRun(
            uuid.uuid4().hex,
            camera_name(config),
            redacted(config.source),
            unix_ms(),
            continues=resume,
        )
        self._pictures: OrderedDict[int, tuple[int, bytes]] = OrderedDict()
        self._number = 0
        self._matches: OrderedDict[int, int] = OrderedDict()
        self._last: Moment | None = None
        self._writer: PastWriter | None = WRITERS.acquire(self._path, lambda: open_writer(section))
        self._handlers: dict[type[Event], Callable[[Any], None]] = {
            Started: self._start,
            AskedPicture: self._keep_picture,
            Answer: self._answer,
            AnswerUnchanged: self._answer,
            Cut: self._cut,
            Match: self._match,
            ClipWritten: self._clip,
            Outage: self._outage,
            Summary: self._end,
        }

    @classmethod
    def open(cls, opening: SinkOpening) -> PastSink:
        """Open the sink of a run."""
        return cls(opening.config, resume=opening.resume)

    def write(self, event: Event) -> None:
        handler = self._handlers.get(type(event))
        if handler is not None and self._writer is not None:
            handler(event)

    def close(self) -> None:
        if self._writer is not None:
            self._writer = None
            WRITERS.release(self._path)

    def _start(self, event: Started) -> None:
        self._run = replace(self._run, model=event.model)

    def _keep_picture(self, event: AskedPicture) -> None:
        if event.asked:
            self._pictures.setdefault(event.frame_index, (self._unix_ms(), event.jpeg))
            while len(self._pictures) > PICTURES_KEPT:
                self._pictures.popitem(last=False)

    def _cut(self, _: Cut) -> None:
        self._last = None

    def _answer(self, event: AnswerPoint) -> None:
        last = self._last
        unix_ms = self._time_of(event)
        repeated = last is not None and (last.text, last.question) == (event.text, event.query)
        if last is not None and repeated and unix_ms - last.unix_ms < HELD_MAX_MS:
            self._put(MomentExtension(self._run, last.number, unix_ms, event.end_s))
            return
        fields = getattr(event, "fields", None)
        self._last = self._moment(
            event,
            ANSWER,
            event.text,
            unix_ms=unix_ms,
            start_s=event.start_s,
            end_s=event.end_s,
            question=event.query,
            fields=None if fields is None else msgspec.json.encode(json_value(fields)).decode(),
        )

    def _match(self, event: Match) -> None:
        moment = self._moment(
            event,
            MATCH,
            f"{event.watch}: {event.question}" if event.watch else event.question,
            unix_ms=self._time_of(event),
            question=event.question,
            watch=event.watch,
            yes=event.yes,
        )
        self._matches[event.match] = moment.number
        if len(self._matches) > MATCHES_KEPT:
            self._matches.popitem(last=False)

    def _clip(self, event: ClipWritten) -> None:
        number = self._matches.get(event.match)
        if number is not None and (event.picture or event.video):
            self._put(ClipFiles(self._run, number, event.picture, event.video))

    def _outage(self, event: Outage) -> None:
        if event.lasted_s is None:
            text = f"source lost: {event.reason}"
        else:
            text = f"source back after {event.lasted_s:.0f} s"
        self._last = None
        self._moment(event, OUTAGE, text, unix_ms=self._unix_ms())

    def _end(self, event: Summary) -> None:
        self._put(RunEnded(self._run, self._unix_ms(), event.ended))

    def _moment(self, event: Any, kind: str, text: str, *, unix_ms: int, **fields: Any) -> Moment:
        """Write a moment of the frame of an event, with its picture, and return it. A match that had to hold has that
        of the newest frame that was checked."""
        self._number += 1
        at = event.frame_index
        if kind == MATCH:
            at = max((index for index in self._pictures if index <= at), default=at)
        _, jpeg = (None, None) if kind == OUTAGE else self._pictures.get(at, (None, None))
        moment = Moment(
            run=self._run,
            number=self._number,
            kind=kind,
            unix_ms=unix_ms,
            frame_index=event.frame_index,
            pts_s=event.pts_s,
            text=text,
            jpeg=jpeg,
            **{"start_s": event.pts_s, "end_s": event.pts_s, **fields},
        )
        self._put(moment)
        return replace(moment, jpeg=None)

    def _time_of(self, event: AnswerPoint | Match) -> int:
        """Return the Unix time of an event's frame: of a live source its own, else that of its picture, which comes as
        it is asked about, or the present less the latency."""
        if event.time is not None:
            return round(datetime.fromisoformat(event.time).timestamp() * 1000)
        if event.frame_index in self._pictures:
            return self._pictures[event.frame_index][0]
        timing = getattr(event, "timing", None)
        return self._unix_ms() - (0 if timing is None else round(timing.total_ms))

    def _put(self, record: Record) -> None:
        assert self._writer is not None
        self._writer.put(record)


def open_writer(section: PastSection) -> PastWriter:
    """Return the writer of `past.file`, with its limits, that makes pictures small."""
    assert section.file is not None
    return PastWriter(section.file, Limits(section.max_days, section.max_mib), prepare=_with_thumbnail)


def check(config: Config) -> None:
    """Raise OutputError if the file cannot be written, or is another output or the source."""
    check_database(PastSection.of(config).file or "", output_files(config), config.source)


def _with_thumbnail(moment: Moment) -> Moment:
    """Return a moment with its picture made small, or without one if that is no JPEG, or stays large."""
    if moment.jpeg is None:
        return moment
    jpeg = smaller_jpeg(moment.jpeg, PICTURE_WIDTH_PX)
    return replace(moment, jpeg=jpeg if jpeg is not None and len(jpeg) <= PICTURE_BYTES_MAX else None)
