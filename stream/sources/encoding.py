"""H.264 encoder, in a separate thread, for sources without packets that can be copied."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from fractions import Fraction

import av
import numpy as np
from av.video.frame import PictureType
from av.video.reformatter import ColorRange, Colorspace

from arr_coc.types import NS_PER_S, FramePlanes, Matrix
from stream.media import SourceFrame

CLOCK_HZ = 90_000
"""Time base of the video, as in MPEG: it represents every usual frame rate exactly."""

QUALITY = {"preset": "veryfast", "tune": "zerolatency", "crf": "23", "bf": "0", "g": "100000"}
"""No frame waits for later ones. Key frames are requested at the beginning of each segment."""

QUEUE_FRAMES = 8
"""Capacity of the encoder's queue in frames."""

STOP_S = 5.0
"""Longest wait for the queued frames at the end."""

SPACES: dict[Matrix, Colorspace] = {
    "bt709": Colorspace.ITU709, "bt601": Colorspace.ITU601, "fcc": Colorspace.FCC, "smpte240m": Colorspace.SMPTE240M,
    "bt2020": Colorspace.BT2020,
}  # fmt: skip
"""Matrices in FFmpeg's names."""

Take = Callable[[av.Packet, tuple[int, int]], None]
"""Consumer of a packet and the (width, height) of its picture."""

log = logging.getLogger(__name__)


class FrameEncoder:
    """Thread that encodes frames and passes each packet to `take`; packet times are media time.

    Key frames are at the beginning, every `segment_ns`, and at each change of size.
    """

    def __init__(self, take: Take, segment_ns: int) -> None:
        self._take = take
        self._segment_ns = segment_ns
        self._frames: queue.Queue[SourceFrame | None] = queue.Queue(QUEUE_FRAMES)
        self._context: av.VideoCodecContext | None = None
        self._key_ns = 0
        self._last_pts = -1
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="encode video", daemon=True)
        self._thread.start()

    def put(self, frame: SourceFrame, *, wait: bool) -> None:
        """Queue the next frame; if the queue is full, wait, or drop the frame and count it in `dropped`."""
        while self._thread.is_alive():
            try:
                self._frames.put(frame, block=wait, timeout=0.05)  # longest single wait for room in the queue
                return
            except queue.Full:
                if not wait:
                    self.dropped += 1
                    return

    def close(self) -> None:
        """Encode the queued frames and end the thread."""
        if self._thread.is_alive():
            try:
                self._frames.put(None, timeout=STOP_S)
            except queue.Full:
                return
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            while (frame := self._frames.get()) is not None:
                self._encode(frame)
        except (av.FFmpegError, ValueError) as error:
            log.warning("the video can no longer be encoded: %s", error)

    def _encode(self, frame: SourceFrame) -> None:
        picture = picture_of(frame.planes)
        size = picture.width, picture.height
        if self._context is None or (self._context.width, self._context.height) != size:
            self._context = _encoder(*size)
            self._key_ns = frame.media_ns
        if frame.media_ns >= self._key_ns:
            picture.pict_type = PictureType.I
            while self._key_ns <= frame.media_ns:
                self._key_ns += self._segment_ns
        self._last_pts = max(self._last_pts + 1, frame.media_ns * CLOCK_HZ // NS_PER_S)
        picture.pts = self._last_pts
        picture.time_base = Fraction(1, CLOCK_HZ)
        for packet in self._context.encode(picture):
            self._take(packet, size)


def _encoder(width_px: int, height_px: int) -> av.VideoCodecContext:
    context = av.VideoCodecContext.create("libx264", "w")
    context.width = width_px
    context.height = height_px
    context.pix_fmt = "yuv420p"
    context.time_base = Fraction(1, CLOCK_HZ)
    context.framerate = Fraction(30)  # determines the video's level only; frames keep their own times
    context.thread_count = 1
    context.options = dict(QUALITY)
    return context


def picture_of(planes: FramePlanes) -> av.VideoFrame:
    """Return a frame in the encoder's format: yuv420p of limited range; odd sides lose a row or column."""
    width = max(2, planes.width_px & ~1)
    height = max(2, planes.height_px & ~1)
    frame = _frame_of(planes)
    if planes.layout == "yuv":
        space = SPACES[planes.colour.matrix]
    else:
        space = Colorspace.ITU601
    if planes.layout == "yuv":
        full = planes.colour.full_range
    else:
        full = True
    return frame.reformat(
        width,
        height,
        "yuv420p",
        src_colorspace=space,
        dst_colorspace=space,
        src_color_range=ColorRange.JPEG if full else ColorRange.MPEG,
        dst_color_range=ColorRange.MPEG,
        threads=1,
    )


def _frame_of(planes: FramePlanes) -> av.VideoFrame:
    if planes.layout != "yuv":
        samples = np.ascontiguousarray(planes.planes[0])
        return av.VideoFrame.from_ndarray(samples, format="gray" if planes.layout == "gray" else "rgb24")
    luma, *chroma = planes.planes
    across, down = (-(-luma.shape[axis] // chroma[0].shape[axis]) for axis in (1, 0))
    name = _FORMATS[across, down]
    frame = av.VideoFrame(planes.width_px, planes.height_px, name)
    for place, samples in zip(frame.planes, planes.planes, strict=True):
        rows = np.ndarray((place.height, place.line_size), np.uint8, buffer=place)
        rows[:, : place.width] = samples
    return frame


_FORMATS = {
    (1, 1): "yuv444p", (2, 1): "yuv422p", (2, 2): "yuv420p", (1, 2): "yuv440p", (4, 1): "yuv411p", (4, 4): "yuv410p"
}  # fmt: skip
"""Luma samples that share a chroma sample (across, down) → planar format."""
