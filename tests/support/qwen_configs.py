"""Configurations of the dense Qwen3-VL models as they are published, and their numbers of parameters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXTS: dict[str, dict[str, Any]] = {
    "2B": {"hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "intermediate_size": 6144},
    "4B": {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728},
    "8B": {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 12288},
}
SMALL_VISION = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]}
LARGE_VISION = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}


def qwen3_vl_config(size: str) -> dict[str, Any]:
    """The `config.json` of Qwen3-VL-2B, 4B or 8B, as far as memory depends on it."""
    text = {"num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 262144}
    return {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": size != "8B",
        "text_config": {**text, **TEXTS[size], "dtype": "bfloat16"},
        "vision_config": {**(LARGE_VISION if size == "8B" else SMALL_VISION), "patch_size": 16},
    }


def parameters_of(config: dict[str, Any]) -> int:
    """Parameters of a dense Qwen3-VL, counted by its architecture."""
    text, vision = config["text_config"], config["vision_config"]
    wide, heads = text["hidden_size"], text["num_attention_heads"] * text["head_dim"]
    keys = text["num_key_value_heads"] * text["head_dim"]
    layer = 2 * wide * heads + 2 * wide * keys + 2 * text["head_dim"] + 3 * wide * text["intermediate_size"] + 2 * wide
    embeddings = text["vocab_size"] * wide * (1 if config["tie_word_embeddings"] else 2)
    deep, inner = vision["hidden_size"], vision["intermediate_size"]
    block = 4 * deep * deep + 4 * deep + 2 * deep * inner + inner + deep + 4 * deep
    merger = 16 * deep * deep + 4 * deep + 4 * deep * wide + wide
    first = 3 * 2 * 16 * 16 * deep + deep + 2304 * deep
    mergers = 4 * merger + 2 * deep + 3 * 8 * deep
    return text["num_hidden_layers"] * layer + wide + embeddings + vision["depth"] * block + first + mergers


def write_index_folder(folder: Path, size: str) -> Path:
    """A model's folder before its weights are there: configuration and index."""
    folder.mkdir()
    config = qwen3_vl_config(size)
    total_bytes = 2 * parameters_of(config)
    index = {
        "metadata": {"total_size": total_bytes},
        "weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
