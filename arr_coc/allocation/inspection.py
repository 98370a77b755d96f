"""`AllocationMaps`: the inputs of a frame's allocation as maps, for displays and analysis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Map = npt.NDArray[np.float32]

SCORES = ("information", "perspective", "participation")
"""The three ways of knowing, in the order of `FrameAllocation.scores`."""


@dataclass(frozen=True, slots=True)
class AllocationMaps:
    """Maps of one frame in host memory, copies that nothing changes any more.

    `channels` float32 [C, gh, gw] of the texture's `profile`, as the scorers read them, and `entropy` float32 [gh, gw];
    `scores` float32 [3, gh, gw] by `SCORES` and their `weights` float32 [3]; `frame_relevance` float32 [gh, gw],
    of this frame alone, and `blended`, as it was chosen by. `prior` float32 [3, gh, gw] is the feedback of answers
    (attention, similarity, trust), None before the first one; `staleness` float32 [gh, gw] is the exploration map, None
    if nothing is explored.
    """

    profile: str
    channels: Map
    entropy: Map
    scores: Map
    weights: Map
    frame_relevance: Map
    blended: Map
    prior: Map | None = None
    staleness: Map | None = None
