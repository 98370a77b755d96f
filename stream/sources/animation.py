"""Animated WebP, which FFmpeg does not decode: read by Pillow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from arr_coc.types import NS_PER_MS, FramePlanes
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import SkippedItem, Source, SourceFrame, SourceInfo, never_stop
from stream.sources.checks import TimeRange, check_file
from stream.sources.fit import FrameFitter, FrameFormat
from stream.sources.folder import DAMAGED, over_white

_HEAD_BYTES = 21
_ANIMATED = 0x02
"""Flag of the VP8X chunk (WebP container specification, "Extended File Format")."""


def is_animated_webp(path: Path) -> bool:
    """Return True for a regular file whose WebP header announces an animation."""
    if not os.path.isfile(path):
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return len(head) == _HEAD_BYTES and head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and bool(head[20] & _ANIMATED)


class AnimationSource(Source):
    """Frames of an animated WebP, each shown for the time that the file gives it; over white if it is transparent."""

    def __init__(self, path: Path, config: CaptureConfig, clock: Clock) -> None:
        """Open the file. Raises SourceError, or ConfigError for a `capture.size` that is too large."""
        check_file(path, config.max_pixels)
        self._fit = FrameFitter.of(config)
        self._part = TimeRange.of(config)
        self._max_frames = config.max_frames
        self._clock = clock
        self._name = str(path)
        self._trailing: tuple[SkippedItem, ...] = ()
        try:
            self._image = Image.open(path, formats=["WEBP"])
        except DAMAGED as error:
            raise SourceError(f"{path} cannot be read ({error}); check the file, or convert it") from error
        width, height = self._image.size
        if width * height > config.max_pixels:
            self.close()
            raise SourceError(
                f"{path} has {width}x{height} pixels, more than capture.max_pixels = {config.max_pixels}; raise it"
            )
        self._frame_count: int = getattr(self._image, "n_frames", 1)
        try:
            self._image.load()
        except DAMAGED as error:
            self.close()
            raise SourceError(f"no frame of {path} can be decoded ({error}); check the file, or convert it") from error
        self._first_ms = self._shown_ms()

    def describe(self) -> SourceInfo:
        """The size, and the rate of the first frame; later ones may be shown for another time."""
        return SourceInfo(
            name=self._name,
            width_px=self._image.width,
            height_px=self._image.height,
            fps=float(Fraction(1000, self._first_ms)),
            duration_ns=None,
            frames=self._frame_count,
            live=False,
            codec="webp",
            pixel_format="rgb24",
        )

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame]:
        """The frames within the part that is read; to be called once. Raises SourceOver if there is none."""
        count, previous = 0, None
        for media_ns, duration_ns, rgb in self._decoded(should_stop):
            drawn = FramePlanes("rgb", (rgb,))
            planes = self._fit.apply(drawn, partial(drawn.planes.__getitem__, 0))
            frame_format = FrameFormat.of((drawn.height_px, drawn.width_px), planes)
            change = frame_format.change_since(previous)
            yield SourceFrame(count, media_ns, self._clock.now_ns(), planes, change, duration_ns=duration_ns)
            count, previous = count + 1, frame_format
            if count == self._max_frames:
                return
        if not count and not should_stop():
            raise self._part.empty(self._name)

    def _decoded(self, should_stop: Callable[[], bool]) -> Iterator[tuple[int, int, npt.NDArray[np.uint8]]]:
        """Media time, time shown and pixels of each frame in the part that is read; the rest of a damaged file is
        `trailing`."""
        media_ns = 0
        for number in range(self._frame_count):
            if should_stop() or self._part.ended_by(media_ns):
                return
            try:
                self._image.seek(number)
                rgb = np.asarray(over_white(self._image), np.uint8)
            except DAMAGED as error:
                what = f"frames {number + 1}-{self._frame_count}"
                self._trailing = (SkippedItem(what, str(error), media_ns, self._frame_count - number),)
                return
            duration_ns = self._shown_ms() * NS_PER_MS
            if media_ns >= self._part.start_ns:
                yield media_ns, duration_ns, rgb
            media_ns += duration_ns

    def _shown_ms(self) -> int:
        """How long the frame is shown; browsers show one without a time for 100 ms."""
        return int(self._image.info.get("duration", 0)) or 100

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        """The frames from the first damaged one on."""
        return self._trailing

    def close(self) -> None:
        """Close the file."""
        self._image.close()
