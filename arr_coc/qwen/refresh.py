"""When unchanged regions are encoded again, because what they attended to has changed since."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.errors import OptionError

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class IncrementalOptions:
    """What `encode="incremental"` keeps, and how it stays near the truth. Raises OptionError for values out of range.

    `every_frames`: all regions are encoded afresh every so many frames; None for never. `share`: of the unchanged
    regions, those that were encoded longest ago are encoded again with every frame. `drift_limit`: where the drift of
    these exceeds it, the next frame is encoded afresh; None for no limit. `memory_mb`: what the kept keys and values
    may take; a frame that alone needs more is encoded without being kept.
    """

    every_frames: int | None = 64
    share: float = 0.10
    drift_limit: float | None = 0.5
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


def all_due(options: IncrementalOptions, frames_since_all: int, drift: float | None) -> bool:
    """Whether a frame is encoded afresh, `frames_since_all` frames after the last that was."""
    if options.every_frames is not None and frames_since_all >= options.every_frames:
        return True
    return options.drift_limit is not None and drift is not None and drift > options.drift_limit


def longest_ago(encoded: npt.NDArray[np.int64], stale: Flags, share: float) -> Flags:
    """Which regions to encode again although nothing changed in them: bool [K].

    `encoded` int64 [K] is the frame in which each was encoded last, `stale` bool [K] those that are encoded anyway.
    A `share` of all, rounded up, and of equals the first: so every region that stays is met once in 1/share frames.
    """
    chosen = np.zeros(len(stale), bool)
    order = np.argsort(np.where(stale, np.iinfo(np.int64).max, encoded), kind="stable")
    count = min(math.ceil(share * len(stale)), int((~stale).sum()))
    chosen[order[:count]] = True
    return chosen
