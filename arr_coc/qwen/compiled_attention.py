"""Attention in bfloat16 by a compiled kernel, `kernels/attention.cpp`, on processors with AMX; elsewhere it is torch's.

Scores and softmax are float32. One thread of a Xeon with AMX takes 0.5 of torch's time among 88 rows of 16 heads of 64
numbers, 0.42 among 244 or 952, and 0.3 among 3,600; both are off by 0.2 % of exact attention. The kernel keeps the keys
and values of one head for each thread.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from arr_coc.qwen.cpu_precision import has_amx
from arr_coc.texture.kernels import library_or_none, load_library

KEYS = 32
"""Attention over fewer keys is torch's, which then takes as long."""

VERSION = 1
"""Of the kernel's interface, as `attention_version` of kernels/attention.cpp has it."""


class KernelPart(ctypes.Structure):
    """`Part` of kernels/attention.cpp."""

    _fields_ = (
        ("numbers", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("count", "image", "row", "head")),
    )


class KernelAttention(ctypes.Structure):
    """`Attention` of kernels/attention.cpp."""

    _fields_ = (
        *((name, KernelPart) for name in ("query", "key", "value")),
        *((name, ctypes.c_int64) for name in ("images", "heads", "size")),
        ("scale", ctypes.c_float),
        ("out", ctypes.c_void_p),
    )


def kernel_path() -> Path:
    """Return the path of the compiled kernel, which may not exist."""
    return Path(__file__).with_name("attention_kernel.abi3.so")


def load_kernel(path: Path) -> ctypes.CDLL:
    """Return the compiled kernel. Raises as `load_library`."""
    kernel = load_library(path, "the compiled kernel of attention", "attention", VERSION)
    kernel.attention_rows.argtypes = (ctypes.c_void_p,)
    kernel.attention_rows.restype = None
    return kernel


def kernel_or_none() -> ctypes.CDLL | None:
    """Return the compiled kernel, None without it or AMX. Raises as `library_or_none`."""
    if not has_amx():
        return None
    kernel = library_or_none(load_kernel, kernel_path())
    return kernel if kernel is not None and kernel.attention_set() == b"AMX" else None


def kernel_for(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> ctypes.CDLL | None:
    """Return the compiled kernel if it attends for these rows: bfloat16 on a CPU, without gradients, KEYS or more
    keys. Raises as `library_or_none`."""
    if torch.is_grad_enabled() or key.shape[1] < KEYS:
        return None
    if any(part.dtype != torch.bfloat16 or part.device.type != "cpu" for part in (query, key, value)):
        return None
    return kernel_or_none()


def attend_by_tiles(kernel: ctypes.CDLL, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the attention of queries over all keys, in the shape of the queries; NaN in rows that read NaN.

    Args:
        kernel: The compiled kernel.
        query: bfloat16 [B, Q, heads, head_dim].
        key: bfloat16 [B, N, heads, head_dim], N at least 1.
        value: As `key`.
    """
    mixed = torch.empty(query.shape, dtype=torch.bfloat16)
    images, _, heads, size = query.shape
    # What is made contiguous has to live until the kernel returns.
    rows = [part if part.stride(3) == 1 else part.contiguous() for part in (query, key, value)]
    parts = [KernelPart(part.data_ptr(), part.shape[1], *part.stride()[:3]) for part in rows]
    kernel.attention_rows(ctypes.byref(KernelAttention(*parts, images, heads, size, size**-0.5, mixed.data_ptr())))
    return mixed
