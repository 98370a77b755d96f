"""Pictures as tiles on mipmap levels: stores that follow a stream's frames, regions, covers and compiled kernels."""

from importlib import import_module


def __getattr__(name: str) -> object:
    """Load `generate_texture_array`, which the design has here, from `arr_coc.knowing`."""
    if name != "generate_texture_array":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("arr_coc.knowing"), name)
