"""Conversion of loaded weights to another dtype, one after the other, so that memory never holds both forms of all.

safetensors maps its files, and pages that were read count as the process's memory until the file is unmapped, which is
after the last weight. Here the pages of each weight are given back once it is converted.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any

import torch

MAPS = Path("/proc/self/maps")
"""Mappings of this process, on Linux."""

_MADV_DONTNEED = 4
"""Linux: pages of a mapped file are dropped, and read again if they are ever needed."""


class MappedWeights:
    """Parts of this process's memory that are mapped from safetensors files; none on other systems than Linux."""

    def __init__(self) -> None:
        try:
            lines = MAPS.read_text("utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        ends = [line.split(maxsplit=1)[0].split("-") for line in lines if line.endswith(".safetensors")]
        self._ranges = [(int(begin, 16), int(end, 16)) for begin, end in ends]

    def convert(self, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return a copy of a weight in another dtype, and give back the pages of the weight itself."""
        converted = weight.to(dtype)
        self.release(weight)
        return converted

    def release(self, weight: torch.Tensor) -> None:
        """Give back the pages of a weight; they are read from the file again if they are needed."""
        begin = weight.data_ptr()
        end = weight.data_ptr() + weight.nbytes
        if weight.is_contiguous() and any(first <= begin and end <= last for first, last in self._ranges):
            begin = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            if (size := end // mmap.PAGESIZE * mmap.PAGESIZE - begin) > 0:
                ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_DONTNEED)


def trim_heap() -> None:
    """Give memory that was freed back to the system; glibc keeps it below what was allocated later."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    else:
        trim = None
    if trim is not None:
        trim(ctypes.c_size_t(0))


def convert_weights(model: Any, dtype: torch.dtype, exception: Any = None) -> None:
    """Convert the floating-point parameters of a model that was just loaded, the largest first.

    Args:
        model: The model.
        dtype: Dtype of its parameters afterwards.
        exception: Parameter that stays as it is, if any.
    """
    mapped = MappedWeights()
    for parameter in sorted(model.parameters(), key=lambda parameter: -parameter.nbytes):
        if parameter.is_floating_point() and parameter.dtype != dtype and parameter is not exception:
            parameter.data = mapped.convert(parameter.data, dtype)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config.dtype = dtype
