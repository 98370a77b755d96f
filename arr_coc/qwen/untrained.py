"""Models of published dimensions with random weights, to measure speed and memory without a download."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from arr_coc.qwen.families import family_of
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.preprocess import PixelNormalisation, Preprocessing
from arr_coc.qwen.qwenvl import QwenVL

VISION_BLOCKS = 24
LANGUAGE_LAYERS = 28
VOCABULARY = 151936
VISION = {
    "depth": VISION_BLOCKS,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "out_hidden_size": 2048,
    "num_position_embeddings": 2304,
    "deepstack_visual_indexes": [5, 11, 17],
}
"""Configuration of the vision encoder of Qwen3-VL-2B."""

MARKS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
"""Tokens that the configuration names."""


def qwen3_vl_2b(
    device: str | torch.device,
    dtype: torch.dtype,
    vision_blocks: int = VISION_BLOCKS,
    language_layers: int = LANGUAGE_LAYERS,
) -> QwenVL:
    """Return a model of Qwen3-VL-2B's dimensions with random weights and the bundled model's tokenizer.

    Args:
        device: Device of the model.
        dtype: Dtype of its weights.
        vision_blocks: Blocks of the vision encoder; with fewer than in Qwen3-VL-2B, only the first one feeds the
            language model directly.
        language_layers: Layers of the language model.
    """
    fewer = {"depth": vision_blocks, "deepstack_visual_indexes": [0]}
    if vision_blocks == VISION_BLOCKS:
        vision = VISION
    else:
        vision = VISION | fewer
    bundled = load_qwen(None, device="cpu")
    config = qwen3_vl_config(vision, language_layers, {name: getattr(bundled.model.config, name) for name in MARKS})
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3VLForConditionalGeneration(config).to(dtype).eval().requires_grad_(False)
    return replace(
        bundled,
        model=model,
        preprocessing=Preprocessing(16, PixelNormalisation(), 32 * 32, 4096 * 4096),
        model_id="Qwen3-VL-2B's dimensions, random weights",
        family=family_of("qwen3_vl", "qwen3_vl"),
        allocator=None,
    )


def qwen3_vl_config(vision: dict[str, Any], language_layers: int, marks: dict[str, int]) -> Qwen3VLConfig:
    """Return the configuration of Qwen3-VL-2B with this vision encoder, number of layers, and ids of `MARKS`."""
    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": language_layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5_000_000.0,
            "mrope_section": [24, 20, 20],
            "mrope_interleaved": True,
        },
    }
    return Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **marks)
