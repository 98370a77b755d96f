"""Qwen3-VL-2B’s dimensions, random weights: in memory, and as a model’s folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from arr_coc.hub import bundled_model_path
from arr_coc.qwen.families import family_of
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.preprocess import PixelNormalisation, Preprocessing
from arr_coc.qwen.qwenvl import QwenVL

VISION_BLOCKS, LANGUAGE_LAYERS = 24, 28
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
"""The vision encoder's configuration."""

_MARKS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")


def qwen3_vl_2b(
    device: str, dtype: torch.dtype, vision_blocks: int = VISION_BLOCKS, language_layers: int = LANGUAGE_LAYERS
) -> QwenVL:
    """The model, or one of fewer blocks and layers; it speaks with the bundled model's tokenizer.

    Of fewer vision blocks those that feed the language model directly are the first ones.
    """
    fewer = {"depth": vision_blocks, "deepstack_visual_indexes": [0]}
    vision = VISION if vision_blocks == VISION_BLOCKS else VISION | fewer
    bundled = load_qwen(None, device="cpu")
    config = _config(vision, language_layers, {name: getattr(bundled.model.config, name) for name in _MARKS})
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


def write_qwen3_vl_2b(folder: Path) -> None:
    """Write the whole model in bfloat16 (4.3 GB) as a folder that any program can load.

    The tokenizer is the bundled model's, with a text for every other token, so that each one is spoken; none ends an
    answer but the tokenizer's own.
    """
    bundled = bundled_model_path()
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        shutil.copy(bundled / name, folder / name)
    tokenizer = json.loads((bundled / "tokenizer.json").read_text(encoding="utf-8"))
    known = tokenizer["model"]["vocab"]
    known |= {f"t{index}": index for index in range(len(known), VOCABULARY)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = json.loads((bundled / "preprocessor_config.json").read_text(encoding="utf-8"))
    settings["size"] = {"shortest_edge": 65536, "longest_edge": 16777216}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
    written = json.loads((bundled / "config.json").read_text(encoding="utf-8"))
    config = _config(VISION, LANGUAGE_LAYERS, {name: written[name] for name in _MARKS})
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)


def _config(vision: dict[str, Any], language_layers: int, marks: dict[str, int]) -> Qwen3VLConfig:
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
