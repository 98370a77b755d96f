"""Sparse visual tokens in vLLM: vLLM's entry point of plugins.

vLLM loads it in every process. Importing it imports neither vLLM nor torch.
"""

from __future__ import annotations

import logging
import re

__version__ = "0.1.0"

VLLM_FROM, VLLM_BELOW = (0, 32), (0, 33)
"""Range of vLLM's versions, for which the golden test was run. Its model classes change with every minor version."""

MODELS = {
    "Qwen3VLForConditionalGeneration": "SparseQwen3VL",
    "Qwen3VLMoeForConditionalGeneration": "SparseQwen3VLMoe",
    "Qwen3_5ForConditionalGeneration": "SparseQwen35",
    "Qwen3_5MoeForConditionalGeneration": "SparseQwen35Moe",
}
"""Names that models' `config.json` give, and the classes that extend vLLM's by packets."""

log = logging.getLogger("vllm.arr_coc")


def unsupported(version: str) -> str:
    """Return the line that says which versions of vLLM work; empty for one of them."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and VLLM_FROM <= tuple(map(int, numbers.groups())) < VLLM_BELOW:
        return ""
    bounds = f">={'.'.join(map(str, VLLM_FROM))},<{'.'.join(map(str, VLLM_BELOW))}"
    return f"arr-coc-vllm {__version__} does not know vLLM {version}, so it reads no packets; install vllm{bounds}"


def register() -> None:
    """Register the classes under their stock names; with an unknown vLLM only log which versions work."""
    import vllm

    if line := unsupported(vllm.__version__):
        log.error(line)
        return
    for architecture, name in MODELS.items():
        vllm.ModelRegistry.register_model(architecture, f"arr_coc_vllm.models:{name}")
