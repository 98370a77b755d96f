"""Opening a media file: its errors, its video stream, and where its time begins and ends."""

from __future__ import annotations

import contextlib
import re
from fractions import Fraction
from pathlib import Path

import av
from av.stream import Disposition

from arr_coc.types import NS_PER_S
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.sources.file_check import check_file
from stream.sources.limits import file_options
from stream.sources.timeline import MediaTimeline

AV_TIME_BASE = 1_000_000
"""FFmpeg's ticks a second for the times of a whole container."""

TEXT_DEMUXERS = frozenset({"tty", "bin", "xbin", "adf", "idf"})
"""Demuxers that draw a text file as a terminal's screen: not what anybody means by a video."""

_MATROSKA_END = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")
"""The tag DURATION of a Matroska track: the time of its end."""


def open_container(path: Path, config: CaptureConfig) -> av.container.InputContainer:
    """Opens a file for reading, and nothing that it may name.

    Raises SourceNotFound where there is none, SourceError where FFmpeg cannot read it, or may not.
    """
    check_file(path, config.max_pixels)
    try:
        container = av.open(f"file:{path}", options=file_options(config), metadata_errors="replace")
    except av.FFmpegError as error:
        raise _not_a_video(path, error.strerror or str(error)) from error
    if container.format.name in TEXT_DEMUXERS:
        container.close()
        raise _not_a_video(path, "it looks like text")
    return container


def video_stream(
    container: av.container.InputContainer, name: str, wanted: int | None = None
) -> av.video.stream.VideoStream:
    """Video stream `wanted`, counted from 0; without a number the first one marked as default, else the first one.

    Cover art is no video stream. Raises SourceError where there is none, or none of that number.
    """
    streams = [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]
    if not streams:
        kinds = sorted({stream.type for stream in container.streams} - {"video"})
        held = f"only {' and '.join(kinds)}" if kinds else "nothing that moves"
        raise SourceError(f"{name} has no video stream ({held} in it); give a file with pictures")
    if wanted is None:
        stream = next((stream for stream in streams if stream.disposition & Disposition.default), streams[0])
    elif wanted < len(streams):
        stream = streams[wanted]
    else:
        listed = "; ".join(f"{number}: {_described(stream)}" for number, stream in enumerate(streams))
        raise SourceError(f"{name} has no video stream {wanted}; there is {listed}")
    if stream.codec_context is None:
        raise SourceError(
            f"{name} holds pictures that this FFmpeg has no decoder for; convert it, to H.264 for example"
        )
    return stream


def _described(stream: av.video.stream.VideoStream) -> str:
    """A video stream in a few words: codec, size, language, title."""
    context = stream.codec_context
    words = ["undecodable"] if context is None else [context.name, f"{context.width}x{context.height}"]
    language, title = stream.metadata.get("language"), stream.metadata.get("title")
    words += [language] if language not in (None, "und") else []
    words += [f"{title!r}"] if title else []
    return " ".join(words)


def timeline_of(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> MediaTimeline:
    """The stream's clock, from where players begin."""
    return MediaTimeline(stream.time_base, rate_of(stream), origin_of(container, stream))


def origin_of(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> Fraction:
    """The presentation time, in seconds, that players show as 0.

    It is the container's start time where that is positive, else 0, or the video's own start where that is earlier.
    """
    start = Fraction(container.start_time or 0, AV_TIME_BASE)
    video_start = (stream.start_time or 0) * (stream.time_base or Fraction(0))
    if abs(video_start - start) <= Fraction(1, AV_TIME_BASE):
        start = video_start
    return start if start > 0 else min(Fraction(0), video_start)


def rate_of(stream: av.video.stream.VideoStream) -> Fraction | None:
    """Frames a second as the container declares or FFmpeg estimates them."""
    return stream.average_rate or stream.guessed_rate


def begin_near(
    container: av.container.InputContainer, stream: av.video.stream.VideoStream, media_ns: int | None
) -> None:
    """Goes to the last key frame before a media time, as far as the container can tell, or (None) to the beginning.

    Where it cannot, it stays where it is.
    """
    seconds = Fraction(media_ns or 0, NS_PER_S) + origin_of(container, stream)
    with contextlib.suppress(av.FFmpegError):
        container.seek(0 if media_ns is None else int(seconds * AV_TIME_BASE))


def declared_end_ns(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> int | None:
    """The media time at which the container says that this stream ends; None where it says nothing of it alone."""
    if stream.duration is not None and stream.time_base is not None:
        end = ((stream.start_time or 0) + stream.duration) * stream.time_base
    elif match := _MATROSKA_END.fullmatch(stream.metadata.get("DURATION", "")):
        hours, minutes, seconds = match.groups()
        end = int(hours) * 3600 + int(minutes) * 60 + Fraction(seconds)
    elif container.duration is not None and len(container.streams) == 1:
        end = Fraction((container.start_time or 0) + container.duration, AV_TIME_BASE)
    else:
        return None
    return int((end - origin_of(container, stream)) * NS_PER_S)


def duration_ns_of(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> int | None:
    """How long there is something to see, as declared, for the stream or else for the whole container."""
    end_ns = declared_end_ns(container, stream)
    if end_ns is not None or container.duration is None:
        return end_ns
    return container.duration * NS_PER_S // AV_TIME_BASE


def _not_a_video(path: Path, reason: str) -> SourceError:
    return SourceError(
        f"{path} is not a video that FFmpeg can read: {reason}; it may be cut short, damaged, or no video at all"
    )
