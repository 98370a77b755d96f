"""The message in which another program sends a frame: a header in msgpack, then the raw bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import av
import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from arr_coc.types import Colour, FramePlanes
from stream.limits import SIDE_PX_MAX, Count, TimeNs
from stream.sources.limits import decoder_options
from stream.sources.planes import planes_of, rgb_of

VERSION = 1

Side = Annotated[int, msgspec.Meta(ge=1, le=SIDE_PX_MAX)]
Image = npt.NDArray[np.uint8]


class FrameHeader(msgspec.Struct, frozen=True):
    """What the bytes are. `t_ns`: the sender's monotonic clock at capture; `seq` counts the frames that it sent."""

    v: int
    width: Side
    height: Side
    format: Literal["rgb24", "bgr24", "gray", "yuv420p", "jpeg"]
    t_ns: TimeNs | None = None
    seq: Count | None = None


class MessageError(Exception):
    """A message that holds no frame; says why."""


class FrameReader:
    """Turns messages into frames. Keeps a JPEG decoder; belongs to one thread."""

    def __init__(self, max_pixels: int = SIDE_PX_MAX**2) -> None:
        """`max_pixels`: of a frame, width times height."""
        self._max_pixels = max_pixels
        self._jpeg = _jpeg_decoder(max_pixels)

    def read(self, parts: Sequence[memoryview]) -> tuple[FrameHeader, FramePlanes, Callable[[], Image]]:
        """The header, the planes (views on the message where the format allows), and the picture as RGB when called.

        Raises MessageError.
        """
        if len(parts) != 2:
            raise MessageError(f"a frame has 2 parts, header and bytes; this has {len(parts)}")
        header = _header(parts[0])
        if header.width * header.height > self._max_pixels:
            raise MessageError(
                f"{header.width}x{header.height} is more than capture.max_pixels = {self._max_pixels} allows"
            )
        if header.format == "jpeg":
            frame = self._decoded(header, parts[1])
            return header, planes_of(frame), lambda: rgb_of(frame)
        planes = _raw_planes(header, np.frombuffer(parts[1], np.uint8))
        return header, planes, lambda: _rgb(planes)

    def _decoded(self, header: FrameHeader, data: memoryview) -> av.VideoFrame:
        try:
            frames = self._jpeg.decode(av.Packet(bytes(data))) if len(data) else []
        except av.FFmpegError as error:
            self._jpeg = _jpeg_decoder(self._max_pixels)
            raise MessageError(f"its JPEG cannot be decoded: {error.strerror}") from error
        if not frames:
            raise MessageError("it holds no JPEG")
        (frame,) = frames
        if (frame.width, frame.height) != (header.width, header.height):
            raise MessageError(
                f"its JPEG has {frame.width}x{frame.height} pixels, its header says {header.width}x{header.height}"
            )
        return frame


def _jpeg_decoder(max_pixels: int) -> av.VideoCodecContext:
    context = av.VideoCodecContext.create("mjpeg", "r")
    context.options = decoder_options(max_pixels)
    context.thread_count = 1
    return context


def _header(data: memoryview) -> FrameHeader:
    try:
        header = msgspec.msgpack.decode(data, type=FrameHeader)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"its header is wrong: {error}") from error
    if header.v != VERSION:
        raise MessageError(f"it has version {header.v}; this program reads version {VERSION}")
    if header.format == "yuv420p" and (header.width % 2 or header.height % 2):
        raise MessageError(f"yuv420p needs even sides, got {header.width}x{header.height}")
    return header


def _raw_planes(header: FrameHeader, data: Image) -> FramePlanes:
    height, width = header.height, header.width
    samples = {"rgb24": 3 * height * width, "bgr24": 3 * height * width, "gray": height * width}
    expected = samples.get(header.format, 3 * height * width // 2)
    if data.size != expected:
        raise MessageError(f"{header.format} of {width}x{height} has {expected} bytes, got {data.size}")
    if header.format == "yuv420p":
        luma, chroma = data[: height * width], data[height * width :].reshape(2, height // 2, width // 2)
        return FramePlanes("yuv", (luma.reshape(height, width), chroma[0], chroma[1]))
    if header.format == "gray":
        return FramePlanes("gray", (data.reshape(height, width),), Colour(full_range=True))
    picture = data.reshape(height, width, 3)
    if header.format == "bgr24":
        picture = np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGR2RGB), np.uint8)
    return FramePlanes("rgb", (picture,))


def _rgb(planes: FramePlanes) -> Image:
    if planes.layout == "rgb":
        return planes.planes[0]
    if planes.layout == "gray":
        return np.repeat(planes.planes[0][..., None], 3, axis=-1)
    stacked = np.concatenate([plane.reshape(-1, planes.width_px) for plane in planes.planes])
    return rgb_of(av.VideoFrame.from_ndarray(stacked, format="yuv420p"))
