"""The texture part as a library: mipmaps, foveated and anisotropic sampling, texture stores for video.

Names are loaded when they are first used, so that importing this package costs nothing and touches nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arr_coc.backends.registry import open_store
    from arr_coc.ops.attention import hierarchical_attention, multiply_adds
    from arr_coc.ops.composite import Composite, foveate
    from arr_coc.ops.composite_layout import CompositePlacement
    from arr_coc.ops.foveated import FoveatedPatches, sample_foveated
    from arr_coc.ops.mipmaps import generate_mipmaps
    from arr_coc.ops.texture import Foveation, Texture
    from arr_coc.ops.video import VideoStream
    from arr_coc.texture.store.base import TextureStore

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
    "Composite": "arr_coc.ops.composite",
    "FoveatedPatches": "arr_coc.ops.foveated",
    "Foveation": "arr_coc.ops.texture",
    "CompositePlacement": "arr_coc.ops.composite_layout",
    "Texture": "arr_coc.ops.texture",
    "TextureStore": "arr_coc.texture.store.base",
    "VideoStream": "arr_coc.ops.video",
    "foveate": "arr_coc.ops.composite",
    "generate_mipmaps": "arr_coc.ops.mipmaps",
    "hierarchical_attention": "arr_coc.ops.attention",
    "multiply_adds": "arr_coc.ops.attention",
    "open_store": "arr_coc.backends.registry",
    "sample_foveated": "arr_coc.ops.foveated",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
