"""Precision in which a model runs on a CPU, and what its processor multiplies fast."""

from __future__ import annotations

from functools import cache

import torch

from arr_coc.qwen.memory_estimate import ModelSpec

LARGE_PARAMETERS = 500_000_000
"""From here on products of matrices take the time, and bfloat16 pays. Of Qwen3-VL-2B's size it encodes 4 times faster
than float32 and decodes 1.5 times faster on a processor with AMX; with AVX-512 BF16 alone (AMD EPYC), products of 244
rows are 2.7 times faster and those of one row 1.2 times. Of the bundled model's size it decodes slower."""


def dtype_on_cpu(facts: ModelSpec) -> str:
    """bfloat16 for a large model that is stored in half precision, where the processor multiplies bfloat16; else
    float32."""
    half = facts.checkpoint_bytes <= 2 * facts.parameters
    fast = half and facts.parameters >= LARGE_PARAMETERS and multiplies_bfloat16()
    return "bfloat16" if fast else "float32"


def multiplies_bfloat16() -> bool:
    """Return True if the processor multiplies bfloat16 itself: tiles of it (AMX), or vectors (AVX-512 BF16)."""
    return has_amx() or _supports("_is_avx512_bf16_supported")


def multiplies_int8() -> bool:
    """Return True if the processor adds up products of 8 bits in 32 (AVX-512 VNNI)."""
    return _supports("_is_vnni_supported")


@cache
def has_amx() -> bool:
    """Return True if the processor multiplies tiles of matrices."""
    return _supports("_is_amx_tile_supported")


def _supports(name: str) -> bool:
    """Return what torch reports under a private name about the processor; False if that name is gone."""
    supported = getattr(torch.cpu, name, None)
    return supported is not None and bool(supported())
