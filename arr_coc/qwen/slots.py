"""Where the keys and values of each region lie: the shown ones in the first slots, those that left behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.errors import ShapeError
from arr_coc.qwen.refresh import Flags, Floats, Ints, Regions, unrest

EMPTY = -1
"""The name of no region."""

NEVER = -1
"""No frame."""

INDEX_BITS = 24
"""Bits of a region's name for its row and for its column."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the regions of one frame lie.

    `slots` int64 [K]: each region's slot, a permutation of 0 to K - 1. `stale` bool [K]: whose keys are not those of
    its pixels. `source`, `target` int64 [M]: slots whose contents move, all at once, before anything is written.
    """

    slots: Ints
    stale: Flags
    source: Ints
    target: Ints


class RegionSlots:
    """A bounded table of regions with the pixels that they showed.

    Attention runs over the first K slots as they lie, so nothing is gathered: what comes and goes is moved instead. Of
    the regions that left, those shown last stay as long as there is room.
    """

    def __init__(self, capacity: int, tile_shape: tuple[int, ...]) -> None:
        """`tile_shape` is that of one region's pixels."""
        self.pixels = np.zeros((capacity, *tile_shape), np.uint8)
        self._names: Ints = np.full(capacity, EMPTY, np.int64)
        self._shown: Ints = np.full(capacity, NEVER, np.int64)
        self._encoded: Ints = np.full(capacity, NEVER, np.int64)
        self._unsettled: Floats = np.zeros(capacity)

    @property
    def capacity(self) -> int:
        return len(self._names)

    @property
    def held(self) -> int:
        """Regions held, shown or not."""
        return int((self._names != EMPTY).sum())

    def place(self, regions: Regions, pixels: npt.NDArray[np.uint8], frame: int) -> Placement:
        """Makes room for the K regions that frame number `frame` shows, with their pixels; K up to `capacity`.

        Raises ShapeError, with everything as it was, for a region that is none or comes twice.
        """
        count = len(regions)
        names = _names(regions)
        at = self._find(names)
        known = np.flatnonzero(at != EMPTY)
        stale = np.ones(count, bool)
        stale[known] = (self.pixels[at[known]] != pixels[known]).any(axis=(1, 2, 3))

        stays = (at != EMPTY) & (at < count)
        slots = at.copy()
        slots[~stays] = _free(at[stays], 0, count)
        source, target, keep = self._leaving(at[known], count)
        comes = known[~stays[known]]
        source, target = np.concatenate([at[comes], source]), np.concatenate([slots[comes], target])
        for column in (self._names, self._shown, self._encoded, self._unsettled, self.pixels):
            column[target] = column[source]
        self._names[_free(np.concatenate([slots, keep]), 0, self.capacity)] = EMPTY
        self._names[slots] = names
        self._shown[slots] = frame
        self._encoded[slots[at == EMPTY]] = NEVER
        self.pixels[slots[stale]] = pixels[stale]
        return Placement(slots, stale, source, target)

    def encoded(self, slots: Ints) -> Ints:
        """The frames in which what lies in `slots` was encoded last."""
        return self._encoded[slots]

    def unsettle(self, changed: Regions) -> None:
        """Tells all regions held, shown or not, that `changed` [S, 3] have other keys from now on."""
        held = np.flatnonzero(self._names != EMPTY)
        self._unsettled[held] += unrest(_regions(self._names[held]), changed)

    def unsettled(self, slots: Ints) -> Floats:
        """How much has changed around what lies in `slots` since it was encoded; see `unrest`."""
        return self._unsettled[slots]

    def mark_encoded(self, slots: Ints, frame: int) -> None:
        """Says that `slots` were encoded with this frame."""
        self._encoded[slots] = frame
        self._unsettled[slots] = 0

    def _find(self, names: Ints) -> Ints:
        """The slot of each region, EMPTY for those that are not held."""
        order = np.argsort(self._names, kind="stable")
        place = np.minimum(np.searchsorted(self._names, names, sorter=order), self.capacity - 1)
        slots = order[place]
        return np.where(self._names[slots] == names, slots, EMPTY)

    def _leaving(self, shown: Ints, count: int) -> tuple[Ints, Ints, Ints]:
        """What is kept of regions that are not shown any more: which slots move where, and where all of it lies then.

        The slots from `count` on are theirs; `shown` are those that hold a region which is shown now.
        """
        left = self._names != EMPTY
        left[shown] = False
        others = np.flatnonzero(left)
        newest = others[np.argsort(-self._shown[others], kind="stable")][: self.capacity - count]
        behind, moving = newest[newest >= count], newest[newest < count]
        room = _free(behind, count, self.capacity)[: len(moving)]
        return moving, room, np.concatenate([behind, room])


def _free(taken: Ints, first: int, stop: int) -> Ints:
    """The slots from `first` to before `stop` that are not taken."""
    free = np.ones(stop, bool)
    free[taken] = False
    return first + np.flatnonzero(free[first:])


def _names(regions: Regions) -> Ints:
    """One number for each region (level, row, col), as `place` raises."""
    level, row, col = regions.astype(np.int64).T
    names = (level << 2 * INDEX_BITS) | (row << INDEX_BITS) | col
    if regions.min() < 0 or regions.max() >> INDEX_BITS or len(np.unique(names)) < len(names):
        raise ShapeError("a packet must name regions of the grid, each of them once")
    return names


def _regions(names: Ints) -> Regions:
    """The regions of their numbers."""
    last = (1 << INDEX_BITS) - 1
    return np.stack([names >> 2 * INDEX_BITS, names >> INDEX_BITS & last, names & last], axis=1).astype(np.int32)
