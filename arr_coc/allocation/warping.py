"""Warps of maps of tiles along with what the tiles show: of one frame, of many, and in whole tiles."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from arr_coc.allocation.compiled_maps import CompiledMaps
from arr_coc.types import TILE_PX, TileMotion

Map = npt.NDArray[np.float32]

REMEMBERED_BYTES = 16 << 20
"""What motion of earlier frames may take: 34 s of a pan at 1080p30."""

CARRY_AT_TILES = 0.6
"""How far content must have moved before maps of whole tiles follow it: a little over half a tile, so that a shaking
hand at the border does not carry them to and fro."""

CARRY_WITH_TILES = 0.4
"""How far content must have moved to go with neighbours that are due: what goes first would overwrite the others."""

APART_TILES = 0.2
"""A tile whose way departs by more from the mean of it and its neighbours lies where things move apart."""

NEAR_TILES = 0.02
"""How much of a difference in motion a tile's distance outweighs."""

KNOWN = 0.5
"""Least weight of known neighbours for a value between tiles to be known."""


@lru_cache(maxsize=8)
def _places(rows: int, cols: int) -> Map:
    """Row and column of each tile: float32 [2, rows, cols]."""
    return np.ascontiguousarray(np.mgrid[0:rows, 0:cols], np.float32)


@dataclass(frozen=True, slots=True)
class Box:
    """Part of a grid: a span of rows and a span of columns."""

    rows: slice
    cols: slice

    @classmethod
    def around(cls, tiles: npt.NDArray[np.bool_]) -> Box | None:
        """The smallest box that holds all of `tiles` bool [gh, gw]; None where there are none."""
        rows = np.flatnonzero(tiles.any(axis=1))
        if not len(rows):
            return None
        cols = np.flatnonzero(tiles.any(axis=0))
        return cls(slice(int(rows[0]), int(rows[-1]) + 1), slice(int(cols[0]), int(cols[-1]) + 1))


_NINE = np.array(sorted(np.ndindex(3, 3), key=lambda at: abs(at[0] - 1) + abs(at[1] - 1))).T - 1
"""Steps [2, 9] to a tile and its neighbours, itself first."""


@dataclass(frozen=True, eq=False)
class Warp:
    """Backward map from the tiles of a frame to where they were in an earlier one.

    `origin` float32 [2, gh, gw] holds row and column, in tiles; whole numbers are the middles of tiles. What came into
    view since has its origin outside the grid. `newest` float32 [2, gh, gw]: how far tiles moved with the last frame.
    `maps`: the compiled kernel, where it does the work.
    """

    origin: Map
    newest: Map
    maps: CompiledMaps | None = None

    @classmethod
    def of(cls, motion: TileMotion, maps: CompiledMaps | None = None) -> Warp:
        """The warp from a frame to the one before."""
        shape = 2, *motion.dy_px.shape
        moved = np.empty(shape, np.float32) if maps is None else maps.arrays.take(shape)
        for way, way_px in zip(moved, (motion.dy_px, motion.dx_px), strict=True):
            np.multiply(way_px, np.float32(1 / TILE_PX), out=way)
        return cls.by(moved, maps)

    @classmethod
    def by(cls, moved: Map, maps: CompiledMaps | None = None) -> Warp:
        """The warp of tiles that moved so far with a frame: float32 [2, gh, gw], in tiles."""
        origin = None if maps is None else maps.arrays.take(moved.shape)
        return cls(np.subtract(_places(*moved.shape[1:]), moved, out=origin), moved, maps)

    @classmethod
    def none(cls, shape: tuple[int, int]) -> Warp:
        """The warp of tiles [gh, gw] that stayed where they were."""
        return cls(_places(*shape), np.zeros((2, *shape), np.float32))

    def then(self, newer: Warp) -> Warp:
        """This warp, and after it that of one frame more: from there to this one's earlier frame.

        The way so far is read between tiles; what lies outside the grid goes on as the tiles at its edge. At the border
        of things that move apart, where a mean would be the way of neither, a tile takes the way of that neighbour
        which moved as it does.
        """
        if newer.maps is not None:
            ways = (self.origin, self.newest), (newer.origin, newer.newest)
            return Warp(newer.maps.then(*ways, APART_TILES, NEAR_TILES), newer.newest, newer.maps)
        read = way = self.origin - _places(*self.origin.shape[1:])
        if (box := newer.box) is not None:
            read = way.copy()
            read[:, box.rows, box.cols] = _read_exactly(way, newer.origin[:, box.rows, box.cols])
        # a tile that moved neither now nor before takes its own way
        apart = _at_borders(way) & (newer._moved | (self.newest != 0).any(axis=0))
        if apart.any():
            read = way.copy() if read is way else read
            read[:, apart] = self._way_of_the_same_thing(way, newer, apart)
        return Warp(newer.origin + read, newer.newest)

    def _way_of_the_same_thing(self, way: Map, newer: Warp, apart: npt.NDArray[np.bool_]) -> Map:
        """For each of n tiles `apart` bool [gh, gw], of the nine tiles around where it came from, the way of that which
        last moved most like it: float32 [2, n]."""
        rows, cols = way.shape[1:]
        origin, newest = newer.origin[:, apart], newer.newest[:, apart]
        near = np.rint(origin).astype(np.intp)[:, None] + _NINE[..., None]
        row, col = np.clip(near[0], 0, rows - 1), np.clip(near[1], 0, cols - 1)
        unlike = np.abs(self.newest[:, row, col] - newest[:, None]).max(axis=0)
        unlike += NEAR_TILES * np.hypot(row - origin[0], col - origin[1])
        best = unlike.argmin(axis=0), np.arange(origin.shape[1])
        return np.asarray(way[:, row[best], col[best]])

    @cached_property
    def _moved(self) -> npt.NDArray[np.bool_]:
        """Tiles that were somewhere else: bool [gh, gw]."""
        return (self.origin != _places(*self.origin.shape[1:])).any(axis=0)

    @cached_property
    def box(self) -> Box | None:
        """The box that holds all tiles that were somewhere else; None where there are none."""
        return Box.around(self._moved)

    @cached_property
    def inside(self) -> npt.NDArray[np.bool_]:
        """Tiles that were in view: bool [gh, gw]."""
        rows, cols = self.origin.shape[1:]
        row, col = self.origin
        return (row >= -0.5) & (row <= rows - 0.5) & (col >= -0.5) & (col <= cols - 0.5)

    def sample(self, values: npt.NDArray[Any], entering: float) -> Map:
        """A map [gh, gw] or [C, gh, gw] of the earlier frame, as it lies now: float32, read between tiles.

        Tiles that came into view hold `entering`, and so do those that lie mostly between unknown ones (NaN).
        """
        moved = values.astype(np.float32)
        maps, box = moved.reshape(-1, *values.shape[-2:]), self.box
        if not np.isnan(entering):
            maps[np.isnan(maps)] = entering
        if box is not None:
            maps[:, box.rows, box.cols] = self._sampled(values.reshape(maps.shape), box, entering)
        return moved

    def _sampled(self, values: npt.NDArray[Any], box: Box, entering: float) -> Map:
        """The same of maps [C, gh, gw] in a box."""
        origin, source = self.origin[:, box.rows, box.cols], self._source
        maps = values[:, source.rows, source.cols].astype(np.float32)
        row, col = origin[0] - np.float32(source.rows.start), origin[1] - np.float32(source.cols.start)
        inside, unknown = self.inside[box.rows, box.cols], np.isnan(maps)
        if not unknown.any():
            return np.where(inside, _read(maps, row, col), np.float32(entering))
        if (unknown == unknown[0]).all():
            unknown = unknown[:1]  # mostly the same tiles of all maps came into view
        weights = (~unknown).astype(np.float32)
        read = _read(np.concatenate([weights, np.where(unknown, np.float32(0), maps)]), row, col)
        known, moved = read[: len(weights)], read[len(weights) :]
        there = inside & (known >= KNOWN)
        return np.where(there, moved / np.maximum(known, np.float32(1e-6)), np.float32(entering))

    def nearest(self, values: npt.NDArray[Any], entering: float) -> npt.NDArray[Any]:
        """The same for values that do not mix: those of the nearest tile, in their own dtype."""
        if self.maps is not None:
            return self.maps.nearest(self.origin, values, entering)
        box = self.box
        if box is None:
            return values
        moved = values.copy()
        taken = values[(..., *self._nearest)]
        inside = self.inside[box.rows, box.cols]
        moved[..., box.rows, box.cols] = np.where(inside, taken, np.asarray(entering, values.dtype))
        return moved

    @cached_property
    def _source(self) -> Box:
        """The box in which the tiles of `box` were, as far as that is on the grid, with their neighbours."""
        assert self.box is not None
        origin = self.origin[:, self.box.rows, self.box.cols]
        spans = []
        for places, count in zip(origin, self.origin.shape[1:], strict=True):
            first, last = math.floor(float(places.min())) - 1, math.ceil(float(places.max())) + 2
            first = min(max(first, 0), count - 1)
            spans.append(slice(first, max(min(last, count), first + 1)))
        return Box(*spans)

    @cached_property
    def _nearest(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """For each tile of `box` the tile nearest to where it was: row and column, int [h, w] each."""
        assert self.box is not None
        rows, cols = self.origin.shape[1:]
        row, col = np.rint(self.origin[:, self.box.rows, self.box.cols]).astype(np.intp)
        return np.clip(row, 0, rows - 1), np.clip(col, 0, cols - 1)


def _read(maps: Map, row: Map, col: Map) -> Map:
    """Bilinear values of maps [C, gh, gw] at places [h, w]; beyond the edge, those of the edge. All are read at
    once."""
    together = np.ascontiguousarray(maps.transpose(1, 2, 0))
    read = cv2.remap(together, col, row, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.ascontiguousarray(read.reshape(*row.shape, len(maps)).transpose(2, 0, 1))


def _read_exactly(values: Map, origin: Map) -> Map:
    """Bilinear values of maps [C, gh, gw] at float places [2, gh, gw], up to a tile beyond the edge along their slope.
    OpenCV rounds places to a 32nd of a tile, which would add up over frames."""
    rows, cols = values.shape[1:]
    row, col = np.clip(origin[0], -1, rows), np.clip(origin[1], -1, cols)
    top = np.clip(np.floor(row), 0, max(rows - 2, 0))
    left = np.clip(np.floor(col), 0, max(cols - 2, 0))
    corner = (top * cols + left).astype(np.intp)
    right, below = min(1, cols - 1), cols * min(1, rows - 1)
    together = np.ascontiguousarray(values.reshape(len(values), -1).T)
    down, across = (row - top)[..., None], (col - left)[..., None]
    above = together[corner] + across * (together[corner + right] - together[corner])
    under = together[corner + below] + across * (together[corner + below + right] - together[corner + below])
    return np.ascontiguousarray((above + down * (under - above)).transpose(2, 0, 1), np.float32)


def _at_borders(way: Map) -> npt.NDArray[np.bool_]:
    """Tiles at whose place the ways [2, gh, gw] around do not lie in a plane, and their neighbours: bool [gh, gw]."""
    departs = np.max([np.abs(part - cv2.blur(part, (3, 3))) for part in way], axis=0)
    apart = np.zeros(departs.shape, np.uint8)
    apart[1:-1, 1:-1] = departs[1:-1, 1:-1] > APART_TILES
    return cv2.dilate(apart, np.ones((3, 3), np.uint8)) > 0


class MotionHistory:
    """Motion of an epoch's frames, as many as `REMEMBERED_BYTES` hold, to be composed to one warp."""

    def __init__(self, frame_index: int) -> None:
        """`frame_index`: the frame with which the epoch begins."""
        self._moved: deque[tuple[int, Map]] = deque()
        self._maps: CompiledMaps | None = None
        self._known_from = frame_index

    def add(self, frame_index: int, warp: Warp) -> None:
        """Tiles moved so with this frame."""
        self._moved.append((frame_index, warp.newest.copy()))
        self._maps = warp.maps
        if len(self._moved) * warp.newest.nbytes > REMEMBERED_BYTES:
            self._known_from, _ = self._moved.popleft()

    def since(self, frame_index: int, shape: tuple[int, int]) -> Warp | None:
        """The warp from now to that frame, on a grid of `shape`; None where that is no longer known."""
        if frame_index < self._known_from:
            return None
        warp = Warp.none(shape)
        for moved_at, moved in self._moved:
            if moved_at > frame_index:
                warp = warp.then(Warp.by(moved, self._maps))
        return warp


class WholeTileSteps:
    """Adds up motion tile by tile, and gives it out in whole tiles, for maps whose values cannot be mixed.

    A map that follows all steps is never farther than `CARRY_AT_TILES` from what it is about, however slowly that
    moves.
    """

    def __init__(self) -> None:
        self._left: Map | None = None

    def step(self, warp: Warp) -> Warp | None:
        """Tiles moved by `warp` with this frame; the warp in whole tiles that maps are to follow now, None for none."""
        places = _places(*warp.origin.shape[1:])
        if warp.maps is not None:
            if self._left is None:
                self._left = warp.maps.arrays.take(places.shape)
                self._left.fill(0)
            taken = warp.maps.whole_steps(warp.origin, self._left, CARRY_AT_TILES, CARRY_WITH_TILES)
            return None if taken is None else Warp(places - taken, taken, warp.maps)
        left = np.zeros_like(places) if self._left is None else warp.nearest(self._left, 0.0)
        moved = places - warp.origin + left
        due = _due(np.abs(moved).max(axis=0))
        whole = np.where(due, np.trunc(moved + np.copysign(1 - CARRY_WITH_TILES, moved)), np.float32(0))
        self._left = moved - whole
        return Warp(places - whole, whole) if due.any() else None


def _due(moved_tiles: Map) -> npt.NDArray[np.bool_]:
    """Tiles that maps are to follow now, bool [gh, gw]: those that moved far enough, and theirs that nearly did."""
    far = moved_tiles >= CARRY_AT_TILES
    if not far.any():
        return far
    _, groups = cv2.connectedComponents((moved_tiles > CARRY_WITH_TILES).astype(np.uint8), connectivity=8)
    due = np.zeros(groups.max() + 1, bool)
    due[groups[far]] = True
    return due[groups]
