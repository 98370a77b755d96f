"""In which dtype a model runs on the CPU where nothing else is asked for."""

from __future__ import annotations

import torch

from arr_coc.qwen.footprint import ModelFacts

LARGE_PARAMETERS = 500_000_000
"""From here on products of matrices take the time, and bfloat16 pays. Of Qwen3-VL-2B's size, on a processor with AMX,
it encodes 4 times faster and decodes 1.5 times faster than float32; of the bundled model's size it decodes slower."""


def dtype_on_cpu(facts: ModelFacts) -> str:
    """bfloat16 for a large model that is stored in half precision, where the processor multiplies bfloat16; else
    float32."""
    half = facts.checkpoint_bytes <= 2 * facts.parameters
    fast = half and facts.parameters >= LARGE_PARAMETERS and multiplies_bfloat16()
    return "bfloat16" if fast else "float32"


def multiplies_bfloat16() -> bool:
    """Whether the processor has AMX, which multiplies tiles of bfloat16; torch tells only under a private name."""
    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return supported is not None and bool(supported())
