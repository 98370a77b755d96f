"""Live pictures for viewers: requests, the message of a picture with its map, and the exchange between threads.

A picture message, little-endian, for programs in any language (docs/web.md has the table):

    u8 kind ("P") · u8 codec (0: JPEG) · u8 level · u8 camera · u32 frame_index · f64 capture, ms since 1970
    f64 media time, s
    u16 width, height, rows, cols, tokens, overview · u32 bytes of relevance, regions, picture · these three
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from arr_coc.types import LEVELS
from stream.errors import TransportError
from stream.events import FrameMap
from stream.protocol.inspection import InspectedFrame, InspectionRequest

if TYPE_CHECKING:
    from arr_coc.allocation.allocator import StreamAllocator

KIND = ord("P")
JPEG = 0
HEADER = struct.Struct("<BBBBIddHHHHHHIII")

CAMERA_AT = 3
"""Byte of the header with the camera's number; 0 unless a page shows several."""


class PictureEndpoints(msgspec.Struct, frozen=True):
    """Addresses from which the frame process receives requests: of the live `page`, its `microscope`, and a `heatmap`
    of a live run. None for a disabled viewer."""

    page: str | None = None
    microscope: str | None = None
    heatmap: str | None = None


INSPECTION = 0
"""Key of an inspection among the pictures of a reply, whose keys are their widths. The key of a picture that is no
frame is the picture's number, negated."""


class PictureRequest(msgspec.Struct, frozen=True):
    """Request for pictures of the next frame, one for each of these width limits in pixels, and for an inspection."""

    widths: tuple[int, ...] = ()
    inspect: InspectionRequest | None = None


@dataclass(frozen=True, slots=True)
class ViewedFrame:
    """Frame for a viewer: `images` uint8 RGB [H, W, 3] by mipmap level, without padding, and its map.

    `capture_ns` is monotonic, `media_ns` media time; `tokens`: number of the frame's visual tokens; `levels`: level for
    each requested width; `inspected`: the requested inspection, if any.
    """

    frame_index: int
    capture_ns: int
    media_ns: int
    tokens: int
    map: FrameMap
    images: dict[int, npt.NDArray[np.uint8]]
    levels: dict[int, int]
    inspected: InspectedFrame | None = None


def level_for(width_px: int, greatest_px: int) -> int:
    """Return the finest mipmap level at which a frame of `width_px` is at most `greatest_px` wide, or the coarsest."""
    return next((level for level in range(LEVELS) if -(-width_px >> level) <= greatest_px), LEVELS - 1)


class PictureBuffers:
    """Pool of memory for copies of pictures, so that a live run allocates none per picture.

    One thread copies, another one gives buffers back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: list[npt.NDArray[np.uint8]] = []

    def copy(self, image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return a copy of an image uint8 [H, W, 3]."""
        with self._lock:
            indices = [at for at, spare in enumerate(self._spare) if spare.shape == image.shape]
            if indices:
                buffer = self._spare.pop(indices[0])
            else:
                buffer = np.empty(image.shape, np.uint8)
        np.copyto(buffer, image)
        return buffer

    def give_back(self, images: Iterable[npt.NDArray[np.uint8]]) -> None:
        """Return copies to the pool; the oldest ones are freed."""
        with self._lock:
            # limit of pooled copies: six levels, for one frame that is encoded and one that waits
            self._spare = [*images, *self._spare][:16]


class PictureExchange:
    """Exchange of the newest frame between the stage that has frames and the thread that encodes pictures.

    The stage never waits. It copies a frame only on request, at most one per request.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._request: PictureRequest | None = None
        self._frame: ViewedFrame | None = None
        self.buffers = PictureBuffers()
        self.make_allocator: Callable[[], StreamAllocator] | None = None
        """Factory of an allocator like the stage's, for other pictures; None until the stage has one."""

    @property
    def request(self) -> PictureRequest | None:
        """The request for the next frame; None if there is none."""
        return self._request

    def want(self, request: PictureRequest) -> None:
        """Request the next frame."""
        with self._changed:
            # limit of sizes of one frame, because each is encoded
            self._request = PictureRequest(request.widths[:4], request.inspect)

    def put(self, frame: ViewedFrame) -> None:
        """Put a frame, in place of one that has not been taken."""
        with self._changed:
            previous = self._frame
            self._frame = frame
            self._request = None
            self._changed.notify()
        if previous is not None:
            self.give_back(previous)

    def give_back(self, frame: ViewedFrame) -> None:
        """Return the images of a frame to the pool."""
        self.buffers.give_back(frame.images.values())
        if frame.inspected is not None:
            self.buffers.give_back(frame.inspected.images.values())

    def take(self, timeout_s: float) -> ViewedFrame | None:
        """Remove and return the newest frame; None if none arrived within the time limit."""
        with self._changed:
            self._changed.wait_for(lambda: self._frame is not None, timeout_s)
            frame = self._frame
            self._frame = None
            return frame


def pack_picture(frame: ViewedFrame, level: int, jpeg: bytes, unix_ns: int, first_frame: int = 0) -> bytes:
    """Return the message of a frame's picture at one level.

    Args:
        frame: the frame, with its images and map.
        level: mipmap level of the picture.
        jpeg: the picture, encoded.
        unix_ns: capture time since 1970, in nanoseconds.
        first_frame: number of frames before those of this process, which is added to the frame's index.
    """
    height, width = frame.images[level].shape[:2]
    frame_map = frame.map
    head = HEADER.pack(
        KIND,
        JPEG,
        level,
        0,
        (frame.frame_index + first_frame) & 0xFFFFFFFF,
        unix_ns / 1e6,
        frame.media_ns / 1e9,
        width,
        height,
        frame_map.rows,
        frame_map.cols,
        min(frame.tokens, 0xFFFF),
        frame_map.overview,
        len(frame_map.relevance),
        len(frame_map.regions),
        len(jpeg),
    )
    return b"".join((head, frame_map.relevance, frame_map.regions, jpeg))


def of_camera_number(message: bytes, number: int) -> bytes:
    """Return the picture message with the number of its camera, 0 to 255, among several."""
    if number == 0:
        return message
    return b"".join((message[:CAMERA_AT], bytes((number,)), message[CAMERA_AT + 1 :]))


@dataclass(frozen=True, slots=True)
class ReceivedPicture:
    """Picture message: the JPEG of a frame at one mipmap level, and the frame's map. `media_s` is media time."""

    frame_index: int
    media_s: float
    level: int
    tokens: int
    map: FrameMap
    jpeg: bytes


def unpack_picture(message: bytes) -> ReceivedPicture:
    """Return the contents of a picture message. Raises TransportError for other bytes."""
    if len(message) < HEADER.size or message[:2] != bytes((KIND, JPEG)):
        raise TransportError("not a picture message")
    _, _, level, _, frame_index, _, media_s, _, _, rows, cols, tokens, overview, *sizes = HEADER.unpack_from(message)
    if HEADER.size + sum(sizes) != len(message):
        raise TransportError("a picture message is not whole")
    regions_at = HEADER.size + sizes[0]
    jpeg_at = regions_at + sizes[1]
    frame_map = FrameMap(
        rows=rows,
        cols=cols,
        relevance=message[HEADER.size : regions_at],
        regions=message[regions_at:jpeg_at],
        overview=overview,
    )
    return ReceivedPicture(frame_index, media_s, level, tokens, frame_map, message[jpeg_at:])
