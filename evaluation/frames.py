"""Frames of videos at chosen times, of which no more than the chosen ones are held, and sizes of pictures."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from arr_coc.qwen.resize import resize_image, smart_resize
from arr_coc.types import NS_PER_S, TILE_PX, FramePlanes, FrameStamp, TileGrid
from arr_coc.video.texture_updater import TextureUpdater
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.errors import SourceError, SourceOver
from stream.media import SourceFrame
from stream.sources.factory import open_source
from training.clips.truth import Image

SEEK_NS = 5 * NS_PER_S
"""Two frames that are further apart are reached by a seek each; what lies between them is not decoded."""

LEADS_NS = (NS_PER_S, 20 * NS_PER_S)
"""Begin to read so long before a frame that is sought, else at the beginning of the file."""

SLACK_NS = 1000
"""Times are rounded to nanoseconds twice."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Choice of a video's frames: at most `frames` of them, evenly over the part that is asked about, and at most `fps`
    a second. The first and the last one are its ends, or with `middles` the middles of equal parts.

    A frame with more than `tiles` tiles of 32×32 pixels is scaled down, as Qwen's processor would.
    """

    frames: int
    fps: float | None = None
    tiles: int | None = None
    middles: bool = False

    def times_ns(self, start_ns: int, end_ns: int) -> list[int]:
        """Return the media times at which a part is looked at; both ends are in it."""
        length_ns = max(0, end_ns - start_ns)
        count = self.frames
        if self.fps is not None:
            count = min(count, math.floor(length_ns / NS_PER_S * self.fps + 1e-9) + 1)
        if self.middles:
            return [start_ns + round((index + 0.5) * length_ns / count) for index in range(count)]
        if count == 1:
            return [start_ns + length_ns]
        return [start_ns + round(index * length_ns / (count - 1)) for index in range(count)]


def frames_of(
    path: Path, sampling: Sampling, start_s: float = 0.0, end_s: float | None = None
) -> tuple[tuple[Image, ...], tuple[float, ...]]:
    """Frames of a part of a video, and their media times in seconds, oldest first.

    For each time of the sampling it is the newest frame that is not later, so that nothing after `end_s` is seen; no
    frame comes twice.

    Args:
        path: The video.
        sampling: Choice of the times, and the largest frame.
        start_s: Begin of the part.
        end_s: End of the part; the end of the video if None or later than that.

    Returns:
        Frames uint8 RGB [H, W, 3], and a time for each.

    Raises:
        SourceError: The video cannot be read, or has no frame as early as that.
    """
    start_ns, length_ns = round(start_s * NS_PER_S), _length_ns(path)
    end_ns = length_ns if end_s is None else min(round(end_s * NS_PER_S), length_ns)
    images: dict[int, Image] = {}
    for frame in _newest_at(path, sampling.times_ns(min(start_ns, end_ns), end_ns)):
        if frame.media_ns not in images:
            images[frame.media_ns] = scaled_down(rgb_of(frame.planes), sampling.tiles)
    if not images:
        raise SourceError(f"{path} has no frame in its first {end_ns / NS_PER_S:g} s")
    return tuple(images.values()), tuple(media_ns / NS_PER_S for media_ns in images)


def scaled_down(image: Image, tiles: int | None) -> Image:
    """Return the picture uint8 [H, W, 3] with at most `tiles` tiles, if it has more; the aspect ratio is kept as
    closely as whole tiles allow. Raises ShapeError if it is too narrow."""
    height_px, width_px = image.shape[:2]
    if tiles is None or TileGrid.of(height_px, width_px).tiles <= tiles:
        return image
    return resize_image(image, *smart_resize(height_px, width_px, TILE_PX, TILE_PX**2, tiles * TILE_PX**2))


def _length_ns(path: Path) -> int:
    """Return the declared length, else the time of the last frame."""
    with open_source(str(path), CaptureConfig(), MonotonicClock()) as source:
        declared_ns = source.describe().duration_ns
        if declared_ns is not None:
            return declared_ns
        return max(frame.media_ns for frame in source.frames() if isinstance(frame, SourceFrame))


def _newest_at(path: Path, times_ns: Sequence[int]) -> Iterator[SourceFrame]:
    """Yield the newest frame that is not later than each time; none for a time before the first frame."""
    run: list[int] = []
    for earlier_ns, time_ns in pairwise([times_ns[0], *times_ns]):
        if time_ns - earlier_ns > SEEK_NS:
            yield from _run(path, run)
            run = []
        run.append(time_ns)
    yield from _run(path, run)


def _run(path: Path, times_ns: Sequence[int]) -> Iterator[SourceFrame]:
    """One pass over the part of the file that holds these times."""
    for lead_ns in (*LEADS_NS, None):
        start_ns = 0 if lead_ns is None else max(0, times_ns[0] - lead_ns)
        newest: SourceFrame | None = None
        waiting = list(times_ns)
        with closing(_decode(path, start_ns)) as frames:
            for frame in frames:
                while waiting and newest is not None and frame.media_ns > waiting[0] + SLACK_NS:
                    yield newest
                    waiting.pop(0)
                if not waiting:
                    return
                if newest is None and frame.media_ns > waiting[0] + SLACK_NS:
                    if start_ns:
                        break  # the frame that is sought lies before the start
                    waiting = [at_ns for at_ns in waiting if frame.media_ns <= at_ns + SLACK_NS]
                newest = frame
        if newest is not None:
            for _ in waiting:
                yield newest
            return


def _decode(path: Path, start_ns: int) -> Generator[SourceFrame, None, None]:
    config = CaptureConfig(start_s=start_ns / NS_PER_S)
    try:
        with open_source(str(path), config, MonotonicClock()) as source:
            yield from (frame for frame in source.frames() if isinstance(frame, SourceFrame))
    except SourceOver:
        return  # no frame from there on


def rgb_of(planes: FramePlanes) -> Image:
    """Return a frame as the texture store converts it, uint8 RGB [H, W, 3]."""
    updater = TextureUpdater()
    updater.process(planes, FrameStamp(0, 0, 0))
    with updater.lease() as view:
        image: Image = np.array(view.read(0)[: planes.height_px, : planes.width_px])
    updater.close()
    return image
