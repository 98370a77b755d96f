"""Textures for vision-language models: mipmaps, foveated sampling, video, hierarchical attention.

The names of the texture library, `arr_coc.ops`, under which it was first sketched, and the calls of that sketch. They
are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arr_coc.ops.foveated import FoveatedPatches, sample_foveated
    from arr_coc.ops.mipmaps import generate_mipmaps
    from arr_coc.ops.video import VideoStream
    from arr_coc.texturevlm.sketch import SpatialTexture, Texture, TexturePyramid, hierarchical_attention

__all__ = [
    "FoveatedPatches",
    "SpatialTexture",
    "Texture",
    "TexturePyramid",
    "VideoStream",
    "generate_mipmaps",
    "hierarchical_attention",
    "sample_foveated",
]

_OF_OPS = {"FoveatedPatches", "VideoStream", "generate_mipmaps", "sample_foveated"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("arr_coc.ops" if name in _OF_OPS else "arr_coc.texturevlm.sketch"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
