"""Film with the captions as a subtitle track: the packets of the source's pictures and sound are copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import PurePath

import av
from av.stream import Disposition

from stream.config import Config
from stream.errors import OutputError
from stream.extensions.film.captions import FilmCues
from stream.extensions.film.container import FilmFile, FilmForm, PacketTrack, Track, sound_track, source_container
from stream.sinks.captions import Cue, subrip_text, webvtt_text
from stream.sources.decoder import origin_of
from stream.sources.variants import chosen_stream

TICKS_S = 1000
"""Time base of the subtitle track: milliseconds, as captions have."""

EARLY_S = 1
"""Time by which a caption is passed to the muxer before the packets beside it: MP4 ends a caption with an empty one if
the next has not come by then."""

STYLE = b"""[Script Info]
ScriptType: v4.00+

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, Underline, \
StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, MarginR, MarginV, Encoding
Style: Default,Arial,16,&Hffffff,&Hffffff,&H0,&H0,0,0,0,0,100,100,0,0,1,1,0,2,10,10,10,1

[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
"""
"""Style of the track, white at the bottom; FFmpeg's encoders of subtitles do not open without one."""


class SoftFilm:
    """Copy of a file with a subtitle track, written at the end of the run: how long a caption lasts is known only then.

    The whole file is copied, also if the run ended before it. Raises OutputError if the file's pictures do not fit into
    the container, or have no times, SourceError if the file cannot be read, OutputFailed if the film takes no more.

    Arguments are those of `BurnedFilm`.
    """

    def __init__(self, path: str, name: str, config: Config, cues: FilmCues) -> None:
        self._path = path
        self._name = name
        self._config = config
        self._cues = cues
        with source_container(config.source, config.capture) as container:
            video = chosen_stream(container, config.source, config.capture, reports=False)
            codec = video.codec_context.codec.canonical_name
            if not FilmForm.of(name).holds(codec):
                suffix = PurePath(name).suffix
                raise OutputError(
                    f"output {name!r} with --soft copies pictures, and {suffix} cannot hold {codec}; name an .mkv, or "
                    "leave --soft out"
                )
            if video.start_time is None:
                raise OutputError(
                    f"output {name!r} with --soft copies times, and the pictures of {config.source!r} have none; leave "
                    "--soft out"
                )

    def advance(self, frame_index: int) -> None:
        """Do nothing: all is written at the end."""

    def finish(self, frame_index: int, end_s: float | None) -> None:
        """Write the file; the last caption ends at a media time."""
        cues = self._cues.finish(end_s)
        config = self._config
        with source_container(config.source, config.capture) as container:
            video = chosen_stream(container, config.source, config.capture, reports=False)
            film = FilmFile(self._path, self._name)
            try:
                shift_s = origin_of(container, video)
                tracks: dict[int, Track] = {video.index: PacketTrack(film, video, shift_s)}
                for stream in container.streams.audio:
                    track = sound_track(film, stream, shift_s)
                    if track is not None:
                        tracks[stream.index] = track
                subtitles = _SubtitleTrack(film, cues)
                for packet in _packets(container, [stream for stream in container.streams if stream.index in tracks]):
                    if packet.dts is not None and packet.time_base is not None:
                        subtitles.advance(packet.dts * packet.time_base - shift_s + EARLY_S)
                    tracks[packet.stream.index].put(packet)
                subtitles.advance(None)
                for track in tracks.values():
                    track.end()
            finally:
                film.close()

    def close(self) -> None:
        """Do nothing: nothing is open."""


class _SubtitleTrack:
    """Subtitle track of a film."""

    def __init__(self, film: FilmFile, cues: Sequence[Cue]) -> None:
        self._film = film
        self._cues = deque(cues)
        with film.writing():
            self._track = film.container.add_stream(film.form.subtitles)
            self._track.codec_context.subtitle_header = STYLE
            self._track.time_base = Fraction(1, TICKS_S)
            self._track.disposition = Disposition.default

    def advance(self, until_s: Fraction | None) -> None:
        """Write the cues that begin by a time of the film; None is its end."""
        while self._cues and (until_s is None or self._cues[0].start_ms <= until_s * TICKS_S):
            cue = self._cues.popleft()
            packet = av.Packet(self._data(cue.text))
            packet.pts = packet.dts = cue.start_ms
            packet.duration = cue.end_ms - cue.start_ms
            packet.time_base = Fraction(1, TICKS_S)
            packet.stream = self._track
            self._film.mux(packet)

    def _data(self, text: str) -> bytes:
        codec = self._film.form.subtitles
        if codec == "webvtt":
            return webvtt_text(text).encode()
        if codec == "subrip":
            return subrip_text(text).encode()
        data = text.encode()
        # 3GPP TS 26.245: the text's length in bytes comes first
        return len(data).to_bytes(2, "big") + data


def _packets(container: av.container.InputContainer, streams: Sequence[av.stream.Stream]) -> Iterator[av.Packet]:
    """Yield the packets of streams, up to where the file cannot be read on."""
    try:
        yield from container.demux(*streams)
    except av.FFmpegError:
        return
