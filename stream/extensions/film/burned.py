"""Film with the captions drawn into its pictures: the source is read once more, at its own size, and encoded."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, ColorTrc

from arr_coc.types import NS_PER_S, FramePlanes
from arr_coc.video.picture_mask import PictureMask
from stream.clock import MonotonicClock
from stream.config import Config
from stream.extensions.film.captions import BLACK, NEUTRAL, FilmCues, drawn_caption
from stream.extensions.film.container import FilmFile, sound_track, source_container
from stream.media import Source, SourceFrame
from stream.sources.decoder import origin_of
from stream.sources.encoding import SPACES, picture_of
from stream.sources.factory import open_source
from stream.sources.variants import chosen_stream

CLOCK_HZ = 360_000
"""Time base of the pictures: it represents every usual frame rate exactly, 24,000/1001 too."""


class BurnedFilm:
    """Film with drawn captions, written while the run goes on.

    Frames are those of the run, by their numbers, in full size and with their times. Sound is copied up to the newest
    frame. Raises SourceError if the source cannot be read once more, OutputFailed if the film takes nothing more.

    Args:
        path: Place of the file.
        name: Path of the output, for messages.
        config: Configuration of the run.
        cues: Captions of the run, to which it adds answers.
    """

    def __init__(self, path: str, name: str, config: Config, cues: FilmCues) -> None:
        self._path = path
        self._name = name
        self._config = config
        self._cues = cues
        self._mask = PictureMask(config.masks) if config.masks else None
        self._reel: _Reel | None = None
        self._source: Source | None = None
        self._frames: Iterator[SourceFrame] = iter(())
        self._next: SourceFrame | None = None

    def advance(self, frame_index: int) -> None:
        """Draw and write the frames before one."""
        if self._source is None:
            as_filmed = {"fit": "pad", "size": None, "max_tiles": None, "realtime": False}
            capture = self._config.capture.model_copy(update=as_filmed)
            self._source = open_source(self._config.source, capture, MonotonicClock(), self._config.network)
            self._frames = (frame for frame in self._source.frames() if isinstance(frame, SourceFrame))
            self._next = next(self._frames, None)
        while self._next is not None and self._next.frame_index < frame_index:
            frame = self._next
            self._next = next(self._frames, None)
            if self._next is not None:
                end_ns = self._next.media_ns
            else:
                end_ns = frame.media_ns + (frame.duration_ns or 0)
            self._add(frame, end_ns)

    def finish(self, frame_index: int, end_s: float | None) -> None:
        """Write the frames up to one, and complete the file."""
        self.advance(frame_index + 1)
        reel = self._reel
        self._reel = None
        if reel is not None:
            reel.end()

    def close(self) -> None:
        """Release the source and the file, which stays as it is."""
        if self._source is not None:
            self._source.close()
        if self._reel is not None:
            self._reel.close()

    def _add(self, frame: SourceFrame, end_ns: int) -> None:
        planes = frame.planes
        if self._mask is not None:
            planes = self._mask.apply(planes)
        picture = picture_of(planes)
        if self._reel is None:
            assert self._source is not None
            start_ns = frame.media_ns if self._config.capture.start_s else 0
            film = FilmFile(self._path, self._name, grows=True)
            self._reel = _Reel(film, picture, self._source.describe().fps, start_ns)
            is_file = os.path.isfile(os.path.expanduser(self._config.source))
            if is_file:
                self._reel.sound = _Sound(film, self._config, start_ns)
            # players guess the matrix of a film without one as they do for its source
            if not is_file or planes.colour.matrix != "bt601" or planes.layout == "rgb":
                self._reel.state_colours(planes)
        text = self._cues.text_at(frame.media_ns / NS_PER_S)
        self._reel.add(picture, text, frame.media_ns, end_ns)


class _Reel:
    """Pictures of a film on their way into its file; those of another size are fitted into the first one's."""

    def __init__(self, film: FilmFile, picture: av.VideoFrame, fps: float | None, start_ns: int) -> None:
        self._film = film
        self._start_ns = start_ns
        self._last_pts = -1
        self._durations: deque[int] = deque()
        self.sound: _Sound | None = None
        rate = Fraction(fps or 25).limit_denominator(1001)
        self._stream = film.container.add_stream(film.form.encoder, rate=rate, options=dict(film.form.options))
        self._stream.width = picture.width
        self._stream.height = picture.height
        self._stream.pix_fmt = "yuv420p"
        context = self._stream.codec_context
        context.time_base = Fraction(1, CLOCK_HZ)
        context.thread_type = "FRAME"
        context.color_range = ColorRange.MPEG

    def state_colours(self, planes: FramePlanes) -> None:
        """State how the film's samples are read, which is how those of these planes are; before the first picture."""
        context = self._stream.codec_context
        context.colorspace = SPACES["bt601" if planes.layout != "yuv" else planes.colour.matrix]
        if planes.colour.matrix == "bt709":
            context.color_primaries = ColorPrimaries.BT709
            context.color_trc = ColorTrc.BT709

    def add(self, picture: av.VideoFrame, text: str, media_ns: int, end_ns: int) -> None:
        """Write a picture with a caption, shown from a media time to another."""
        picture = _fitted(picture, self._stream.width, self._stream.height)
        if text:
            drawn_caption(text, picture.width, picture.height).blend(picture)
        self._last_pts = max(self._last_pts + 1, self._ticks(media_ns))
        self._durations.append(max(1, self._ticks(end_ns) - self._last_pts))
        picture.pts = self._last_pts
        picture.time_base = Fraction(1, CLOCK_HZ)
        self._encode(picture)
        if self.sound is not None:
            self.sound.advance(Fraction(end_ns - self._start_ns, NS_PER_S))

    def end(self) -> None:
        """Write what waits in the encoders, and complete the file."""
        try:
            self._encode(None)
            if self.sound is not None:
                self.sound.end()
        finally:
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self.sound is not None:
            self.sound.close()
        self._film.close()

    def _ticks(self, media_ns: int) -> int:
        return round(Fraction(media_ns - self._start_ns) * CLOCK_HZ / NS_PER_S)

    def _encode(self, picture: av.VideoFrame | None) -> None:
        with self._film.writing():
            packets = self._stream.encode(picture)
        for packet in packets:
            packet.duration = self._durations.popleft()
            self._film.mux(packet)


class _Sound:
    """Sound of a source's file, read beside the pictures: all its streams, from the beginning of the film on."""

    def __init__(self, film: FilmFile, config: Config, start_ns: int) -> None:
        self._container = source_container(config.source, config.capture)
        video = chosen_stream(self._container, config.source, config.capture, reports=False)
        self._shift_s = origin_of(self._container, video) + Fraction(start_ns, NS_PER_S)
        self._starts_later = start_ns > 0
        streams = self._container.streams.audio
        tracks = {stream.index: sound_track(film, stream, self._shift_s) for stream in streams}
        self._tracks = {index: track for index, track in tracks.items() if track is not None}
        self._packets = self._container.demux(*(stream for stream in streams if stream.index in self._tracks))
        if self._starts_later:
            self._container.seek(math.floor(self._shift_s * av.time_base))
        self._next = self._read()

    def advance(self, until_s: Fraction) -> None:
        """Write the sound that begins before a time of the film."""
        while self._next is not None and self._at_s(self._next) < until_s:
            if not self._starts_later or self._at_s(self._next) >= 0:
                self._tracks[self._next.stream.index].put(self._next)
            self._next = self._read()

    def end(self) -> None:
        """Write what waits in the encoders."""
        for track in self._tracks.values():
            track.end()

    def close(self) -> None:
        """Close the source's file."""
        self._container.close()

    def _read(self) -> av.Packet | None:
        """Return the next packet with a time; None at the end, and once the file cannot be read on."""
        if not self._tracks:
            return None
        try:
            return next((packet for packet in self._packets if packet.size and packet.pts is not None), None)
        except av.FFmpegError:
            return None

    def _at_s(self, packet: av.Packet) -> Fraction:
        assert packet.pts is not None
        assert packet.time_base is not None
        return packet.pts * packet.time_base - self._shift_s


def _fitted(picture: av.VideoFrame, width_px: int, height_px: int) -> av.VideoFrame:
    """Return a picture at a size, its aspect ratio kept, with black bars."""
    if (picture.width, picture.height) == (width_px, height_px):
        return picture
    scale = min(width_px / picture.width, height_px / picture.height)
    small = picture.reformat(
        max(2, round(picture.width * scale / 2) * 2), max(2, round(picture.height * scale / 2) * 2), threads=1
    )
    fitted = av.VideoFrame(width_px, height_px, "yuv420p")
    left = (width_px - small.width) // 4 * 2
    top = (height_px - small.height) // 4 * 2
    for plane, source, value, share in zip(
        fitted.planes, small.planes, (BLACK, NEUTRAL, NEUTRAL), (1, 2, 2), strict=True
    ):
        samples = np.ndarray((plane.height, plane.line_size), np.uint8, buffer=plane)
        samples[:] = value
        part = np.ndarray((source.height, source.line_size), np.uint8, buffer=source)[:, : source.width]
        rows = slice(top // share, top // share + source.height)
        samples[rows, left // share : left // share + source.width] = part
    return fitted
