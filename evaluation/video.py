"""Frames of a video file, evenly over its length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from arr_coc.types import NS_PER_S, FramePlanes, FrameStamp
from arr_coc.video.texture_updater import TextureUpdater
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.media import SourceFrame
from stream.sources.factory import open_source
from training.truth import Image


def frames_of(path: Path, count: int) -> tuple[tuple[Image, ...], tuple[float, ...]]:
    """`count` frames uint8 RGB [H, W, 3], the middle ones of as many equal parts, and their times in seconds.

    A video with fewer frames gives all of them. Raises SourceError where it cannot be read.
    """
    frames = sum(1 for _ in _decoded(path))
    parts = min(count, frames)
    wanted = {int((index + 0.5) * frames / parts) for index in range(parts)}
    chosen = [
        (_rgb(frame.planes), frame.media_ns / NS_PER_S) for frame in _decoded(path) if frame.frame_index in wanted
    ]
    return tuple(image for image, _ in chosen), tuple(at_s for _, at_s in chosen)


def _decoded(path: Path) -> Iterator[SourceFrame]:
    with open_source(str(path), CaptureConfig(), MonotonicClock()) as source:
        yield from (frame for frame in source.frames() if isinstance(frame, SourceFrame))


def _rgb(planes: FramePlanes) -> Image:
    """As the texture store converts it."""
    updater = TextureUpdater()
    updater.process(planes, FrameStamp(0, 0, 0))
    with updater.lease() as view:
        image: Image = np.array(view.read(0)[: planes.height_px, : planes.width_px])
    updater.close()
    return image
