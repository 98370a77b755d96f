"""Comparison of a frame with the texture: the tiles that differ.

The difference of each plane is reduced to *cells*: rounded means of its absolute values over 2×2 samples. A tile is
dirty where a cell exceeds `Thresholds.largest` (so a blinking cursor counts) or the tile's mean, rounded, exceeds
`Thresholds.mean`. Planes are judged one by one, because a change may leave luma as it was. Edge tiles are judged as
padded: by replication.

Noise. Two frames with independent noise of standard deviation s differ by s·√2: for s = 2 (and rounding to 8 bits)
the absolute difference has mean 2.28 and standard deviation 1.72. Over the 256 samples of a 4:2:0 chroma tile the mean
is 2.28 ± 0.11, to which two roundings add at most 0.3: the 3.5 that rounds to 4 lies eight deviations off. A cell
exceeds 12.25 with 16·Q(12.25·4 / (2·2.86)) = 16·Q(8.6) < 1e-15. Ten minutes of 1080p30 have 1.1e8 tile means and
1.4e10 cells: no false tile is to be expected from either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.ops.store.planes import Plane, PlaneFormat, replicate_edges
from arr_coc.types import TILE_PX, FramePlanes, TileGrid

BAND_ROWS = 4
"""Tile rows that are remembered together as changing or still."""

CHUNK_BYTES = 1 << 19
"""How much of a plane is measured at a time: samples and differences then stay in a core's own cache."""


Columns = tuple[int, int]
"""First and last tile column, half-open."""

STILL: Columns = (0, 0)


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


class FrameDifference:
    """Compares frames with what the texture holds, tile by tile.

    Most of a frame is as it was, and what changes is mostly where something changed just before. So the part of each
    band of tile rows that differed last time is measured at once; the rest is only asked whether it differs at all,
    which is read at the speed of memory. What is found does not depend on it.
    """

    def __init__(self, fmt: PlaneFormat, held: tuple[Plane, ...], thresholds: Thresholds) -> None:
        """`held` are the planes as the texture holds them, without padding."""
        rows, cols = fmt.grid.shape
        bands = -(-rows // BAND_ROWS)
        channels = 3 if fmt.layout == "rgb" else 1
        scratch = Scratch.allocate(max(CHUNK_BYTES, BAND_ROWS * TILE_PX * cols * TILE_PX * channels))
        self._grid = fmt.grid
        self._thresholds = thresholds
        self._peaks = np.zeros((len(held), bands * BAND_ROWS, cols), np.uint8)
        self._means = np.zeros_like(self._peaks)
        self._differed = [[STILL] * bands for _ in held]
        self._planes = []
        for index, (old, (down, across)) in enumerate(zip(held, fmt.steps(), strict=True)):
            tile = (TILE_PX // down, TILE_PX // across)
            measures = (self._peaks[index, :rows], self._means[index, :rows])
            self._planes.append(PlaneDifference(old, tile, measures, scratch, thresholds.harmless))

    def of(self, planes: FramePlanes) -> Difference:
        """Compares planes of the format that this was made for."""
        measured = [
            plane.measure(new, differed)
            for plane, new, differed in zip(self._planes, planes.planes, self._differed, strict=True)
        ]
        if not any(measured):
            return Difference(np.zeros(self._grid.shape, bool))
        dirty = self._peaks.max(axis=0) > self._thresholds.largest
        dirty |= self._means.max(axis=0) > self._thresholds.mean
        self._remember()
        return Difference(dirty[: self._grid.rows])

    def _remember(self) -> None:
        """Notes in which columns each band of each plane differs.

        There they are measured anew next time, whatever happens; so no measure that could make a tile dirty gets old.
        """
        planes, rows, cols = self._peaks.shape
        bands = self._peaks.reshape(planes, rows // BAND_ROWS, BAND_ROWS, cols).max(axis=2) > self._thresholds.harmless
        first, last = bands.argmax(axis=2).tolist(), (cols - bands[:, :, ::-1].argmax(axis=2)).tolist()
        differs = bands.any(axis=2).tolist()
        self._differed = [
            [(start, stop) if some else STILL for start, stop, some in zip(*plane, strict=True)]
            for plane in zip(first, last, differs, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Scratch:
    """Room for the absolute difference of some tile rows of a plane, and for its first and second halving."""

    delta: Plane
    cells: Plane
    quarters: Plane

    @classmethod
    def allocate(cls, samples: int) -> Scratch:
        return cls(*(np.empty(samples // part, np.uint8) for part in (1, 4, 16)))


class PlaneDifference:
    """Compares one plane with `old`, what the texture holds of it without padding.

    `measures` are where a tile's largest cell and mean are put, uint8 [rows, cols] each; of three channels, the
    largest. They stay as they are where nothing differs by more than `harmless`.
    """

    def __init__(
        self, old: Plane, tile: tuple[int, int], measures: tuple[Plane, Plane], scratch: Scratch, harmless: float
    ) -> None:
        self._old = old
        self._height, self._width = tile
        self._channels = old[0, 0].size
        self._peaks, self._means = measures
        self._rows, self._cols = self._peaks.shape
        self._starts = np.arange(self._cols) * (self._width // 2 * self._channels)
        self._scratch = scratch
        self._harmless = harmless

    def measure(self, new: Plane, differed: list[Columns]) -> bool:
        """Measures where `new` differs; whether anything had to be measured. `differed` says where to begin with."""
        measured = False
        for start, stop, columns in _runs(differed):
            if columns != STILL:
                first = columns[0] if self._alike(new, start, stop, (0, columns[0])) else 0
                last = columns[1] if self._alike(new, start, stop, (columns[1], self._cols)) else self._cols
                self._measure(new, start, stop, (first, last))
                measured = True
            elif not self._alike(new, start, stop, (0, self._cols)):
                for band in range(start, stop):
                    if not self._alike(new, band, band + 1, (0, self._cols)):
                        self._measure(new, band, band + 1, (0, self._cols))
                measured = True
        return measured

    def _alike(self, new: Plane, start: int, stop: int, columns: Columns) -> bool:
        """Whether no sample of these bands and tile columns differs by more than is harmless."""
        part = self._samples(start * BAND_ROWS, stop * BAND_ROWS, columns)
        samples = new[part]
        return samples.size == 0 or cv2.norm(samples, self._old[part], cv2.NORM_INF) <= self._harmless

    def _samples(self, top: int, bottom: int, columns: Columns) -> tuple[slice, slice]:
        first, last = columns
        return slice(top * self._height, bottom * self._height), slice(first * self._width, last * self._width)

    def _measure(self, new: Plane, start: int, stop: int, columns: Columns) -> None:
        """Fills the measures of these bands and tile columns, some rows at a time."""
        row_bytes = (columns[1] - columns[0]) * self._width * self._channels * self._height
        step = max(BAND_ROWS, CHUNK_BYTES // row_bytes)
        bottom = min(stop * BAND_ROWS, self._rows)
        for row in range(start * BAND_ROWS, bottom, step):
            self._measure_rows(new, row, min(row + step, bottom), columns)

    def _measure_rows(self, new: Plane, top: int, bottom: int, columns: Columns) -> None:
        part = self._samples(top, bottom, columns)
        tiles = slice(top, bottom), slice(*columns)
        rows, cols = bottom - top, columns[1] - columns[0]
        samples = new[part]
        shape = (rows * self._height, cols * self._width, *samples.shape[2:])
        delta = self._scratch.delta[: math.prod(shape)].reshape(shape)
        cv2.absdiff(samples, self._old[part], dst=delta[: samples.shape[0], : samples.shape[1]])
        replicate_edges(delta, *samples.shape[:2])
        cells = _halved(delta, self._scratch.cells)
        quarters = _halved(cells, self._scratch.quarters)
        down = np.maximum.reduce(cells.reshape(rows, self._height // 2, -1), axis=1)
        np.maximum.reduceat(down, self._starts[:cols], axis=1, out=self._peaks[tiles])
        means = cv2.resize(quarters, (cols, rows), interpolation=cv2.INTER_AREA)
        self._means[tiles] = means if self._channels == 1 else means.max(axis=2)


def _runs(differed: list[Columns]) -> Iterator[tuple[int, int, Columns]]:
    """Neighbouring bands that are all still, or all not: (start, stop, the columns in which any of them differed)."""
    start = 0
    for still, run in groupby(differed, STILL.__eq__):
        spans = list(run)
        stop = start + len(spans)
        yield start, stop, STILL if still else (min(first for first, _ in spans), max(last for _, last in spans))
        start = stop


def _halved(source: Plane, scratch: Plane) -> Plane:
    """The box filter (a + b + c + d + 2) >> 2."""
    height, width = source.shape[0] // 2, source.shape[1] // 2
    out = scratch[: source.size // 4].reshape(height, width, *source.shape[2:])
    cv2.resize(source, (width, height), dst=out, interpolation=cv2.INTER_AREA)
    return out
