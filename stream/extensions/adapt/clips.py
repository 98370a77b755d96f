"""Frames of clips, each read when it is its turn: `ClipFrame`, `plan_clips`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from arr_coc.adaptation.lessons import Lesson, PlannedLesson
from arr_coc.types import NS_PER_S
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.errors import SourceError
from stream.media import Source, SourceFrame, SourceInfo
from stream.sources.factory import open_source

QUESTIONS_A_FRAME = 6
"""Several questions about one frame teach what depends on the question."""

HELD_OUT_PART = 5
"""One frame in this many is measured on, not learned from: the last ones of a clip, which are least like the others."""

Image = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class SampledFrame:
    """A training frame uint8 RGB [H, W, 3]; its source is `width_px` wide and `height_px` high."""

    image: Image
    width_px: int
    height_px: int


@dataclass(frozen=True, slots=True)
class ClipFrame:
    """The first frame of a source at `start_s` of its media time or later."""

    address: str
    start_s: float = 0.0

    def read(self, max_tiles: int) -> SampledFrame:
        """Read the frame. Raises SourceError if it cannot be read."""
        config = CaptureConfig(fit="resize", max_tiles=max_tiles, start_s=self.start_s, max_frames=1)
        with open_source(self.address, config, MonotonicClock()) as source:
            info = source.describe()
            frame = next(_decoded_frames(source), None)
            if frame is None:
                raise SourceError(f"{self.address} has no frame at {self.start_s:.2f} s", "check the file")
            return SampledFrame(frame.planes.planes[0], info.width_px, info.height_px)


def clip_frames(address: str, count: int) -> list[ClipFrame]:
    """At most `count` frames, evenly over a clip. Raises SourceError if it cannot be read."""
    frames, duration_s = _length(address)
    count = min(count, frames)
    if not count:
        return []
    step_s = duration_s / count
    frame_s = duration_s / frames
    first_s = step_s / 2 if 2 * count <= frames else 0.0
    # part of a frame's duration by which it is sought too early, because containers round times
    return [ClipFrame(address, max(0.0, first_s + index * step_s - 0.25 * frame_s)) for index in range(count)]


def plan_clips(
    addresses: Sequence[str], count: int, questions: Sequence[str], max_tiles: int, seed: int
) -> list[PlannedLesson]:
    """Plan the lessons from the frames of all clips, in random order, each with some of the questions.

    Args:
        addresses: addresses of the clips.
        count: approximate number of frames of all clips together.
        questions: questions to choose from.
        max_tiles: most tiles of a frame; larger frames are scaled down.
        seed: seed of the order and the choice of questions.

    Raises:
        SourceError: a clip cannot be read.
    """
    share = -(-count // max(1, len(addresses)))
    clips = [clip_frames(address, share) for address in addresses]
    # the last frames of each clip are measured on
    held_out = [[index >= len(clip) - len(clip) // HELD_OUT_PART for index in range(len(clip))] for clip in clips]
    if not any(chain(*held_out)):  # many clips of a few frames each, such as pictures
        total = sum(len(clip) for clip in clips)
        flags = iter(index % HELD_OUT_PART == HELD_OUT_PART - 1 for index in range(total))
        held_out = [[next(flags) for _ in clip] for clip in clips]
    lessons = []
    for number, (frame, is_held_out) in enumerate(zip(chain(*clips), chain(*held_out), strict=True)):
        rng = np.random.default_rng([seed, number])
        indices = rng.permutation(len(questions))[:QUESTIONS_A_FRAME]
        load = partial(_lesson, frame, tuple(questions[index] for index in sorted(indices)), max_tiles)
        lessons.append(PlannedLesson(load, is_held_out))
    return [lessons[index] for index in np.random.default_rng(seed).permutation(len(lessons))]


def _lesson(frame: ClipFrame, questions: tuple[str, ...], max_tiles: int) -> Lesson | None:
    try:
        return Lesson(frame.read(max_tiles).image, questions)
    except SourceError:
        return None


def _length(address: str) -> tuple[int, float]:
    """Number of frames of a source, and their duration in seconds: as it declares them, else counted."""
    with open_source(address, CaptureConfig(), MonotonicClock()) as source:
        info: SourceInfo = source.describe()
        if info.live:
            raise SourceError(f"{address} is live, and its frames are read in no order", "record it, and give the file")
        if info.frames and info.duration_ns:
            return info.frames, info.duration_ns / NS_PER_S
        times_s = [frame.media_ns / NS_PER_S for frame in _decoded_frames(source)]
    if not times_s:
        return 0, 0.0
    return len(times_s), times_s[-1] * len(times_s) / max(1, len(times_s) - 1)


def _decoded_frames(source: Source) -> Iterator[SourceFrame]:
    return (frame for frame in source.frames() if isinstance(frame, SourceFrame))
