"""The compiled kernel of channels, scores and maps over time, `kernels/scores.cpp`; without it, the reference does the
same in OpenCV, NumPy and torch."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from arr_coc.texture.kernels import library_or_none, load_library

VERSION = 4
"""Of the kernel's interface, as `scores_version` of kernels/scores.cpp has it."""


@cache
def kernel_path() -> Path:
    """Return the path of the compiled kernel, which may not exist."""
    return Path(__file__).with_name("scores.abi3.so")


@cache
def load_kernel(path: Path) -> ctypes.CDLL:
    """Return the compiled kernel. Raises as `load_library`."""
    kernel = load_library(path, "the compiled kernel of scores", "scores", VERSION)
    kernel.scores_channels.argtypes = (ctypes.c_void_p,)
    kernel.scores_picture.argtypes = (ctypes.c_void_p,) * 4
    kernel.scores_balance.argtypes = (ctypes.c_void_p,) * 5
    kernel.scores_channels.restype = kernel.scores_picture.restype = None
    return kernel


def kernel_or_none() -> ctypes.CDLL | None:
    """Return the compiled kernel, None if the reference is used. Raises as `library_or_none`."""
    return library_or_none(load_kernel, kernel_path())
