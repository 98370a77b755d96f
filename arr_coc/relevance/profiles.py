"""Profiles of channels: their names, how many channels each has, and which are which."""

from __future__ import annotations

from functools import cache
from typing import Literal, get_args

import numpy as np

from arr_coc.errors import ProfileError
from arr_coc.types import EMBEDDING_COMPONENTS, TILE_PX

Profile = Literal["core13", "full40", "full40+text"]
PROFILES: tuple[str, ...] = get_args(Profile)
TEXT_PROFILE: Profile = "full40+text"

CORE = 13
FULL = 40

RGB = slice(0, 3)
EDGES = slice(5, 8)
GRADIENTS = slice(5, 7)
SALIENCY = slice(8, 11)
"""Of `core13`, as EDGES and GRADIENTS; colours stand in the same place in all profiles."""

FULL_SALIENCY = slice(11, 12)
MAGNITUDE = slice(6, 7)
"""Of `full40`."""

LUMA_SIDE = TILE_PX >> 1
"""Texels of level 1 on a tile's side."""

CLUSTER_START = np.array([[64, 64, 64], [192, 192, 192], [192, 104, 64], [64, 104, 192]], np.float32)
CLUSTER_STEPS = 4


_COMMON_NAMES = ("red", "green", "blue", "row", "column")

CORE_NAMES = (
    *_COMMON_NAMES,
    *("gradient across", "gradient down", "edges"),
    *("saliency of intensity", "saliency of red-green", "saliency of blue-yellow"),
    *("colour variance", "distance to clusters"),
)
FULL_NAMES = (
    *_COMMON_NAMES,
    *("eccentricity", "edges", "smoothness", "Laplacian", "low-pass", "motion", "saliency", "distance to edges"),
    *("cluster border", "cluster size", "cluster contrast", "text"),
    *(f"embedding {number}" for number in range(1, EMBEDDING_COMPONENTS + 1)),
    *("resemblance to the question", "relevance before", "confidence of that", "time unchanged"),
    *("attention of the last answer", "mean attention", "trust in attention"),
)
"""Names of the channels, in their order."""

SIGNED_NAMES = frozenset({"gradient across", "gradient down", "resemblance to the question", *FULL_NAMES[17:33]})
"""Channels in [-1, 1]; the others are in [0, 1]."""


def channel_names(profile: str) -> tuple[str, ...]:
    """Return the names of a profile's channels, in their order. Raises ProfileError if it does not exist."""
    if channel_count(profile) == CORE:
        return CORE_NAMES
    return FULL_NAMES


@cache
def channel_count(profile: str) -> int:
    """Return the number of channels of a profile. Raises ProfileError if it does not exist."""
    if profile not in PROFILES:
        raise ProfileError(f"unknown texture profile {profile!r}; there are {', '.join(PROFILES)}")
    return CORE if profile == "core13" else FULL
