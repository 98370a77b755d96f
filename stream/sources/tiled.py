"""Pictures of AVIF and HEIC: those in tiles, as phones store their photos, are put together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import av

from arr_coc.errors import of_counted
from arr_coc.types import NS_PER_S
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import Source, SourceFrame, SourceInfo, never_stop
from stream.sources.checks import SCALE_DOWN, TimeRange, check_file, more_than, refuse_stream
from stream.sources.connection import decoder_options, decoding_failure, file_options
from stream.sources.decoder import open_container, video_stream
from stream.sources.fit import FrameFitter, FrameFormat
from stream.sources.hardware import HardwareDecoding
from stream.sources.heif import REMEDY, TiledPicture, tiled_picture
from stream.sources.orientation import Orientation
from stream.sources.planes import colour_of, same_colour, to_planes
from stream.sources.samples import Samples, samples_of
from stream.sources.timing import DEFAULT_RATE
from stream.sources.tonemap import report_hdr


class TiledPictureSource(Source):
    """A picture in tiles as a video of one frame."""

    def __init__(self, path: Path, picture: TiledPicture, config: CaptureConfig, clock: Clock) -> None:
        """Raise SourceNotFound, SourceError, or ConfigError for a `capture.size` that is too large."""
        check_file(path, config.max_pixels)
        refuse_stream(config, str(path))
        part = TimeRange.of(config)
        self._duration_ns = int(NS_PER_S / DEFAULT_RATE)
        if part.start_ns:
            raise part.empty(str(path), self._duration_ns)
        self._name = str(path)
        self._picture = picture
        self._clock = clock
        self._fit = FrameFitter.of(config)
        self._frame, self._codec = assembled(path, picture, config)
        report_hdr(self._name, self._frame)

    def describe(self) -> SourceInfo:
        """Return the size of the upright picture and the codec of its tiles."""
        orientation = self._picture.orientation
        return SourceInfo(
            name=self._name,
            width_px=self._frame.width,
            height_px=self._frame.height,
            fps=float(DEFAULT_RATE),
            duration_ns=self._duration_ns,
            frames=1,
            live=False,
            codec=self._codec,
            pixel_format=self._frame.format.name,
            rotation=90 * orientation.turns,
            mirrored=orientation.mirrored,
        )

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame]:
        """Yield the picture."""
        planes = to_planes(self._frame, self._fit, self._name)
        form = FrameFormat.of((self._frame.height, self._frame.width), planes)
        yield SourceFrame(0, 0, self._clock.now_ns(), planes, form.change_since(None), (), self._duration_ns)


def assembled(path: Path, picture: TiledPicture, config: CaptureConfig) -> tuple[av.VideoFrame, str]:
    """Return the upright picture, in the format of its tiles, and their codec.

    Raises SourceError if the picture is too large, or a tile is missing or damaged: a part is never returned.
    """
    width = picture.width_px
    height = picture.height_px
    if width * height > config.max_pixels:
        raise SourceError(f"{path} has {width}x{height} pixels, {more_than(config.max_pixels)}; {SCALE_DOWN}")
    places: dict[int, list[int]] = {}
    for place, tile in enumerate(picture.tiles):
        places.setdefault(tile, []).append(place)
    canvas: _Canvas | None = None
    codec = ""
    try:
        with av.open(f"file:{path}", options=file_options(config), metadata_errors="replace") as container:
            streams = [stream for stream in container.streams.video if stream.id in places]
            for stream in streams:
                stream.codec_context.options = decoder_options(config.max_pixels)
            for packet in container.demux(streams) if streams else ():  # of no streams it would read all
                for frame in packet.decode():
                    assert isinstance(frame, av.VideoFrame)
                    codec = packet.stream.codec_context.name
                    canvas = canvas or _Canvas(picture, frame)
                    for place in places.pop(packet.stream.id, ()):
                        canvas.put(frame, place)
    except (av.FFmpegError, ValueError) as error:
        reason = (error.strerror if isinstance(error, av.FFmpegError) else None) or str(error)
        raise SourceError(f"{path} has a tile that cannot be decoded ({reason}); {REMEDY}") from error
    if places or canvas is None:
        missing = sum(map(len, places.values()))
        tiles = of_counted(missing, len(picture.tiles), "tile")
        raise SourceError(f"{path} lacks {tiles} of its picture; {REMEDY}")
    return canvas.upright(), codec


def read_heif(path: Path, config: CaptureConfig) -> av.VideoFrame:
    """Return the picture of a file of AVIF or HEIC, whole or in tiles. Raises SourceError."""
    picture = tiled_picture(path)
    if picture is not None:
        return assembled(path, picture, config)[0]
    with open_container(path, config, HardwareDecoding(config, str(path))) as container:
        stream = video_stream(container, str(path))
        stream.codec_context.options = decoder_options(config.max_pixels)
        try:
            return next(container.decode(stream))
        except (av.FFmpegError, StopIteration) as error:
            if isinstance(error, av.FFmpegError):
                reason = decoding_failure(error, config.max_pixels)
            else:
                reason = "it is empty"
            raise SourceError(f"{path} cannot be decoded ({reason}); {REMEDY}") from error


class _Canvas:
    """Planes of a whole picture, into which tiles are put."""

    def __init__(self, picture: TiledPicture, tile: av.VideoFrame) -> None:
        self._picture = picture
        self._tile = tile
        if tile.width * picture.cols < picture.width_px or tile.height * picture.rows < picture.height_px:
            raise ValueError("the tiles do not cover the picture")
        # tiles of an odd size would share chroma
        if any(tile.width % plane.width or tile.height % plane.height for plane in tile.planes):
            raise ValueError(f"it has {tile.width}x{tile.height} pixels of {tile.format.name}")
        self._frame = _like(tile, picture.width_px, picture.height_px)
        self._planes = _planes(self._frame)

    def put(self, tile: av.VideoFrame, place: int) -> None:
        """Copy the part of a tile that lies within the picture to its place. Raises ValueError for one unlike the
        first."""
        shape = tile.format.name, tile.width, tile.height
        if shape != (self._tile.format.name, self._tile.width, self._tile.height):
            raise ValueError("it is unlike the others")
        row, col = divmod(place, self._picture.cols)
        for plane, part in zip(self._planes, _planes(tile), strict=True):
            height, width = part.shape
            target = plane[row * height : (row + 1) * height, col * width : (col + 1) * width]
            target[:] = part[: target.shape[0], : target.shape[1]]

    def upright(self) -> av.VideoFrame:
        """Return the picture as it is shown."""
        orientation = self._picture.orientation
        frame = self._frame
        if not orientation.changes:
            return frame
        if _changes_chroma(frame, orientation):
            whole_chroma = re.sub(r"4\d\d", "444", frame.format.name)
            frame = same_colour(frame, whole_chroma, colour_of(frame))
        if orientation.swaps_sides:
            sides = (frame.height, frame.width)
        else:
            sides = (frame.width, frame.height)
        upright = _like(frame, *sides)
        for target, plane in zip(_planes(upright), _planes(frame), strict=True):
            target[:] = orientation.upright(plane)
        return upright


def _planes(frame: av.VideoFrame) -> list[Samples]:
    """Return views on the planes of a planar frame."""
    bits = frame.format.components[0].bits
    return [samples_of(plane, bits) for plane in frame.planes]


def _like(frame: av.VideoFrame, width_px: int, height_px: int) -> av.VideoFrame:
    """Return an empty frame of another size, in the format and colours of `frame`."""
    empty = av.VideoFrame(width_px, height_px, frame.format.name)
    empty.colorspace = frame.colorspace
    empty.color_range = frame.color_range
    empty.color_primaries = frame.color_primaries
    empty.color_trc = frame.color_trc
    return empty


def _changes_chroma(frame: av.VideoFrame, orientation: Orientation) -> bool:
    """Return True if chroma that is shared by pixels would be shared by others, once the frame is upright."""
    width = frame.planes[-1].width
    height = frame.planes[-1].height
    if (width, height) == (frame.width, frame.height):
        return False
    odd = frame.width % 2 or frame.height % 2
    return bool(odd) or (orientation.swaps_sides and frame.width // width != frame.height // height)
