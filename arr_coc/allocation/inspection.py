"""`AllocationMaps`: the inputs of a frame's allocation as maps, for displays and analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from arr_coc.types import FrameStamp

if TYPE_CHECKING:
    import torch

    from arr_coc.allocation.allocator import StreamAllocator

Map = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AllocationMaps:
    """Maps of one frame in host memory, copies that nothing changes any more.

    `channels` float32 [C, gh, gw] of the texture's `profile`, as the scorers read them, and `entropy` float32 [gh, gw];
    `scores` float32 [3, gh, gw] by `SCORES` and their `weights` float32 [3]; `frame_relevance` float32 [gh, gw],
    of this frame alone, and `blended`, as it was chosen by. `prior` float32 [3, gh, gw] is the feedback of answers
    (attention, similarity, trust), None before the first one; `staleness` float32 [gh, gw] is the exploration map, None
    if nothing is explored; `gaze` float32 [gh, gw], where a viewer looks, None with a trained allocator.
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
    gaze: Map | None = None


def inspect_newest(allocator: StreamAllocator, stamp: FrameStamp) -> AllocationMaps | None:
    """Return copies of the maps that a frame was allocated from, in host memory; None unless it is the newest."""
    frame = allocator.newest
    if frame is None or frame.maps is None or frame.stamp != stamp:
        return None
    maps = frame.maps
    staleness = frame.inputs.staleness

    def copied(map_of_tiles: torch.Tensor) -> Map:
        return map_of_tiles.cpu().numpy().copy()

    return AllocationMaps(
        profile=allocator.channels,
        channels=copied(maps.scored.channels),
        entropy=copied(maps.scored.entropy),
        scores=copied(frame.scores),
        weights=copied(frame.weights),
        frame_relevance=copied(maps.realised.relevance),
        blended=copied(frame.relevance),
        prior=None if maps.prior is None else copied(maps.prior),
        staleness=None if staleness is None else copied(staleness),
        gaze=None if maps.realised.gaze is None else copied(maps.realised.gaze),
    )
