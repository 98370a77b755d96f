"""The allocation drawn over frames: a video (H.264 in MP4, at the frames' own times), or the last one as PNG."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction

import av
import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.errors import of_counted
from stream.clock import clock_text
from stream.errors import OutputError, OutputFailed
from stream.events import Answer, Event, FrameReady, Glance
from stream.media import AllocationOverlay
from stream.sinks.base import Sink
from stream.sinks.drawing import draw
from stream.sinks.output_file import OutputFile
from stream.untrusted import printable

TakeOverlay = Callable[[int], AllocationOverlay]
"""Gives the picture in a slot of the run, once."""

CLOCK_HZ = 90_000
"""Time base of the video, that of MPEG: it holds every usual frame rate exactly."""

STILL = ".png"
"""Suffix of a picture; any other is a video."""

QUALITY = {"preset": "veryfast", "tune": "zerolatency", "crf": "22", "bf": "0", "g": "48"}
"""No frame waits in the encoder for later ones: where the program is killed, the newest two are all that is lost. `bf`:
none refers to later ones either, which would move the video's start away from the source's. A key frame at least every
`g` frames."""

FRAGMENTS = {"movflags": "hybrid_fragmented+frag_every_frame", "flush_packets": "1"}
"""Playable however the run ends: a fragment a frame while it is written, an ordinary MP4 once it is closed."""


class HeatmapSink(Sink):
    """Draws each frame that comes with an overlay, and the newest answer under it.

    Each frame is held until the next one, so that an answer about a frame stands under that very frame, and a frame
    that was allocated anew after a glance is drawn as it was answered about.
    """

    def __init__(self, path: str, take_overlay: TakeOverlay) -> None:
        self._claim = OutputFile(path)
        self._take_overlay = take_overlay
        self._held: tuple[FrameReady, AllocationOverlay] | None = None
        self._caption = ""
        self._video: _Video | _Still | None = None
        self._last_pts = -1

    def write(self, event: Event) -> None:
        if isinstance(event, Answer):
            self._caption = printable(event.text)
        elif isinstance(event, FrameReady) and event.slot is not None:
            overlay = self._take_overlay(event.slot)
            self._draw_held()
            self._held = event, overlay
        elif isinstance(event, Glance) and event.slot is not None:
            overlay = self._take_overlay(event.slot)
            if self._held is not None:
                self._held = self._held[0], overlay

    def close(self) -> None:
        try:
            self._draw_held()
        finally:
            if self._video is not None:
                self._video.close()
                self._video = None
            self._claim.close()

    def _draw_held(self) -> None:
        if self._held is None:
            return
        event, overlay = self._held
        self._held = None
        shown = of_counted(event.tokens, event.tiles, "token")
        picture = draw(overlay, self._caption, f"{shown} · {clock_text(event.pts_s)}")
        if self._video is None:
            self._claim.keep()
            if self._claim.path.lower().endswith(STILL):
                self._video = _Still(self._claim.path)
            else:
                self._video = _Video(self._claim.path, picture.shape[1], picture.shape[0])
        self._last_pts = max(self._last_pts + 1, round(event.pts_s * CLOCK_HZ))
        self._video.add(picture, self._last_pts)


class _Still:
    """A picture: the last one, written once there is no other."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._picture: npt.NDArray[np.uint8] | None = None

    def add(self, picture: npt.NDArray[np.uint8], pts: int) -> None:
        self._picture = picture

    def close(self) -> None:
        if self._picture is None:
            return
        works, data = cv2.imencode(STILL, cv2.cvtColor(self._picture, cv2.COLOR_RGB2BGR))
        assert works, "every OpenCV writes PNG"
        try:
            with open(self._path, "wb") as file:
                file.write(data.tobytes())
        except OSError as error:
            raise OutputFailed(f"cannot write {self._path!r}: {error.strerror}") from error


class _Video:
    """An H.264 file of one picture size; pictures of another size are fitted into it."""

    def __init__(self, path: str, width_px: int, height_px: int) -> None:
        self._path = path
        try:
            self._container = av.open(path, "w", format="mp4", options=FRAGMENTS)
            self._stream = self._container.add_stream("libx264", options=dict(QUALITY))
        except (av.FFmpegError, ValueError) as error:
            raise OutputError(f"cannot write {path!r}: {error}") from error
        self._stream.width, self._stream.height = width_px, height_px
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.time_base = Fraction(1, CLOCK_HZ)

    def add(self, picture: npt.NDArray[np.uint8], pts: int) -> None:
        frame = av.VideoFrame.from_ndarray(_fitted(picture, self._stream.width, self._stream.height), format="rgb24")
        frame.pts, frame.time_base = pts, Fraction(1, CLOCK_HZ)
        self._write(frame)

    def close(self) -> None:
        try:
            self._write(None)
        finally:
            with self._failing():
                self._container.close()

    def _write(self, frame: av.VideoFrame | None) -> None:
        with self._failing():
            self._container.mux(self._stream.encode(frame))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except av.FFmpegError as error:
            raise OutputFailed(f"cannot write {self._path!r}: {error.strerror}") from error


def _fitted(picture: npt.NDArray[np.uint8], width_px: int, height_px: int) -> npt.NDArray[np.uint8]:
    """The picture at that size, its shape kept, black beside it."""
    height, width = picture.shape[:2]
    if (width, height) == (width_px, height_px):
        return picture
    scale = min(width_px / width, height_px / height)
    small = cv2.resize(picture, (max(1, round(width * scale)), max(1, round(height * scale))))
    canvas = np.zeros((height_px, width_px, 3), dtype=np.uint8)
    y, x = (height_px - small.shape[0]) // 2, (width_px - small.shape[1]) // 2
    canvas[y : y + small.shape[0], x : x + small.shape[1]] = small
    return canvas
