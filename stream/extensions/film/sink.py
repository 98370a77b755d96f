"""Sink of a film: passes frames and answers on to it, and puts the file in its place."""

from __future__ import annotations

import os
from contextlib import suppress

from stream.config import Config
from stream.errors import OutputError, OutputFailed
from stream.events import Answer, Event, FrameReady, Summary
from stream.extension import SinkOpening
from stream.extensions.film.burned import BurnedFilm
from stream.extensions.film.captions import FilmCues
from stream.extensions.film.section import FilmSection
from stream.extensions.film.soft import SoftFilm
from stream.sinks.base import Sink
from stream.sinks.output_file import OutputFile


class FilmSink(Sink):
    """Writer of a film of the source, up to the newest frame.

    Of a run in lockstep the frames before the newest one have all their captions, and are written at once; else an
    answer may come after later frames, and all are written at the end.

    A film with drawn captions grows in its place, and can be played at any time. One that is written at the end, or
    continues a run (`resume`), grows beside it under another name. It replaces an earlier one if the run has finished,
    or if it is larger.
    """

    def __init__(self, path: str, config: Config, *, resume: bool = False) -> None:
        self._claim = OutputFile(path)
        soft = FilmSection.of(config).soft
        self._place = os.path.realpath(path)
        self._written = self._place
        if soft or resume:
            folder, name = os.path.split(self._place)
            self._written = os.path.join(folder, f".{name}.{os.getpid()}.new")
        self._resume = resume
        self._cues = FilmCues()
        try:
            if not self._claim.regular:
                raise OutputError(f"cannot write a film to {path!r}: it is not a regular file; name another")
            self._film = (SoftFilm if soft else BurnedFilm)(self._written, path, config, self._cues)
        except BaseException:
            self._claim.close()
            raise
        pipeline = config.pipeline
        lossless = pipeline.frames == "lossless" and pipeline.answers == "lockstep"
        self._in_step = lossless and not config.capture.realtime
        self._last: FrameReady | None = None
        self._has_finished = False

    @classmethod
    def open(cls, opening: SinkOpening) -> FilmSink:
        """Open the sink of a run."""
        return cls(opening.path, opening.config, resume=opening.resume)

    def write(self, event: Event) -> None:
        if isinstance(event, FrameReady):
            self._last = event
            if self._in_step:
                if self._written == self._place:
                    self._claim.keep()
                self._film.advance(event.frame_index)
        elif isinstance(event, Answer):
            self._cues.answer(event.pts_s, event.text)
        elif isinstance(event, Summary):
            self._has_finished = event.ended == "finished"
            self._finish()

    def close(self) -> None:
        try:
            self._finish()
        finally:
            self._film.close()
            self._claim.close()
            with suppress(FileNotFoundError):
                if self._written != self._place:
                    os.unlink(self._written)

    def _finish(self) -> None:
        """Complete the film and put it in its place, once."""
        last = self._last
        self._last = None
        if last is None:
            return
        end_s = None if last.duration_s is None else last.pts_s + last.duration_s
        if self._written == self._place:
            self._claim.keep()
        self._film.finish(last.frame_index, end_s)
        if self._written == self._place:
            return
        try:
            grown = os.path.getsize(self._written) > os.path.getsize(self._place)
            self._claim.close()
            if grown or self._has_finished or not self._resume:
                os.replace(self._written, self._place)
        except OSError as error:
            raise OutputFailed(f"cannot write {self._claim.path!r}: {error.strerror}") from error
