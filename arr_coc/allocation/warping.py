"""Warps of maps of tiles along with what the tiles show: of one frame, of many, and in whole tiles. `CompiledMaps`:
maps over time by the compiled kernel, beside the array operations that give the same without it."""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from arr_coc.relevance.kernel import kernel_path, load_kernel
from arr_coc.texture.kernels import ArrayPool, library_or_none
from arr_coc.types import TILE_PX, TileMotion

Map = npt.NDArray[np.float32]

REMEMBERED_BYTES = 16 << 20
"""Memory for the motion of earlier frames: 34 s of a pan at 1080p30."""

CARRY_AT_TILES = 0.6
"""Least motion of content before maps of whole tiles follow it: a little over half a tile, so that a shaking
hand at the border does not carry them to and fro."""

CARRY_WITH_TILES = 0.4
"""Least motion of content to go with neighbours that are due: these would overwrite it otherwise."""

APART_TILES = 0.2
"""A tile whose motion departs by more than this from the mean of its 3×3 tiles lies between differing motions."""

NEAR_TILES = 0.02
"""Difference in motion that a tile's distance outweighs."""

PLACE_STEPS = 32
"""Steps per tile to which places between tiles are rounded, as in the compiled kernel."""


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
        """Return the smallest box that holds all of `tiles` bool [gh, gw]; None if there are none."""
        rows = np.flatnonzero(tiles.any(axis=1))
        if not len(rows):
            return None
        cols = np.flatnonzero(tiles.any(axis=0))
        return cls(slice(int(rows[0]), int(rows[-1]) + 1), slice(int(cols[0]), int(cols[-1]) + 1))


_NINE = np.array(sorted(np.ndindex(3, 3), key=lambda at: abs(at[0] - 1) + abs(at[1] - 1))).T - 1
"""Steps [2, 9] to a tile and its neighbours, itself first."""


@dataclass(frozen=True, eq=False)
class Warp:
    """Backward map from the tiles of a frame to their places in an earlier one.

    `origin` float32 [2, gh, gw] holds row and column, in tiles; whole numbers are the middles of tiles. What came into
    view since has its origin outside the grid. `newest` float32 [2, gh, gw]: how far tiles moved with the last frame.
    `maps`: the compiled kernel, if it does the work.
    """

    origin: Map
    newest: Map
    maps: CompiledMaps | None = None
    _placed: _Places | None = field(default=None, init=False, repr=False)

    @classmethod
    def of(cls, motion: TileMotion, maps: CompiledMaps | None = None) -> Warp:
        """Return the warp from a frame to the one before."""
        shape = 2, *motion.dy_px.shape
        if maps is None:
            motion_tiles = np.empty(shape, np.float32)
        else:
            motion_tiles = maps.arrays.take(shape)
        for way, way_px in zip(motion_tiles, (motion.dy_px, motion.dx_px), strict=True):
            np.multiply(way_px, np.float32(1 / TILE_PX), out=way)
        return cls.by(motion_tiles, maps)

    @classmethod
    def by(cls, motion_tiles: Map, maps: CompiledMaps | None = None) -> Warp:
        """Return the warp of tiles that moved by this much with a frame: float32 [2, gh, gw], in tiles."""
        if maps is None:
            origin = None
        else:
            origin = maps.arrays.take(motion_tiles.shape)
        return cls(np.subtract(_places(*motion_tiles.shape[1:]), motion_tiles, out=origin), motion_tiles, maps)

    @classmethod
    def identity(cls, shape: tuple[int, int]) -> Warp:
        """Return the warp of tiles [gh, gw] that did not move."""
        return cls(_places(*shape), np.zeros((2, *shape), np.float32))

    def then(self, newer: Warp) -> Warp:
        """This warp, and after it that of one frame more: from there to this one's earlier frame.

        The way so far is read between tiles; what lies outside the grid goes on as the tiles at its edge. At the border
        between differing motions, whose mean would be neither, a tile takes the way of the neighbour with the nearest
        motion.
        """
        if newer.maps is not None:
            ways = (self.origin, self.newest), (newer.origin, newer.newest)
            return Warp(newer.maps.then(*ways, APART_TILES, NEAR_TILES), newer.newest, newer.maps)
        way_at_origin = way = self.origin - _places(*self.origin.shape[1:])
        if (box := newer.box) is not None:
            way_at_origin = way.copy()
            way_at_origin[:, box.rows, box.cols] = _bilinear(way, newer.origin[:, box.rows, box.cols])
        # a tile that moved neither now nor before takes its own way
        borders = _at_borders(way) & (newer._moving_tiles | (self.newest != 0).any(axis=0))
        if borders.any():
            if way_at_origin is way:
                way_at_origin = way.copy()
            way_at_origin[:, borders] = self._way_of_nearest_motion(way, newer, borders)
        return Warp(newer.origin + way_at_origin, newer.newest)

    def _way_of_nearest_motion(self, way: Map, newer: Warp, tiles: npt.NDArray[np.bool_]) -> Map:
        """For each of the n `tiles` bool [gh, gw], of the nine tiles around its origin, the way of the one whose last
        motion is the nearest: float32 [2, n]."""
        rows, cols = way.shape[1:]
        origin = newer.origin[:, tiles]
        newest = newer.newest[:, tiles]
        neighbours = np.rint(origin).astype(np.intp)[:, None] + _NINE[..., None]
        row = np.clip(neighbours[0], 0, rows - 1)
        col = np.clip(neighbours[1], 0, cols - 1)
        distance = np.abs(self.newest[:, row, col] - newest[:, None]).max(axis=0)
        distance += NEAR_TILES * np.hypot(row - origin[0], col - origin[1])
        best = distance.argmin(axis=0), np.arange(origin.shape[1])
        return np.asarray(way[:, row[best], col[best]])

    @cached_property
    def _moving_tiles(self) -> npt.NDArray[np.bool_]:
        """Tiles that were somewhere else: bool [gh, gw]."""
        return (self.origin != _places(*self.origin.shape[1:])).any(axis=0)

    @cached_property
    def box(self) -> Box | None:
        """The box that holds all tiles that moved; None if there are none."""
        return Box.around(self._moving_tiles)

    @cached_property
    def in_view(self) -> npt.NDArray[np.bool_]:
        """Tiles that were in view: bool [gh, gw]."""
        rows, cols = self.origin.shape[1:]
        row, col = self.origin
        return (row >= -0.5) & (row <= rows - 0.5) & (col >= -0.5) & (col <= cols - 0.5)

    def sample(self, values: torch.Tensor, entering: float) -> torch.Tensor:
        """Return a map [gh, gw] or [C, gh, gw] of the earlier frame, as it lies now: float32, read between tiles.

        Tiles that came into view hold `entering`, and so do those that lie mostly between unknown ones (NaN).
        """
        at = self._places_on(values.device)
        maps = values.reshape(-1, *values.shape[-2:]).float()
        unknown = maps.isnan()
        known_share = at.read((~unknown).float())
        means = at.read(maps.masked_fill(unknown, 0)) / known_share.clamp(min=1e-6)
        # least weight of known neighbours for a value between tiles to be known
        return torch.where(at.in_grid & (known_share >= 0.5), means, entering).reshape(values.shape)

    def nearest(self, values: torch.Tensor, entering: float) -> torch.Tensor:
        """Return the same for values that do not mix: those of the nearest tile, in their own dtype."""
        if self.maps is not None and values.is_cpu:
            return self.maps.nearest(self.origin, values, entering)
        at = self._places_on(values.device)
        gathered = values.flatten(-2)[..., at.nearest].reshape(values.shape)
        return torch.where(at.in_grid, gathered, torch.full((), entering, dtype=values.dtype, device=values.device))

    def _places_on(self, device: torch.device) -> _Places:
        if self._placed is None or self._placed.in_grid.device != device:
            object.__setattr__(self, "_placed", _Places.of(self, device))
        assert self._placed is not None
        return self._placed


@dataclass(frozen=True, slots=True)
class _Places:
    """Places of a warp's tiles, on a device: the four tiles `around` each place int64 [4, n] and their `shares`
    float32 [4, n], the `nearest` one int64 [n], and which were `in_grid` bool [gh, gw]."""

    around: torch.Tensor
    shares: torch.Tensor
    nearest: torch.Tensor
    in_grid: torch.Tensor

    @classmethod
    def of(cls, warp: Warp, device: torch.device) -> _Places:
        rows, cols = warp.origin.shape[1:]
        last = np.array([rows - 1, cols - 1])[:, None, None]
        between = np.rint(warp.origin * PLACE_STEPS) / np.float32(PLACE_STEPS)
        first = np.floor(between)
        down, across = between - first
        (top, left), (under, right) = (np.clip(place, 0, last).astype(np.int64) for place in (first, first + 1))
        nearest = np.clip(np.rint(warp.origin), 0, last).astype(np.int64)
        corners = [row * cols + col for row, col in ((top, left), (top, right), (under, left), (under, right), nearest)]
        shares = [(1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across]
        places = torch.from_numpy(np.stack(corners)).to(device).flatten(1)
        weights = torch.from_numpy(np.stack([*shares, warp.in_view]).astype(np.float32)).to(device)
        return cls(places[:4], weights[:4].flatten(1), places[4], weights[4] > 0)

    def read(self, maps: torch.Tensor) -> torch.Tensor:
        """Return the values of maps [C, gh, gw] between tiles; beyond the edge, those of the edge."""
        flat = maps.flatten(1)
        total = flat[:, self.around[0]] * self.shares[0]
        for corner in range(1, 4):
            total = total + flat[:, self.around[corner]] * self.shares[corner]
        return total.reshape(maps.shape)


def _bilinear(values: Map, origin: Map) -> Map:
    """Bilinear values of maps [C, gh, gw] at float places [2, gh, gw], up to a tile beyond the edge along their slope.
    OpenCV rounds places to a 32nd of a tile, which would add up over frames."""
    rows, cols = values.shape[1:]
    row = np.clip(origin[0], -1, rows)
    col = np.clip(origin[1], -1, cols)
    top = np.clip(np.floor(row), 0, max(rows - 2, 0))
    left = np.clip(np.floor(col), 0, max(cols - 2, 0))
    corner = (top * cols + left).astype(np.intp)
    right = min(1, cols - 1)
    below = cols * min(1, rows - 1)
    tile_values = np.ascontiguousarray(values.reshape(len(values), -1).T)
    down = (row - top)[..., None]
    across = (col - left)[..., None]
    above = tile_values[corner] + across * (tile_values[corner + right] - tile_values[corner])
    under = tile_values[corner + below] + across * (tile_values[corner + below + right] - tile_values[corner + below])
    return np.ascontiguousarray((above + down * (under - above)).transpose(2, 0, 1), np.float32)


def _at_borders(way: Map) -> npt.NDArray[np.bool_]:
    """Return the tiles at whose place the ways [2, gh, gw] around do not lie in a plane, and their neighbours: bool
    [gh, gw]."""
    departs = np.max([np.abs(part - cv2.blur(part, (3, 3))) for part in way], axis=0)
    borders = np.zeros(departs.shape, np.uint8)
    borders[1:-1, 1:-1] = departs[1:-1, 1:-1] > APART_TILES
    return cv2.dilate(borders, np.ones((3, 3), np.uint8)) > 0


class MotionHistory:
    """Motion of an epoch's frames, as many as `REMEMBERED_BYTES` hold, to be composed to one warp."""

    def __init__(self, frame_index: int) -> None:
        """`frame_index`: the frame with which the epoch begins."""
        self._motions: deque[tuple[int, Map]] = deque()
        self._maps: CompiledMaps | None = None
        self._known_from = frame_index

    def add(self, frame_index: int, warp: Warp) -> None:
        """Tiles moved so with this frame."""
        self._motions.append((frame_index, warp.newest.copy()))
        self._maps = warp.maps
        if len(self._motions) * warp.newest.nbytes > REMEMBERED_BYTES:
            self._known_from, _ = self._motions.popleft()

    def since(self, frame_index: int, shape: tuple[int, int]) -> Warp | None:
        """Return the warp from now to that frame, on a grid of `shape`; None if the motion since is no longer known."""
        if frame_index < self._known_from:
            return None
        warp = Warp.identity(shape)
        for index, motion in self._motions:
            if index > frame_index:
                warp = warp.then(Warp.by(motion, self._maps))
        return warp


class WholeTileSteps:
    """Sum of motion tile by tile, released in whole tiles, for maps whose values cannot be mixed.

    A map that follows all steps is never farther than `CARRY_AT_TILES` from what it is about, however slowly that
    moves.
    """

    def __init__(self) -> None:
        self._remainder: Map | None = None

    def step(self, warp: Warp) -> Warp | None:
        """Return the tiles moved by `warp` with this frame; the warp in whole tiles that maps are to follow now, None
        for none."""
        places = _places(*warp.origin.shape[1:])
        if warp.maps is not None:
            if self._remainder is None:
                self._remainder = warp.maps.arrays.take(places.shape)
                self._remainder.fill(0)
            whole_tiles = warp.maps.whole_steps(warp.origin, self._remainder, CARRY_AT_TILES, CARRY_WITH_TILES)
            if whole_tiles is None:
                return None
            return Warp(places - whole_tiles, whole_tiles, warp.maps)
        if self._remainder is None:
            remainder = np.zeros_like(places)
        else:
            remainder = warp.nearest(torch.from_numpy(self._remainder), 0.0).numpy()
        total = places - warp.origin + remainder
        due = _due(np.abs(total).max(axis=0))
        whole_tiles = np.where(due, np.trunc(total + np.copysign(1 - CARRY_WITH_TILES, total)), np.float32(0))
        self._remainder = total - whole_tiles
        if due.any():
            return Warp(places - whole_tiles, whole_tiles)
        return None


def _due(moved_tiles: Map) -> npt.NDArray[np.bool_]:
    """Return the tiles that maps are to follow now, bool [gh, gw]: they moved far enough, or nearly and beside such a
    tile."""
    is_far = moved_tiles >= CARRY_AT_TILES
    if not is_far.any():
        return is_far
    _, groups = cv2.connectedComponents((moved_tiles > CARRY_WITH_TILES).astype(np.uint8), connectivity=8)
    due = np.zeros(groups.max() + 1, bool)
    due[groups[is_far]] = True
    return due[groups]


_POINTER = ctypes.c_void_p
_INT = ctypes.c_int32
_FLOAT = ctypes.c_float
_DOUBLE = ctypes.c_double
_GRID = (_INT, _INT)
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "maps_nearest": (None, (*_GRID, _POINTER, _POINTER, _INT, _INT, _POINTER, _POINTER)),
    "maps_then": (None, (*_GRID, *(_POINTER,) * 4, _FLOAT, _FLOAT, *(_POINTER,) * 3)),
    "maps_steps": (_INT, (*_GRID, _POINTER, _FLOAT, _FLOAT, *(_POINTER,) * 4)),
    "maps_blend": (_INT, (*_GRID, *(_POINTER,) * 6, _INT, _FLOAT, _FLOAT, _FLOAT, *(_POINTER,) * 4)),
    "maps_recall": (None, (*_GRID, *(_POINTER,) * 6, _INT, _DOUBLE, _FLOAT, _DOUBLE, *(_POINTER,) * 2)),
    "maps_drift": (_INT, (*_GRID, _POINTER, _POINTER, _FLOAT, _POINTER)),
    "maps_changed": (_DOUBLE, (*_GRID, *(_POINTER,) * 3)),
    "maps_structure": (_FLOAT, (*_GRID, *(_POINTER,) * 3, *(_FLOAT,) * 3, _POINTER)),
}


@cache
def _bound(kernel: ctypes.CDLL) -> ctypes.PyDLL:
    library = ctypes.PyDLL(kernel._name, handle=kernel._handle)
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


@lru_cache(maxsize=8)
def _scalar(value: float, dtype: torch.dtype) -> torch.Tensor:
    return torch.full((), value, dtype=dtype)


class CompiledMaps:
    """Maps of one stream by the compiled kernel, in arrays of a pool; used by one thread.

    Methods give what `arr_coc.allocation.warping` and `arr_coc.allocation.temporal` give without them, but for rounding
    (below 1e-6). Maps are float32 [gh, gw], contiguous, in host memory; `origin` [2, gh, gw] is that of a `Warp`. The
    kernel keeps the interpreter's lock, because a call takes less time than another thread's turn.
    """

    def __init__(self, kernel: ctypes.CDLL, arrays: ArrayPool) -> None:
        self.arrays = arrays
        self._library = _bound(kernel)
        self._largest = ctypes.c_float()
        self._largest_at = ctypes.byref(self._largest)

    def nearest(self, origin: Map, values: torch.Tensor, entering: float) -> torch.Tensor:
        """Return a map's values of the nearest tiles; see `Warp.nearest`.

        Args:
            origin: Origin of the warp, float32 [2, gh, gw].
            values: A map [gh, gw], or several [C, gh, gw], of 1, 4 or 8 bytes a value.
            entering: Value of tiles that came into view.
        """
        rows, cols = origin.shape[1:]
        maps = values.contiguous()
        output = torch.empty_like(values)
        fill = _scalar(entering, values.dtype)
        count = maps.numel() // (rows * cols)
        size = maps.element_size()
        at = self.arrays.address(origin), maps.data_ptr(), count, size, fill.data_ptr(), output.data_ptr()
        self._library.maps_nearest(rows, cols, *at)
        return output

    def then(self, older: tuple[Map, Map], newer: tuple[Map, Map], apart_tiles: float, near_tiles: float) -> Map:
        """Return the origin of one warp and another one after it; see `Warp.then`.

        Args:
            older: Origin and newest motion of the first, float32 [2, gh, gw] each.
            newer: Origin and newest motion of the second, float32 [2, gh, gw] each.
            apart_tiles: Difference in motion, in tiles, from which a tile lies between differing motions.
            near_tiles: Difference in motion, in tiles, that a tile's distance outweighs.

        Returns:
            float32 [2, gh, gw].
        """
        rows, cols = older[0].shape[1:]
        origin = self.arrays.take(older[0].shape)
        way = self.arrays.take(older[0].shape)
        marked = self.arrays.take((rows, cols), np.uint8)
        at = self.arrays.address
        self._library.maps_then(
            rows, cols, *map(at, (*older, *newer)), apart_tiles, near_tiles, at(way), at(marked), at(origin)
        )
        return origin

    def whole_steps(self, origin: Map, remainder: Map, at_tiles: float, with_tiles: float) -> Map | None:
        """Return the motion that is due in whole tiles, once a frame's is added; see `WholeTileSteps.step`.

        Args:
            origin: Origin of the frame's warp, float32 [2, gh, gw].
            remainder: Motion that no step released yet, float32 [2, gh, gw], changed in place.
            at_tiles: Motion from which a tile is due.
            with_tiles: Motion from which a tile is due beside such a one.

        Returns:
            float32 [2, gh, gw]; None if nothing is due.
        """
        rows, cols = origin.shape[1:]
        whole_tiles = self.arrays.take(origin.shape)
        queue = self.arrays.take((rows, cols), np.int32)
        due = self.arrays.take((rows, cols), np.uint8)
        at = self.arrays.address
        any_due = self._library.maps_steps(
            rows, cols, at(origin), at_tiles, with_tiles, at(remainder), at(whole_tiles), at(queue), at(due)
        )
        return whole_tiles if any_due else None

    def blend(
        self,
        origin: Map | None,
        past: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        current: torch.Tensor,
        looks: torch.Tensor,
        limits: tuple[float, float, float],
    ) -> tuple[torch.Tensor, torch.Tensor | None, float]:
        """Blend a frame's map with the past; see `TemporalBlend`.

        Args:
            origin: Origin of the warp to the frame before, float32 [2, gh, gw]; None: nothing moved.
            past: The frame before: its blended map and its output, float32 [gh, gw] each, and its tiles' looks
                [C, gh, gw].
            current: Relevance of this frame alone, float32 [gh, gw].
            looks: Looks of its tiles, float32 [C, gh, gw], whose last map, entropy, does not count.
            limits: The past's share, the change of looks that renews a tile, and the dead band.

        Returns:
            The blended map, the output (None if it stays as it is), and the largest difference between the blended map
            and `current`.
        """
        rows, cols = current.shape
        count = len(looks) - 1
        take = self._take
        blended = take(rows, cols)
        output = take(rows, cols)
        scratch = take(count + 1, rows, cols)
        places = (*past, current, looks)
        is_changed = self._library.maps_blend(
            *(rows, cols, self._at(origin), *(tensor.data_ptr() for tensor in places), count, *limits),
            *(scratch.data_ptr(), blended.data_ptr(), output.data_ptr(), self._largest_at),
        )
        return blended, output if is_changed or origin is not None else None, self._largest.value

    def recall(
        self,
        origin: Map | None,
        feedback: tuple[torch.Tensor, ...],
        looks: torch.Tensor,
        now_ns: int,
        limits: tuple[float, float],
    ) -> torch.Tensor:
        """Attention, similarity and trust, float32 [3, gh, gw], at a time; see `FeedbackPrior.evaluate`.

        Args:
            origin: Origin of the warp to the feedback's frame, float32 [2, gh, gw]; None: nothing moved.
            feedback: Attention and similarity [2, gh, gw], the media times at which they were learned (float64
                [gh, gw]), confidence [gh, gw], and the tiles' looks at that time [C, gh, gw].
            looks: Looks of the newest frame's tiles, float32 [C, gh, gw].
            now_ns: Media time.
            limits: The change of looks that renews a tile, and the time in seconds in which trust fades.
        """
        count, rows, cols = looks.shape
        prior = self._take(3, rows, cols)
        scratch = self._take(count + 1, rows, cols)
        places = (*feedback, looks)
        self._library.maps_recall(
            *(rows, cols, self._at(origin), *(tensor.data_ptr() for tensor in places), count, now_ns, *limits),
            *(scratch.data_ptr(), prior.data_ptr()),
        )
        return prior

    def drift(self, values: torch.Tensor, reference: torch.Tensor, band: float) -> torch.Tensor | None:
        """Return the reference with the values that left the band around it.

        Args:
            values: The newest map, float32 [gh, gw].
            reference: The map that is followed, float32 [gh, gw]; NaN: the value is taken.
            band: Largest difference that changes nothing.

        Returns:
            float32 [gh, gw]; None if no value left the band.
        """
        rows, cols = values.shape
        output = self._take(rows, cols)
        places = values.data_ptr(), reference.data_ptr(), band, output.data_ptr()
        if self._library.maps_drift(rows, cols, *places):
            return output
        return None

    def changed_share(
        self, marked: npt.NDArray[np.int64], versions: npt.NDArray[np.int64], relevance: torch.Tensor
    ) -> float:
        """Return the share of relevance on tiles whose version is another than the marked one; see
        `ChangeMeter.measure`.

        Args:
            marked: Versions of the tiles at the mark, int64 [gh, gw].
            versions: Versions of the tiles of the newest frame, int64 [gh, gw].
            relevance: Weights of the tiles, float32 [gh, gw].
        """
        at = self.arrays.address
        return float(self._library.maps_changed(*relevance.shape, at(marked), at(versions), relevance.data_ptr()))

    def _take(self, *shape: int) -> torch.Tensor:
        return torch.from_numpy(self.arrays.take(shape))

    def _at(self, origin: Map | None) -> int | None:
        if origin is None:
            return None
        return self.arrays.address(origin)


def maps_or_none(arrays: ArrayPool) -> CompiledMaps | None:
    """Return the maps by the compiled kernel, in arrays of a stream's pool; None if the reference is used. Raises as
    `library_or_none`."""
    kernel = library_or_none(load_kernel, kernel_path())
    if kernel is None:
        return None
    return CompiledMaps(kernel, arrays)


def structure_or_none(
    maps: torch.Tensor, surfaces: torch.Tensor | None, least: torch.Tensor, limits: tuple[float, float, float]
) -> torch.Tensor | None:
    """`map_structure` of `arr_coc.allocation.structure` by the compiled kernel, or `picture_structure`; None if the
    reference is used.

    Args:
        maps: A map [gh, gw], or the appearance [7, gh, gw] of a picture.
        surfaces: Basis of the surfaces of second order, float32 [gh · gw, 6]; None for `map_structure`.
        least: Least range of each map.
        limits: Least step of a colour and of edges, and the structure from which a picture is clear.

    Raises:
        BackendMissing, StoreError: As `library_or_none`.
    """
    kernel = library_or_none(load_kernel, kernel_path())
    if kernel is None:
        return None
    rows, cols = maps.shape[-2:]
    maps = maps.float().contiguous()
    rest = torch.empty(rows, cols)
    at = maps.data_ptr(), None if surfaces is None else surfaces.data_ptr(), least.data_ptr()
    return torch.tensor(_bound(kernel).maps_structure(rows, cols, *at, *limits, rest.data_ptr()))
