"""Source of frames that another program sends over ZeroMQ, and the decoder of its messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

import av
import cv2
import msgspec
import numpy as np
import numpy.typing as npt

from arr_coc.types import NS_PER_S, Colour, FramePlanes
from stream.clock import Clock
from stream.config import CaptureConfig, NetworkConfig, is_local
from stream.errors import SourceError, TransportError
from stream.extension import SourceOpening
from stream.media import SkippedItem, SourceFrame, SourceInfo
from stream.sources.address import PULL, ZMQ_PREFIX
from stream.sources.checks import refuse_time_range
from stream.sources.connection import decoder_options
from stream.sources.fit import FrameFormat
from stream.sources.planes import planes_of, rgb_of
from stream.sources.threaded import ReaderThread, ThreadedSource
from stream.transport.links import FrameSubscriber
from stream.transport.security import client_curve
from stream.untrusted import SEQUENCE_GAP_MAX, SIDE_PX_MAX, Count, TimeNs

log = logging.getLogger(__name__)

VERSION = 1

Side = Annotated[int, msgspec.Meta(ge=1, le=SIDE_PX_MAX)]
Image = npt.NDArray[np.uint8]


class FrameHeader(msgspec.Struct, frozen=True):
    """Description of a frame's bytes. `t_ns`: the sender's monotonic clock at capture; `seq`: the frame's number at the
    sender."""

    v: int
    width: Side
    height: Side
    format: Literal["rgb24", "bgr24", "gray", "yuv420p", "jpeg"]
    t_ns: TimeNs | None = None
    seq: Count | None = None


class InvalidFrameMessage(Exception):
    """Message without a valid frame; the text is the reason."""


class FrameDecoder:
    """Decoder of messages with frames. It keeps a JPEG decoder and is not thread-safe."""

    def __init__(self, max_pixels: int = SIDE_PX_MAX**2) -> None:
        """`max_pixels`: limit of a frame's width times height."""
        self._max_pixels = max_pixels
        self._jpeg = _jpeg_decoder(max_pixels)

    def read(self, parts: Sequence[memoryview]) -> tuple[FrameHeader, FramePlanes, Callable[[], Image]]:
        """Return the header, the planes (views on the message if the format allows), and a function for the RGB image.

        Raises InvalidFrameMessage.
        """
        if len(parts) != 2:
            raise InvalidFrameMessage(f"a frame has 2 parts, header and bytes; this has {len(parts)}")
        try:
            header = msgspec.msgpack.decode(parts[0], type=FrameHeader)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidFrameMessage(f"its header is wrong: {error}") from error
        if header.v != VERSION:
            raise InvalidFrameMessage(f"it has version {header.v}; this program reads version {VERSION}")
        if header.format == "yuv420p" and (header.width % 2 or header.height % 2):
            raise InvalidFrameMessage(f"yuv420p needs even sides, got {header.width}x{header.height}")
        if header.width * header.height > self._max_pixels:
            raise InvalidFrameMessage(
                f"{header.width}x{header.height} is more than capture.max_pixels = {self._max_pixels} allows"
            )
        if header.format == "jpeg":
            frame = self._decode(header, parts[1])
            return header, planes_of(frame), lambda: rgb_of(frame)
        planes = _raw_planes(header, np.frombuffer(parts[1], np.uint8))
        return header, planes, lambda: _rgb(planes)

    def _decode(self, header: FrameHeader, data: memoryview) -> av.VideoFrame:
        try:
            if len(data):
                frames = self._jpeg.decode(av.Packet(bytes(data)))
            else:
                frames = []
        except av.FFmpegError as error:
            self._jpeg = _jpeg_decoder(self._max_pixels)
            raise InvalidFrameMessage(f"its JPEG cannot be decoded: {error.strerror}") from error
        if not frames:
            raise InvalidFrameMessage("it is not a JPEG")
        (frame,) = frames
        if (frame.width, frame.height) != (header.width, header.height):
            raise InvalidFrameMessage(
                f"its JPEG has {frame.width}x{frame.height} pixels, its header says {header.width}x{header.height}"
            )
        return frame


def _jpeg_decoder(max_pixels: int) -> av.VideoCodecContext:
    context = av.VideoCodecContext.create("mjpeg", "r")
    context.options = decoder_options(max_pixels)
    context.thread_count = 1
    return context


def _raw_planes(header: FrameHeader, data: Image) -> FramePlanes:
    height = header.height
    width = header.width
    samples = {"rgb24": 3 * height * width, "bgr24": 3 * height * width, "gray": height * width}
    expected = samples.get(header.format, 3 * height * width // 2)
    if data.size != expected:
        raise InvalidFrameMessage(f"{header.format} of {width}x{height} has {expected} bytes, got {data.size}")
    if header.format == "yuv420p":
        luma = data[: height * width]
        chroma = data[height * width :].reshape(2, height // 2, width // 2)
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
    yuv = np.concatenate([plane.reshape(-1, planes.width_px) for plane in planes.planes])
    return rgb_of(av.VideoFrame.from_ndarray(yuv, format="yuv420p"))


WAIT_MS = 50
"""Longest single wait for a message between two checks for `stop`."""


@dataclass(frozen=True, slots=True)
class FrameAddress:
    """Address of a sender of frames, with ZeroMQ's endpoint; `pull`: frames are pulled from a PUSH socket."""

    name: str
    endpoint: str
    pull: bool

    @classmethod
    def of(cls, address: str) -> FrameAddress:
        pull = address.endswith(PULL)
        return cls(address, address.removeprefix(ZMQ_PREFIX).removesuffix(PULL), pull)


class ZmqSource(ThreadedSource):
    """Endless source of the frames that another program sends.

    From a PUB socket it takes the newest frame, as from a camera; from a PUSH socket every frame, while the sender
    waits.
    """

    def __init__(self, address: str, config: CaptureConfig, clock: Clock, network: NetworkConfig) -> None:
        """Wait for the first frame. Raises SourceError if none comes within `capture.open_timeout_s`, or
        ConfigError for an invalid address, missing keys, or a `capture.size` that is too large."""
        refuse_time_range(config, address)
        receiver = _Receiver(FrameAddress.of(address), config, clock, network)
        super().__init__(receiver, config.open_timeout_s)


class _Receiver(ReaderThread):
    """Reader of the frames that another program sends; its thread creates, uses and closes the socket.

    Pulled frames stay with their sender until `begin` is called.
    """

    def __init__(self, address: FrameAddress, config: CaptureConfig, clock: Clock, network: NetworkConfig) -> None:
        super().__init__(address.name, config, clock)
        self._curve = client_curve(network, address.endpoint)
        self._address = address
        self._same_clock = is_local(address.endpoint)
        self._frames = FrameDecoder(config.max_pixels)
        self._has_peer = self._refused = False
        self._problem: str | None = None
        self._unreadable: list[SkippedItem] = []
        self._messages = 0
        self._sequence: int | None = None

    def no_frame_error(self) -> SourceError:
        limit_s = self._config.open_timeout_s
        if self._problem is not None:
            reason = f"sends only invalid messages: {self._problem}; docs/sources.md has the format"
        elif self._has_peer:
            kind = "PUSH" if self._address.pull else "PUB"
            reason = f"is there, but sent no frame within {limit_s:g} s; does it send on a {kind} socket?"
        else:
            if self._curve is not None:
                keys = ", or has other keys"
            else:
                keys = ""
            reason = f"sent nothing within {limit_s:g} s; start the sender, check the address{keys}"
        return SourceError(f"{self._address.name} {reason}")

    def read(self) -> None:
        try:
            address = self._address
            with closing(FrameSubscriber(address.endpoint, pull=address.pull, curve=self._curve)) as socket:
                self.timeline.connected(Fraction(1, NS_PER_S), None)
                while not self._stopping.is_set() and self._index + 1 != self._config.max_frames:
                    parts, skip_count = socket.receive(WAIT_MS)
                    self._has_peer = socket.has_connected
                    self._refused = socket.is_refused
                    if parts is None:
                        self._look_for_loss()
                    else:
                        self._messages += 1 + skip_count
                        self._take(parts, skip_count)
        except TransportError as error:
            raise SourceError(str(error)) from error

    def _take(self, parts: Sequence[memoryview], skip_count: int) -> None:
        """Read one message; `skip_count` is the number of messages skipped before it."""
        try:
            header, planes, rgb = self._frames.read(parts)
        except InvalidFrameMessage as error:
            # consecutive unreadable messages are reported as one, with the reason of the first
            problem = str(error)
            self._problem = problem
            label = f"message {self._messages}"
            count = 1
            if self._unreadable:
                first = self._unreadable[0]
                label = f"{first.what.partition(' to ')[0]} to {self._messages}"
                count = first.count + 1
                problem = first.reason
            self._unreadable = [SkippedItem(label, problem, None, count)]
            self._look_for_loss()
            return
        if self.info is None:
            self.info = SourceInfo(
                name=self._address.name,
                width_px=header.width,
                height_px=header.height,
                fps=None,
                duration_ns=None,
                frames=None,
                live=not self._address.pull,
                codec="zmq",
                pixel_format=header.format,
            )
            self.ready.set()
            while self._address.pull and not self._begin_event.wait(WAIT_MS / 1000):
                pass
        now_ns = self._clock.now_ns()
        if not self._begin_event.is_set() or self._stopping.is_set():
            self._seen_ns = now_ns
            self._unreadable = []
            return
        self.queue.dropped += self._missing_frames(header, skip_count)
        native = (planes.height_px, planes.width_px)
        planes = self._fitter.apply(planes, rgb)
        before = self._format
        self._format = FrameFormat.of(native, planes)
        self._hand_over(header, planes, self._format.change_since(before), now_ns)

    def _hand_over(self, header: FrameHeader, planes: FramePlanes, discontinuity: str | None, now_ns: int) -> None:
        discontinuity = self._end_outage(discontinuity, now_ns)
        media_ns = self.timeline.media_ns(now_ns if header.t_ns is None else header.t_ns, now_ns)
        self._index += 1
        losses = tuple(self._unreadable)
        self._unreadable = []
        # The sender's time if it has the same clock, else the time of arrival. A sender on this machine has the same
        # monotonic clock; a time older than the limit is from another clock.
        sent_ns = header.t_ns if self._same_clock else None
        if sent_ns is not None and 0 <= now_ns - sent_ns <= 5 * NS_PER_S:
            captured_ns = sent_ns
        else:
            captured_ns = now_ns
        frame = SourceFrame(self._index, media_ns, captured_ns, planes, discontinuity, losses)
        self._problem = None
        self._seen_ns = now_ns
        self._media_ns = media_ns
        if not self._address.pull:
            self.queue.put(frame)
            return
        while not self.queue.put_wait(frame, WAIT_MS / 1000) and not self._stopping.is_set():
            pass

    def _missing_frames(self, header: FrameHeader, skip_count: int) -> int:
        """Return the number of frames lost since the last one, by the sender's numbers, at least the skipped messages.

        Frames lost in an outage do not count: they are reported as an outage.
        """
        before = self._sequence
        self._sequence = header.seq
        if before is None or header.seq is None or header.seq <= before:
            return skip_count
        gap = header.seq - before - 1
        if gap <= SEQUENCE_GAP_MAX:
            return max(skip_count, gap)
        return skip_count

    def _look_for_loss(self) -> None:
        """Begin an outage if no readable message has come for `capture.stall_s`. Raises SourceError for wrong keys."""
        if self.info is None:
            if self._refused:
                raise SourceError(
                    f"{self._address.name} rejects the connection: its keys and those of --keys do not match"
                )
            return
        now_ns = self._clock.now_ns()
        if self._outage is not None or not self._begin_event.is_set():
            return
        if now_ns - self._seen_ns < self._config.stall_s * NS_PER_S:
            return
        silent = f"no frame for {self._config.stall_s:g} s"
        if self._problem is None:
            reason = silent
        else:
            reason = f"{silent}, only invalid messages: {self._problem}"
        self._begin_outage(reason)
        self._sequence = None
        self.timeline.connected(Fraction(1, NS_PER_S), None)


def open_zmq(opening: SourceOpening) -> ZmqSource:
    """Open the source of an address."""
    return ZmqSource(opening.address, opening.capture, opening.clock, opening.network)
