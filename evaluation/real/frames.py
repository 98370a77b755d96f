"""Labelled frames as a Qwen-VL model sees them, with the second before them of those of a clip."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.adaptation.cases import tile_shares
from arr_coc.qwen.families import family_of
from arr_coc.qwen.preprocess import PixelNormalisation, Preprocessing, Rgb
from arr_coc.qwen.resize import resize_image
from arr_coc.types import NS_PER_S, FrameStamp, TileGrid
from evaluation.errors import PicturesError
from evaluation.frames import rgb_of
from evaluation.real.labels import Folders, LabelledBox, LabelledFrame
from stream.clock import MonotonicClock
from stream.config import CaptureConfig
from stream.media import SourceFrame
from stream.sources.factory import open_source

LARGEST_PX = 1280 * 720
"""Larger frames are scaled down to this, as one would for a stream."""

BEFORE_NS = NS_PER_S
"""So much of a clip is shown before a labelled frame."""

QWEN3_VL = family_of("qwen3_vl", "qwen3_vl")

PREPROCESSING = Preprocessing(16, PixelNormalisation(), QWEN3_VL.min_px, LARGEST_PX)
"""Sizes of a stock Qwen3-VL."""


@dataclass(frozen=True, slots=True)
class ShownFrame:
    """A labelled frame on the model's grid.

    `images` uint8 [rows * 32, cols * 32, 3] at `stamps`: the last one is labelled, the others come before it.
    """

    label: LabelledFrame
    grid: TileGrid
    images: tuple[Rgb, ...]
    stamps: tuple[FrameStamp, ...]

    @property
    def image(self) -> Rgb:
        """The labelled frame."""
        return self.images[-1]

    def coverage(self, box: LabelledBox) -> npt.NDArray[np.float64]:
        """Return how much of a box lies in each tile: float64 [rows, cols], which add up to 1."""
        width_px, height_px = self.label.size_px
        shares = tile_shares([box.box], self.grid.shape, (height_px / self.grid.rows, width_px / self.grid.cols))
        return shares / shares.sum()


def shown_frames(labels: Sequence[LabelledFrame], folders: Folders) -> Iterator[ShownFrame]:
    """Yield the labelled frames of files that are there, clip by clip.

    Raises PicturesError for a file that is there and cannot be read, SourceError for such a clip.
    """
    for source, frames in groupby(labels, key=lambda label: label.source):
        if source.absence(folders) is None:
            yield from (_moving if source.moves else _still)(list(frames), folders)


def _still(labels: Sequence[LabelledFrame], folders: Folders) -> Iterator[ShownFrame]:
    file = labels[0].source.file(folders)
    picture = cv2.imread(str(file), cv2.IMREAD_COLOR)
    if picture is None:
        raise PicturesError(f"{file} cannot be read as a picture; fetch it again")
    for label in labels:
        yield _shown(label, [(np.ascontiguousarray(picture[..., ::-1]), FrameStamp(0, 0, 0))])


def _moving(labels: Sequence[LabelledFrame], folders: Folders) -> Iterator[ShownFrame]:
    wanted = {label.frame: label for label in labels}
    before: deque[tuple[Rgb, FrameStamp]] = deque()
    number = 0
    with open_source(str(labels[0].source.file(folders)), CaptureConfig(), MonotonicClock()) as source:
        for frame in source.frames():
            if not isinstance(frame, SourceFrame):
                continue
            stamp = FrameStamp(number, frame.media_ns, frame.media_ns)
            before.append((rgb_of(frame.planes), stamp))
            while before and before[0][1].media_ns < stamp.media_ns - BEFORE_NS:
                before.popleft()
            if number in wanted:
                yield _shown(wanted.pop(number), before)
            if not wanted:
                return
            number += 1


def _shown(
    label: LabelledFrame, frames: Sequence[tuple[Rgb, FrameStamp]] | deque[tuple[Rgb, FrameStamp]]
) -> ShownFrame:
    picture = frames[-1][0]
    size_px = picture.shape[1], picture.shape[0]
    if size_px != label.size_px:
        raise PicturesError(
            f"frame {label.frame} of {label.source.name} has {size_px[0]}x{size_px[1]} pixels, "
            f"was labelled with {label.size_px[0]}x{label.size_px[1]}; label it again"
        )
    image, grid = PREPROCESSING.fit(picture)
    height_px, width_px = image.shape[:2]
    images = [resize_image(earlier, height_px, width_px) for earlier, _ in frames]
    first = frames[0][1].frame_index
    stamps = [replace(stamp, frame_index=stamp.frame_index - first) for _, stamp in frames]
    return ShownFrame(label, grid, (*images[:-1], image), tuple(stamps))
