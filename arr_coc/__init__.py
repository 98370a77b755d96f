"""ARR-COC: visual tokens of a Qwen-VL model, allocated by relevance to the question.

The public names below are loaded when they are first used, so that importing the package costs nothing. It sets one
variable of the environment, for this process and those that it starts: how threads of OpenMP wait.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arr_coc.allocation.allocator import StreamAllocator
    from arr_coc.allocation.attending import allocate
    from arr_coc.layer import ARRCOCLayer, ARRCOCOutput
    from arr_coc.model import ARRCOCQwen
    from arr_coc.video.stream import Stream

__all__ = ["ARRCOCLayer", "ARRCOCOutput", "ARRCOCQwen", "Stream", "StreamAllocator", "allocate"]

if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}:
    # torch's OpenMP reads it once, when torch is imported. Threads that spin while they wait make an answer several
    # times slower beside another busy process (benchmarks/busy.py).
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

_HOMES = {
    "ARRCOCLayer": "arr_coc.layer",
    "ARRCOCOutput": "arr_coc.layer",
    "ARRCOCQwen": "arr_coc.model",
    "Stream": "arr_coc.video.stream",
    "StreamAllocator": "arr_coc.allocation.allocator",
    "allocate": "arr_coc.allocation.attending",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
