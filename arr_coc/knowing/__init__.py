"""Three ways of knowing by the names of the design: scores of tiles, and the texture array that they read.

They are those of `arr_coc.relevance`, which does the work, and are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arr_coc.knowing.scores import generate_texture_array, information_score, perspectival_score
    from arr_coc.relevance.knowing import InformationScorer, ParticipatoryScorer, PerspectivalScorer

__all__ = [
    "InformationScorer",
    "ParticipatoryScorer",
    "PerspectivalScorer",
    "generate_texture_array",
    "information_score",
    "perspectival_score",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("arr_coc.relevance.knowing" if "Scorer" in name else "arr_coc.knowing.scores"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
