"""When unchanged regions are encoded again, because what they attended to has changed since."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from arr_coc.ops.regions import token_positions
from arr_coc.qwen.options import IncrementalOptions

Regions = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

MOST = 0.75
"""Where more than this share of a frame is stale, all of it is encoded."""


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
    here, there = token_positions(regions), token_positions(changed)
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
