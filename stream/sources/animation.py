"""Source of an animated WebP, decoded by Pillow because FFmpeg cannot."""

from __future__ import annotations

import os
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
from PIL import Image

from arr_coc.types import NS_PER_MS, NS_PER_S, FramePlanes
from stream.clock import Clock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import SkippedItem, Source, SourceFrame, SourceInfo, never_stop
from stream.sources.checks import TimeRange, check_file, refuse_stream
from stream.sources.fit import CHROMA_PX, FrameFitter
from stream.sources.folder import DAMAGED, over_white, reason_of_damage

SHORT_MS = 10
INSTEAD_MS = 100
"""Durations up to the first value are replaced by the second, as in browsers."""


def frame_durations_ms(path: Path) -> list[int]:
    """Return the durations of the frames of an animated WebP; an empty list for any other file."""
    durations: list[int] = []
    if not os.path.isfile(path):  # a pipe can be read once only
        return durations
    try:
        with path.open("rb") as file:
            riff, _, form = struct.unpack("<4sI4s", file.read(12))
            if (riff, form) != (b"RIFF", b"WEBP"):
                return []
            while len(head := file.read(8)) == 8 and len(durations) < 1_000_000:  # more frames than that are damage
                kind, size = struct.unpack("<4sI", head)
                header = file.read(16) if kind == b"ANMF" else b""
                if len(header) == 16:
                    shown_ms = int.from_bytes(header[12:15], "little")
                    durations.append(shown_ms if shown_ms > SHORT_MS else INSTEAD_MS)
                file.seek(size + size % 2 - len(header), 1)
    except (OSError, struct.error):
        return []
    return durations


class AnimationSource(Source):
    """Frames of an animation, each at its time, over white."""

    def __init__(self, path: Path, durations_ms: list[int], config: CaptureConfig, clock: Clock) -> None:
        """Raise SourceNotFound, SourceError, or ConfigError for a `capture.size` that is too large."""
        check_file(path, config.max_pixels)
        refuse_stream(config, str(path))
        self._path = path
        self._clock = clock
        self._fit = FrameFitter.of(config)
        self._bounds_ns = [0, *accumulate(shown_ms * NS_PER_MS for shown_ms in durations_ms)]
        self._trailing: tuple[SkippedItem, ...] = ()
        part = TimeRange.of(config)
        starts_ns = self._bounds_ns[:-1]
        begin = bisect_left(starts_ns, part.start_ns)
        if part.end_ns is None:
            end = len(starts_ns)
        else:
            end = bisect_left(starts_ns, part.end_ns)
        if begin >= end:
            raise part.empty(str(path), self._bounds_ns[-1])
        self._places = range(begin, end)[: config.max_frames]
        with ExitStack() as stack:
            try:
                self._image = stack.enter_context(Image.open(stack.enter_context(path.open("rb"))))
                too_large = self._image.width * self._image.height > config.max_pixels
                if not too_large:
                    self._image.seek(begin)
                    self._image.load()
            except DAMAGED as error:
                raise SourceError(f"{path} cannot be decoded ({reason_of_damage(error)}); check the file") from error
            if too_large:
                size = f"{self._image.width}x{self._image.height}"
                raise SourceError(f"{path} has {size} pixels, more than capture.max_pixels = {config.max_pixels}")
            self._open = stack.pop_all()

    def describe(self) -> SourceInfo:
        """Return the size, length and mean rate of the animation."""
        length_ns = self._bounds_ns[-1]
        frames = len(self._bounds_ns) - 1
        return SourceInfo(
            name=str(self._path),
            width_px=self._image.width,
            height_px=self._image.height,
            fps=frames * NS_PER_S / length_ns,
            duration_ns=length_ns,
            frames=frames,
            live=False,
            codec="webp",
            pixel_format="rgb24",
        )

    def frames(self, should_stop: Callable[[], bool] = never_stop) -> Iterator[SourceFrame]:
        """Yield the frames up to the first damaged one; to be called once."""
        for number, place in enumerate(self._places):
            if should_stop():
                return
            media_ns = self._bounds_ns[place]
            try:
                self._image.seek(place)
                native_planes = FramePlanes("rgb", (np.asarray(over_white(self._image), np.uint8),), reach_px=CHROMA_PX)
            except DAMAGED as error:
                rest = self._places[number:]
                label = f"frames {place + 1}-{rest[-1] + 1}"
                self._trailing = (SkippedItem(label, reason_of_damage(error), media_ns, len(rest)),)
                return
            capture_ns = self._clock.now_ns()
            planes = self._fit.apply(native_planes, partial(native_planes.planes.__getitem__, 0))
            duration_ns = self._bounds_ns[place + 1] - media_ns
            discontinuity = None if number else "start"
            yield SourceFrame(number, media_ns, capture_ns, planes, discontinuity, duration_ns=duration_ns)

    def trailing_skipped(self) -> tuple[SkippedItem, ...]:
        """Return the frames from the first damaged one on."""
        return self._trailing

    def close(self) -> None:
        self._open.close()
