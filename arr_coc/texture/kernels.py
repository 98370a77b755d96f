"""Compiled kernels: loading one, and whether it or the reference is used.

A kernel is optional: without it, its module does the same, slower. `ARR_COC_KERNEL` in the environment, "compiled" or
"reference", fixes which it is.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.errors import BackendMissing, StoreError
from arr_coc.resources import CHECKOUT


def is_checkout(root: Path = CHECKOUT) -> bool:
    """Return True if the kernels of this program are built from sources beside it, not by pip."""
    return all((root / name).is_file() for name in ("setup.py", "kernels/tiles.cpp"))


def _remedy() -> str:
    """Return how the kernels are built: in a checkout, or anew with the installed package."""
    command = "pip install --force-reinstall --no-deps --no-cache-dir arr-coc-stream, or what it was installed from"
    if is_checkout():
        command = f"{Path(sys.prefix, 'bin', 'python')} setup.py build_ext --inplace (in {CHECKOUT})"
    return f"install a C++ compiler (Debian: apt-get install g++), then: {command}"


REMEDY = _remedy()

SETTING = "ARR_COC_KERNEL"

log = logging.getLogger(__name__)


def load_library(path: Path, kernel: str, prefix: str, version: int) -> ctypes.CDLL:
    """Return the library of a compiled kernel.

    Args:
        path: File of the library.
        kernel: Name of the kernel in messages.
        prefix: Prefix of its functions' names.
        version: Version that it must have.

    Raises:
        BackendMissing: It is missing, has another version, or cannot run on this processor.
    """
    if not path.is_file():
        raise BackendMissing(f"{kernel} was not built", REMEDY)
    try:
        library = ctypes.CDLL(str(path))
        instructions = getattr(library, f"{prefix}_set")
        instructions.restype = ctypes.c_char_p
        library_version = getattr(library, f"{prefix}_version")()
    except (OSError, AttributeError) as error:
        raise BackendMissing(f"{kernel} cannot be loaded ({error})", REMEDY) from error
    if library_version != version:
        raise BackendMissing(f"{kernel} has version {library_version}, not {version}", REMEDY)
    if instructions() is None:
        raise BackendMissing(f"{kernel} needs a processor with SSE 4.2 (x86-64-v2)")
    return library


def library_or_none(load: Callable[[Path], ctypes.CDLL], path: Path) -> ctypes.CDLL | None:
    """Return the library that `load` gives for `path`, None if the reference is used; this is logged once, for all
    kernels.

    Raises BackendMissing if the environment asks for the kernel and it cannot be had, StoreError if it asks for
    something else than the two.
    """
    return _library_or_none(load, path, os.environ.get(SETTING, ""))


@cache
def _library_or_none(load: Callable[[Path], ctypes.CDLL], path: Path, setting: str) -> ctypes.CDLL | None:
    if setting not in ("", "compiled", "reference"):
        raise StoreError(f"{SETTING} is compiled or reference, got {setting!r}; unset it")
    if setting == "reference":
        return None
    try:
        return load(path)
    except BackendMissing as error:
        if setting:
            raise
        if not _reported:  # once is enough
            _reported.append(str(error))
            log.warning("without its compiled kernels, a frame takes up to four times as long: %s", error)
        return None


_reported: list[str] = []


ARRAYS_MAX = 16
"""Arrays of one kind that a pool keeps. The oldest one leaves it if all of them are still referenced."""


class ArrayPool:
    """Arrays of one stream, each reused once it and its views are unreferenced; used by one thread.

    A frame then allocates nothing, and its arrays have addresses that need not be asked for.
    """

    def __init__(self) -> None:
        self._arrays: dict[tuple[tuple[int, ...], Any], list[npt.NDArray[Any]]] = {}
        self._addresses: dict[int, int] = {}

    def take(self, shape: tuple[int, ...], dtype: Any = np.float32) -> npt.NDArray[Any]:
        """Return an array whose contents are no longer needed."""
        arrays = self._arrays.get((shape, dtype))
        if arrays is None:
            arrays = self._arrays[shape, dtype] = []
        for array in arrays:
            if sys.getrefcount(array) == _POOL_REFERENCES:
                return array
        array = np.empty(shape, dtype)
        if len(arrays) == ARRAYS_MAX:
            del self._addresses[id(arrays.pop(0))]
        arrays.append(array)
        self._addresses[id(array)] = array.ctypes.data
        return array

    def copy(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy of an array among the pool's own."""
        duplicate = self.take(array.shape, array.dtype.type)
        np.copyto(duplicate, array)
        return duplicate

    def address(self, array: npt.NDArray[Any]) -> int:
        """Address of an array's first element, whether it is the pool's or not."""
        return self._addresses.get(id(array)) or array.ctypes.data


def _references_from_a_list() -> int:
    """References to an array that only a list holds, counted in a loop over it."""
    for array in [np.empty(0)]:
        count = sys.getrefcount(array)
    return count


_POOL_REFERENCES = _references_from_a_list()
