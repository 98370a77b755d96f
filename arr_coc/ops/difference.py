"""Which tiles of a frame differ from what the texture holds.

The difference of each plane is reduced to *cells*: rounded means of its absolute values over 2×2 samples. A tile is
dirty where a cell exceeds `Thresholds.largest` (so a blinking cursor counts) or the tile's mean exceeds
`Thresholds.mean`. Planes are judged one by one, because a change may leave luma as it was. Edge tiles are judged as
padded: by replication.

Noise. Two frames with independent noise of standard deviation s differ by s·√2: for s = 2 (and rounding to 8 bits)
the absolute difference has mean 2.28 and standard deviation 1.72. Over the 256 samples of a 4:2:0 chroma tile the
mean is 2.28 ± 0.11, and two roundings up add at most 0.3: so 3.5 lies eight deviations off, where 3.0 would lie four.
A cell exceeds 12.25 with 16·Q(12.25·4 / (2·2.86)) = 16·Q(8.6) < 1e-15. Ten minutes of 1080p30 have 1.1e8 tile means
and 1.4e10 cells: no false tile is to be expected from either.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.planes import Plane, PlaneCopy, PlaneFormat, replicate_edges
from arr_coc.types import TILE_PX, FramePlanes, TileGrid

SEGMENT_BYTES = 1 << 18
"""How much of a plane is compared at a time: new samples, old ones and their difference then stay in a core's own
cache."""

PROBE_ROWS = 2
"""Rows by which a segment is first judged after one that differed: in noise, looking for equality is in vain."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Above which difference, of 255, a tile is dirty: of its mean, or of its largest 2×2 mean."""

    mean: float = 3.5
    largest: float = 12.0

    @property
    def harmless(self) -> float:
        """The largest difference of a single sample that can make no tile dirty."""
        return min(self.mean, self.largest)


@dataclass(frozen=True, slots=True)
class Difference:
    """The outcome of one comparison: `dirty` bool [rows, cols]."""

    dirty: npt.NDArray[np.bool_]

    @classmethod
    def everywhere(cls, grid: TileGrid) -> Difference:
        """All tiles dirty, for a frame that is not to be compared."""
        return cls(np.ones(grid.shape, bool))

    @property
    def dirty_share(self) -> float:
        return float(self.dirty.mean())


class PlaneDifference:
    """Compares frames with a padded copy of planes, tile by tile; scratch memory is made once."""

    def __init__(self, fmt: PlaneFormat, thresholds: Thresholds) -> None:
        channels = 3 if fmt.layout == "rgb" else 1
        size = max(SEGMENT_BYTES, TILE_PX * fmt.grid.padded_width_px * channels)
        scratch = Scratch(*(np.empty(size // part, np.uint8) for part in (1, 4, 16)))
        self._shape = fmt.grid.shape
        self._planes = tuple(
            OnePlane((TILE_PX // sy, TILE_PX // sx), channels, self._shape, scratch, thresholds)
            for sy, sx in fmt.steps()
        )

    def of(self, planes: FramePlanes, own: PlaneCopy) -> Difference:
        """Compares planes of the format that this was made for."""
        dirty = np.zeros(self._shape, bool)
        for plane, new, old in zip(self._planes, planes.planes, own.padded, strict=True):
            plane.mark(new, old, dirty)
        return Difference(dirty)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Room for one segment's absolute difference, and for its first and second halving."""

    delta: Plane
    cells: Plane
    quarters: Plane


class OnePlane:
    """Marks the tiles in which one plane differs. `tile_shape` is (height, width) of a tile in its samples."""

    def __init__(
        self,
        tile_shape: tuple[int, int],
        channels: int,
        grid_shape: tuple[int, int],
        scratch: Scratch,
        thresholds: Thresholds,
    ) -> None:
        rows, cols = grid_shape
        height, width = tile_shape
        self._tile_height = height
        self._scratch = scratch
        self._thresholds = thresholds
        self._sum_limit = thresholds.mean * (height * width // 16)
        self._peaks = np.empty((rows, cols * width // 2, channels), np.uint8)
        self._sums = np.empty((rows, cols * width // 4, channels), np.uint16)
        self._peak_starts = np.arange(0, cols * width // 2, width // 2)
        self._sum_starts = np.arange(0, cols * width // 4, width // 4)

    def mark(self, new: Plane, old: Plane, dirty: npt.NDArray[np.bool_]) -> None:
        """Sets `dirty` bool [rows, cols] where `new` differs from `old`; only `old` is padded to whole tiles."""
        step = max(1, self._scratch.delta.size // (self._tile_height * old[0].size))
        changed: list[slice] = []
        for row in range(0, len(dirty), step):
            span = slice(row, row + step)
            samples = slice(row * self._tile_height, (row + step) * self._tile_height)
            if not self._alike(new[samples], old[samples], probe_first=bool(changed)):
                self._reduce(new[samples], old[samples], span)
                changed.append(span)
        for span in changed:
            peaks = np.maximum.reduceat(self._peaks[span], self._peak_starts, axis=1)
            sums = np.add.reduceat(self._sums[span], self._sum_starts, axis=1)
            exceeds = (peaks > self._thresholds.largest) | (sums > self._sum_limit)
            dirty[span] |= exceeds.any(axis=2)

    def _alike(self, new: Plane, old: Plane, probe_first: bool) -> bool:
        """Whether no sample of a segment differs by more than is harmless."""
        old = old[: new.shape[0], : new.shape[1]]
        middle = slice(new.shape[0] // 2, new.shape[0] // 2 + PROBE_ROWS)
        limit = self._thresholds.harmless
        if probe_first and cv2.norm(new[middle], old[middle], cv2.NORM_INF) > limit:
            return False
        return cv2.norm(new, old, cv2.NORM_INF) <= limit

    def _reduce(self, new: Plane, old: Plane, span: slice) -> None:
        """Fills `_peaks` and `_sums` for a segment: largest cell and sum of halved cells down each column of a tile."""
        height, width = new.shape[:2]
        delta = self._scratch.delta[: old.size].reshape(old.shape)
        cv2.absdiff(new, old[:height, :width], dst=delta[:height, :width])
        replicate_edges(delta, height, width)
        cells = _halved(delta, self._scratch.cells)
        quarters = _halved(cells, self._scratch.quarters)
        peaks, sums = self._peaks[span], self._sums[span]
        np.maximum.reduce(cells.reshape(len(peaks), -1, *peaks.shape[1:]), axis=1, out=peaks)
        np.add.reduce(quarters.reshape(len(sums), -1, *sums.shape[1:]), axis=1, dtype=np.uint16, out=sums)


def _halved(source: Plane, scratch: Plane) -> Plane:
    """The box filter (a + b + c + d + 2) >> 2."""
    height, width = source.shape[0] // 2, source.shape[1] // 2
    out = scratch[: source.size // 4].reshape(height, width, *source.shape[2:])
    cv2.resize(source, (width, height), dst=out, interpolation=cv2.INTER_AREA)
    return out
