"""Opening containers, choosing and decoding their streams, and the formats that this FFmpeg can read."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import av
from av.stream import Disposition

from arr_coc.types import NS_PER_S
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import SkippedItem, SourceInfo
from stream.sources.aspect import PixelAspect
from stream.sources.checks import check_file
from stream.sources.connection import decoder_options, decoding_failure, file_options
from stream.sources.deinterlace import Deinterlacer
from stream.sources.hardware import HardwareDecoding
from stream.sources.motion_vectors import EXPORT_VECTORS
from stream.sources.orientation import Orientation
from stream.sources.segments import SegmentRecorder
from stream.sources.timing import MediaTimeline
from stream.sources.tonemap import report_hdr

log = logging.getLogger(__name__)

DECODERS: Mapping[str, Sequence[str]] = {
    "H.264": ("h264",),
    "HEVC": ("hevc",),
    "VP9": ("vp9", "libvpx-vp9"),
    "AV1": ("libdav1d", "libaom-av1", "libgav1"),
    "MJPEG": ("mjpeg",),
}
"""Video formats → decoders, of which one is enough. (FFmpeg's own `av1` only drives hardware.)"""

HEATMAP_ENCODER = "libx264"

PROTOCOLS = ("rtsp", "https", "udp", "rtmp")


def ffmpeg_version() -> str:
    """Return the versions of PyAV and of its libavcodec."""
    codec = ".".join(map(str, av.library_versions["libavcodec"]))
    return f"{av.__version__} (libavcodec {codec})"


def decodable() -> dict[str, bool]:
    """Return each video format, and whether it can be decoded."""
    return {
        name: any(decoder in av.codecs_available and _opens(decoder, "r") for decoder in decoders)
        for name, decoders in DECODERS.items()
    }


def encodes_heatmaps() -> bool:
    return _opens(HEATMAP_ENCODER, "w")


def reads(device_format: str) -> bool:
    """Return whether FFmpeg has an input for devices, such as `v4l2`; one may have several names."""
    return any(device_format in name.split(",") for name in av.formats_available)


def protocols() -> dict[str, bool]:
    """Return each network protocol, and whether FFmpeg has it; the check connects to an unused port of this machine."""
    return {name: _speaks(name) for name in PROTOCOLS}


def _opens(name: str, mode: str) -> bool:
    try:
        av.codec.Codec(name, mode)
    except ValueError:
        return False
    return True


def _speaks(protocol: str) -> bool:
    try:
        av.open(f"{protocol}://127.0.0.1:1/nothing", timeout=(0.2, 0.2)).close()
    except av.error.ProtocolNotFoundError:
        return False
    except (av.FFmpegError, ValueError):
        return True
    return True


AV_TIME_BASE = 1_000_000
"""FFmpeg's ticks per second for the times of a whole container."""

TEXT_DEMUXERS = frozenset({"tty", "bin", "xbin", "adf", "idf"})
"""Demuxers that render a text file as a terminal's screen, which is not a video."""

_TILE = 0x80000
"""AV_DISPOSITION_DEPENDENT, for which older versions of PyAV have no name: a part of a picture."""

_MATROSKA_END = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")
"""The tag DURATION of a Matroska track: the time of its end."""


def open_container(path: Path, config: CaptureConfig, hardware: HardwareDecoding) -> av.container.InputContainer:
    """Open a file for reading, and no other file that it may name.

    Raises SourceNotFound if the file does not exist, SourceError if FFmpeg cannot or may not read it.
    """
    check_file(path, config.max_pixels)
    try:
        container = av.open(
            f"file:{path}", options=file_options(config), metadata_errors="replace", hwaccel=hardware.accelerator
        )
    except av.FFmpegError as error:
        raise _not_a_video(path, error.strerror or str(error)) from error
    if container.format.name in TEXT_DEMUXERS:
        container.close()
        raise _not_a_video(path, "it looks like text")
    return container


def video_streams(container: av.container.InputContainer) -> list[av.video.stream.VideoStream]:
    """Return the video streams of a container; cover art is none."""
    return [stream for stream in container.streams.video if not stream.disposition & Disposition.attached_pic]


def video_stream(
    container: av.container.InputContainer, name: str, index: int | None = None
) -> av.video.stream.VideoStream:
    """Return video stream `index`, counted from 0; by default the first one marked as default, else the first one.

    Cover art is no video stream. Raises SourceError if there is no video stream, or none of that number, and for a
    picture in tiles, each of which is a stream.
    """
    streams = video_streams(container)
    if not streams:
        kinds = sorted({stream.type for stream in container.streams} - {"video"})
        if kinds:
            content = f"only {' and '.join(kinds)}"
        else:
            content = "nothing that moves"
        raise SourceError(f"{name} has no video stream ({content} in it); give a file with pictures")
    if not any(stream.disposition & Disposition.default for stream in streams) and any(
        stream.disposition & _TILE for stream in streams
    ):
        raise SourceError(f"{name} is a picture in tiles, which is read from a file; save it in one, or as JPEG")
    if index is None:
        stream = next((stream for stream in streams if stream.disposition & Disposition.default), streams[0])
    elif index < len(streams):
        stream = streams[index]
    else:
        choices = "; ".join(f"{number}: {_describe(stream)}" for number, stream in enumerate(streams))
        raise SourceError(f"{name} has no video stream {index}; there is {choices}")
    if stream.codec_context is None:
        raise SourceError(
            f"{name} holds pictures that this FFmpeg has no decoder for; convert it, to H.264 for example"
        )
    return stream


def _describe(stream: av.video.stream.VideoStream) -> str:
    """Return a short description of a video stream: codec, size, language, title."""
    context = stream.codec_context
    if context is None:
        words = ["undecodable"]
    else:
        words = [context.name, f"{context.width}x{context.height}"]
    language = stream.metadata.get("language")
    title = stream.metadata.get("title")
    words += [language] if language not in (None, "und") else []
    words += [f"{title!r}"] if title else []
    return " ".join(words)


def timeline_of(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> MediaTimeline:
    """Return the stream's clock, with the origin that players use."""
    # the parts of HLS have their own clocks, and no gaps
    bridges_gaps = container.format.name == "hls"
    return MediaTimeline(stream.time_base, rate_of(stream), origin_of(container, stream), bridges_gaps=bridges_gaps)


def origin_of(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> Fraction:
    """Return the presentation time, in seconds, that players show as 0.

    It is the container's start time if that is positive, else 0 or the video's start, whichever is earlier.
    """
    start = Fraction(container.start_time or 0, AV_TIME_BASE)
    video_start = (stream.start_time or 0) * (stream.time_base or Fraction(0))
    if abs(video_start - start) <= Fraction(1, AV_TIME_BASE):
        start = video_start
    if start > 0:
        return start
    return min(Fraction(0), video_start)


def rate_of(stream: av.video.stream.VideoStream) -> Fraction | None:
    """Return the frames per second that the container declares or FFmpeg estimates."""
    return stream.average_rate or stream.guessed_rate


def begin_near(
    container: av.container.InputContainer, stream: av.video.stream.VideoStream, media_ns: int | None
) -> None:
    """Seek to the last key frame before a media time, or (None) to the beginning, as exactly as the container's index
    allows.

    A container that cannot seek stays at its position.
    """
    seconds = Fraction(media_ns or 0, NS_PER_S) + origin_of(container, stream)
    with contextlib.suppress(av.FFmpegError):
        container.seek(0 if media_ns is None else int(seconds * AV_TIME_BASE))


def declared_end_ns(container: av.container.InputContainer, stream: av.video.stream.VideoStream) -> int | None:
    """Return the declared end of the stream as media time; None if the container declares none."""
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
    """Return the declared duration of the video, for the stream or else for the whole container."""
    end_ns = declared_end_ns(container, stream)
    if end_ns is not None or container.duration is None:
        return end_ns
    return container.duration * NS_PER_S // AV_TIME_BASE


def source_info(
    name: str,
    stream: av.video.stream.VideoStream,
    first: av.VideoFrame,
    shown_px: tuple[int, int],
    *,
    live: bool,
    duration_ns: int | None = None,
    frames: int | None = None,
    device: str | None = None,
) -> SourceInfo:
    """Return the properties of a stream, from its declaration and first frame; say if it is HDR.

    Args:
        name: Name of the source, without secrets.
        stream: Stream of the container.
        first: First decoded frame.
        shown_px: Its (height, width) as it is shown.
        live: The source has no known end.
        duration_ns: Length, if known.
        frames: Number of frames, if known.
        device: Decoding hardware, if any.
    """
    rate = rate_of(stream)
    report_hdr(name, first)
    orientation = Orientation.of(first)
    return SourceInfo(
        name=name,
        width_px=shown_px[1],
        height_px=shown_px[0],
        fps=float(rate) if rate else None,
        duration_ns=duration_ns,
        frames=frames,
        live=live,
        codec=stream.codec_context.name + (f" on {device}" if device else ""),
        pixel_format=first.format.name,
        rotation=90 * orientation.turns if orientation.mirrored else first.rotation,
        mirrored=orientation.mirrored,
    )


def _not_a_video(path: Path, reason: str) -> SourceError:
    return SourceError(
        f"{path} is not a video that FFmpeg can read: {reason}; it may be truncated, damaged, or not a video at all"
    )


WITH_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""Codecs of WebM whose own decoders leave transparency out → those that decode it."""


def decoding_context(stream: av.video.stream.VideoStream) -> av.video.codeccontext.VideoCodecContext:
    """Return the context that decodes the packets of a stream: its own, or one that decodes its transparency, too.

    Without such a decoder in FFmpeg, what is behind a transparent area is shown, which is reported.
    """
    context = stream.codec_context
    decoder = WITH_ALPHA.get(context.codec.canonical_name)
    if decoder is None or stream.metadata.get("alpha_mode") != "1":
        return context
    try:
        with_alpha = av.CodecContext.create(decoder, "r")
    except av.codec.codec.UnknownCodecError:
        log.warning("the video's transparent areas show what is behind them: FFmpeg has no decoder %s", decoder)
        return context
    assert isinstance(with_alpha, av.video.codeccontext.VideoCodecContext)
    with_alpha.width = context.width
    with_alpha.height = context.height
    # VP8 has no such fields: its container may
    with_alpha.color_range = context.color_range
    with_alpha.colorspace = context.colorspace
    with_alpha.color_primaries = context.color_primaries
    with_alpha.color_trc = context.color_trc
    return with_alpha


@dataclass(frozen=True, slots=True)
class _Loss:
    first: int
    last: int
    reason: str
    pts: int | None
    media_ns: int | None
    exact: bool

    def item(self) -> SkippedItem:
        count = self.last - self.first + 1
        if count == 1:
            span = f"packet {self.first}"
        else:
            span = f"packets {self.first}-{self.last}"
        return SkippedItem(span if self.exact else f"{span} or one just before", self.reason, self.media_ns, count)


class LossTracker:
    """Record of failed packets, added in file order and returned in presentation order.

    A decoder reads packets before it outputs their pictures, so a failure is known a few frames early. Neighbouring
    packets become one item, with the reason and time of the first; a packet that fails again counts once.
    """

    def __init__(self) -> None:
        self._waiting: list[_Loss] = []

    def lost(self, number: int, reason: str, pts: int | None, media_ns: int | None, *, exact: bool = True) -> None:
        """Record the failure of a packet.

        Args:
            number: Number of the packet, from 1.
            reason: Reason of the failure.
            pts: PTS of the packet, in the time base of the stream.
            media_ns: Its media time.
            exact: False if a threaded decoder reported the failure late.
        """
        if self._waiting and number - 1 <= self._waiting[-1].last <= number:
            self._waiting[-1] = replace(self._waiting[-1], last=number)
        else:
            self._waiting.append(_Loss(number, number, reason, pts, media_ns, exact))

    def before(self, pts: int | None) -> tuple[SkippedItem, ...]:
        """Remove and return the losses before a frame with this PTS; all losses if a PTS is missing."""
        due = [loss for loss in self._waiting if pts is None or loss.pts is None or loss.pts < pts]
        self._waiting = [loss for loss in self._waiting if loss not in due]
        return tuple(loss.item() for loss in due)

    def rest(self) -> tuple[SkippedItem, ...]:
        """Remove and return the remaining losses."""
        return self.before(None)


ONE_THREAD_MAX_PX = 1920 * 1088
"""Up to this many pixels, one thread decodes faster than frames are consumed, leaves the other cores to the other
stages, and reports exactly which packet failed."""

LARGE_PICTURE_THREADS = 4
"""Threads for larger pictures. A failure is then reported this many packets late, and a file with damage in its last
packets may lose as many of its last frames, because PyAV cannot drain a decoder past an error."""

MAX_READ_ERRORS = 16
"""Consecutive failed reads after which the rest of a file is given up."""


class VideoDecoder:
    """Decoder of one stream of a container; failed packets are recorded and skipped."""

    def __init__(
        self,
        container: av.container.InputContainer,
        stream: av.video.stream.VideoStream,
        timeline: MediaTimeline,
        config: CaptureConfig,
        segments: SegmentRecorder | None = None,
    ) -> None:
        self._segments = segments
        self._container = container
        self._stream = stream
        self._timeline = timeline
        self._packets = 0
        self._losses = LossTracker()
        self._max_pixels = config.max_pixels
        self._deinterlace = config.deinterlace
        self._context = context = decoding_context(stream)
        self._one_thread = context.is_hwaccel or context.width * context.height <= ONE_THREAD_MAX_PX
        self.deinterlacer = self._new_deinterlacer()
        self.aspect = PixelAspect(config.aspect, stream, context, config.max_pixels)
        context.options = {**decoder_options(config.max_pixels), **EXPORT_VECTORS}
        context.thread_type = "AUTO"
        context.thread_count = 1 if self._one_thread else LARGE_PICTURE_THREADS

    def frames(self) -> Iterator[av.VideoFrame]:
        """Yield the decoded frames in presentation order; to be called once, or after a seek."""
        if self._segments is not None:
            self._segments.restart()
        if self._context.is_open:
            self._context.flush_buffers()  # a seek has flushed the container's own contexts only
        self.deinterlacer = deinterlacer = self._new_deinterlacer()
        for packet in self._read():
            frames = self._decode(packet)
            if self._segments is not None:
                self._segments.packet(packet)
            for frame in frames:
                yield from deinterlacer.put(frame)
        try:
            rest = self._context.decode(None)
        except av.FFmpegError as error:
            self._losses.lost(self._packets, _reason(error), None, None, exact=False)
            rest = []
        for frame in rest:
            yield from deinterlacer.put(frame)
        yield from deinterlacer.rest()

    def lost_before(self, pts: int | None) -> tuple[SkippedItem, ...]:
        """Remove and return the losses before the frame with this PTS."""
        return self._losses.before(pts)

    def lost_after_last(self) -> tuple[SkippedItem, ...]:
        """Remove and return the remaining losses."""
        return self._losses.rest()

    def _new_deinterlacer(self) -> Deinterlacer:
        return Deinterlacer(self._deinterlace, self._context.codec.canonical_name)

    def _read(self) -> Iterator[av.Packet]:
        failures = 0
        while failures < MAX_READ_ERRORS:
            try:
                for packet in self._container.demux(self._stream):
                    if packet.size:
                        failures = 0
                        self._packets += 1
                        yield packet
                return
            except av.FFmpegError as error:
                failures += 1
                self._losses.lost(self._packets + 1, _reason(error), None, None, exact=False)

    def _decode(self, packet: av.Packet) -> list[av.VideoFrame]:
        try:
            return self._context.decode(packet)
        except av.FFmpegError as error:
            if self._one_thread:
                media_ns = self._timeline.at_ns(packet.pts)
            else:
                media_ns = None
            pts = packet.pts if self._one_thread else None
            reason = decoding_failure(error, self._max_pixels)
            self._losses.lost(self._packets, reason, pts, media_ns, exact=self._one_thread)
            return []


def _reason(error: av.FFmpegError) -> str:
    return error.strerror or str(error)
