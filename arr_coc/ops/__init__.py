"""The texture part as a library: mipmaps, foveated and anisotropic sampling, texture stores for video.

Names are loaded when they are first used, so that importing this package costs nothing and touches nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from arr_coc.ops.backends import open_store
    from arr_coc.ops.composite import Composite, foveate
    from arr_coc.ops.foveation import Foveation
    from arr_coc.ops.hierarchical import hierarchical_attention, multiply_adds
    from arr_coc.ops.layout import Placement
    from arr_coc.ops.mipmap_tensor import generate_mipmaps
    from arr_coc.ops.store import TextureStore
    from arr_coc.ops.texture import Texture
    from arr_coc.ops.video import VideoStream

__all__ = [
    "Composite",
    "Foveation",
    "Placement",
    "Texture",
    "TextureStore",
    "VideoStream",
    "foveate",
    "generate_mipmaps",
    "hierarchical_attention",
    "multiply_adds",
    "open_store",
]

_HOMES = {
    "Composite": "arr_coc.ops.composite",
    "Foveation": "arr_coc.ops.foveation",
    "Placement": "arr_coc.ops.layout",
    "Texture": "arr_coc.ops.texture",
    "TextureStore": "arr_coc.ops.store",
    "VideoStream": "arr_coc.ops.video",
    "foveate": "arr_coc.ops.composite",
    "generate_mipmaps": "arr_coc.ops.mipmap_tensor",
    "hierarchical_attention": "arr_coc.ops.hierarchical",
    "multiply_adds": "arr_coc.ops.hierarchical",
    "open_store": "arr_coc.ops.backends",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
