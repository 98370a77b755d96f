"""The texture part as a library: mipmaps, foveated and anisotropic sampling, texture stores for video.

Names are loaded when they are first used, so that importing this package costs nothing and touches nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arr_coc.ops.backends import open_store
    from arr_coc.ops.store.base import TextureStore
    from arr_coc.ops.texturevlm.attention import hierarchical_attention, multiply_adds
    from arr_coc.ops.texturevlm.composite import Composite, foveate
    from arr_coc.ops.texturevlm.composite_layout import CompositePlacement
    from arr_coc.ops.texturevlm.foveated import FoveatedPatches, sample_foveated
    from arr_coc.ops.texturevlm.mipmaps import generate_mipmaps
    from arr_coc.ops.texturevlm.texture import Foveation, Texture
    from arr_coc.ops.texturevlm.video import VideoStream

__all__ = [
    "Composite",
    "CompositePlacement",
    "FoveatedPatches",
    "Foveation",
    "Texture",
    "TextureStore",
    "VideoStream",
    "foveate",
    "generate_mipmaps",
    "hierarchical_attention",
    "multiply_adds",
    "open_store",
    "sample_foveated",
]

_HOMES = {
    "Composite": "arr_coc.ops.texturevlm.composite",
    "FoveatedPatches": "arr_coc.ops.texturevlm.foveated",
    "Foveation": "arr_coc.ops.texturevlm.texture",
    "CompositePlacement": "arr_coc.ops.texturevlm.composite_layout",
    "Texture": "arr_coc.ops.texturevlm.texture",
    "TextureStore": "arr_coc.ops.store.base",
    "VideoStream": "arr_coc.ops.texturevlm.video",
    "foveate": "arr_coc.ops.texturevlm.composite",
    "generate_mipmaps": "arr_coc.ops.texturevlm.mipmaps",
    "hierarchical_attention": "arr_coc.ops.texturevlm.attention",
    "multiply_adds": "arr_coc.ops.texturevlm.attention",
    "open_store": "arr_coc.ops.backends",
    "sample_foveated": "arr_coc.ops.texturevlm.foveated",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
