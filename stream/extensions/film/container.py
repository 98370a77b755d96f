"""File of a film: the forms of its endings, its container while it is written, and the copying of sound into it."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path, PurePath
from typing import TypeAlias

import av

from stream import logs
from stream.config import CaptureConfig
from stream.errors import OutputFailed
from stream.sources.decoder import open_container, rate_of
from stream.sources.hardware import HardwareDecoding

H264 = {"preset": "veryfast", "crf": "20", "bf": "0", "g": "60"}
"""`bf`: no B-frames, so that packets are in the order of frames and the film starts exactly when its source does. `g`:
the most frames that a killed run loses, besides those in the encoder."""

VP9 = {"deadline": "realtime", "cpu-used": "6", "row-mt": "1", "crf": "28", "b": "0", "lag-in-frames": "0", "g": "120"}
"""Fast enough to keep up with a model; at the default settings VP9 takes seconds a frame."""

GROWING = {"flush_packets": "1", "movflags": "hybrid_fragmented+frag_keyframe+delay_moov"}
"""Playable however the run ends: what was written is in the file at once. MP4 has a fragment from each key frame on and
is an ordinary one once it is closed. `delay_moov`: sound that begins before 0, as AAC does, keeps its times."""

ENCODER_NAMES = {"libopus": "Opus", "aac": "AAC"}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FilmForm:
    """Container and codecs of films with an ending, in FFmpeg's names."""

    format: str
    """Container."""
    subtitles: str = "mov_text"
    """Codec of its subtitle track."""
    encoder: str = "libx264"
    """Encoder of pictures."""
    options: Mapping[str, str] = field(default_factory=lambda: H264)
    """Options of the encoder of pictures."""
    audio_encoder: str = "aac"
    """Encoder of sound that the container cannot hold as it is."""

    @classmethod
    def of(cls, path: str) -> FilmForm:
        """Return the form of a path's ending."""
        return FORMS[PurePath(path).suffix.lower()]

    def holds(self, codec: str) -> bool:
        """Return whether the container takes packets of a codec, by its name."""
        return codec in av.open(io.BytesIO(), "w", format=self.format).supported_codecs


FORMS = {
    ".mp4": FilmForm("mp4"),
    ".mov": FilmForm("mov"),
    ".mkv": FilmForm("matroska", subtitles="subrip"),
    ".webm": FilmForm("webm", subtitles="webvtt", encoder="libvpx-vp9", options=VP9, audio_encoder="libopus"),
}


class FilmFile:
    """Container of a film while it is written. Every method raises OutputFailed once the file takes nothing more.

    Args:
        path: Place of the file, which is overwritten.
        name: Path of the output, for messages.
        grows: The file can be played before it is complete.
    """

    def __init__(self, path: str, name: str, *, grows: bool = False) -> None:
        self.name = name
        self.form = FilmForm.of(name)
        with self.writing():
            self.container = av.open(path, "w", format=self.form.format, options=dict(GROWING) if grows else None)

    def mux(self, packet: av.Packet) -> None:
        """Write a packet, whose stream is one of the container's."""
        with self.writing():
            self.container.mux(packet)

    def close(self) -> None:
        """Complete the file."""
        with self.writing():
            self.container.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Context manager of whatever may find that the file takes nothing more."""
        try:
            yield
        except (av.FFmpegError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise OutputFailed(f"cannot write {self.name!r}: {reason}") from error


def source_container(source: str, capture: CaptureConfig) -> av.container.InputContainer:
    """Open a source's file for packets. Raises SourceError."""
    path = Path(os.path.expanduser(source))
    software = capture.model_copy(update={"decoder": "software"})
    return open_container(path, software, HardwareDecoding(software, source))


class PacketTrack:
    """Track of a film with the packets of a source's stream, as they are.

    Args:
        film: File of the film.
        stream: Stream of the source.
        shift_s: Time of the source, in seconds, that is 0 in the film.
    """

    def __init__(self, film: FilmFile, stream: av.stream.Stream, shift_s: Fraction) -> None:
        self._film = film
        assert stream.time_base is not None
        self._shift = round(shift_s / stream.time_base)
        self._track = film.container.add_stream_from_template(stream)
        copy_names(stream, self._track)
        rate = rate_of(stream) if isinstance(stream, av.VideoStream) else None
        self._period = round(1 / (rate * stream.time_base)) if rate else 1
        self._waiting: list[av.Packet] = []
        self._last_dts: int | None = None

    def put(self, packet: av.Packet) -> None:
        """Write a packet; one without a decoding time waits for the next with one."""
        if not packet.size or packet.pts is None:
            return
        self._waiting.append(packet)
        if packet.dts is not None:
            self._write(packet.dts)

    def end(self) -> None:
        """Write the packets that wait."""
        if self._waiting:
            self._write(self._waiting[-1].pts or 0)

    def _write(self, last_dts: int) -> None:
        """Write the packets that wait, the last of which is decoded at a time. Matroska leaves out the decoding times
        of the first pictures, which come a period apart.

        A packet that goes back in time, which no container takes, is left out.
        """
        for place, packet in enumerate(self._waiting, 1 - len(self._waiting)):
            dts = last_dts + place * self._period
            if self._last_dts is not None and dts <= self._last_dts:
                log.debug("%s: a packet at %s goes back in time", self._film.name, dts)
                continue
            self._last_dts = dts
            packet.pts = (packet.pts or 0) - self._shift
            packet.dts = dts - self._shift
            packet.stream = self._track
            self._film.mux(packet)
        self._waiting.clear()


class EncodedTrack:
    """Track of a film with a source's sound in another codec. Arguments as of `PacketTrack`."""

    def __init__(self, film: FilmFile, stream: av.AudioStream, shift_s: Fraction) -> None:
        self._film = film
        self._shift_s = shift_s
        self._source = stream.codec_context
        encoder = film.form.audio_encoder
        # Opus has no other rate
        rate = 48_000 if encoder == "libopus" else self._source.sample_rate
        self._track = film.container.add_stream(encoder, rate=rate, layout=self._source.layout)
        copy_names(stream, self._track)

    def put(self, packet: av.Packet) -> None:
        """Decode a packet and write its sound; what cannot be decoded is left out."""
        try:
            frames = self._source.decode(packet)
        except av.FFmpegError as error:
            log.debug("%s: sound at %s cannot be decoded: %s", self._film.name, packet.pts, error)
            return
        for frame in frames:
            if frame.pts is not None and frame.time_base is not None:
                frame.pts -= round(self._shift_s / frame.time_base)
            self._encode(frame)

    def end(self) -> None:
        """Write what waits in the encoder."""
        self._encode(None)

    def _encode(self, frame: av.AudioFrame | None) -> None:
        with self._film.writing():
            for packet in self._track.encode(frame):
                self._film.mux(packet)


Track: TypeAlias = PacketTrack | EncodedTrack


def copy_names(stream: av.stream.Stream, track: av.stream.Stream) -> None:
    """Give a track the language and the title of a source's stream."""
    for key in ("language", "title"):
        if key in stream.metadata:
            track.metadata[key] = stream.metadata[key]


def sound_track(film: FilmFile, stream: av.AudioStream, shift_s: Fraction) -> Track | None:
    """Return the track for a stream of sound: copied if the container takes its codec, else encoded anew, with a note.

    None, with a note, if it can be neither.
    """
    context = stream.codec_context
    if context is None:
        logs.say(f"note: sound of an unknown codec is left out of {film.name}", event="film")
        return None
    codec = context.codec.canonical_name
    if film.form.holds(codec):
        return PacketTrack(film, stream, shift_s)
    new = ENCODER_NAMES[film.form.audio_encoder]
    suffix = PurePath(film.name).suffix
    logs.say(f"note: {suffix} cannot hold sound as {codec}; it is encoded as {new} in {film.name}", event="film")
    return EncodedTrack(film, stream, shift_s)
