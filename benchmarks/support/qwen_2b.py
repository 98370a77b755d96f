"""A model’s folder of Qwen3-VL-2B’s dimensions, random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from transformers import Qwen3VLForConditionalGeneration

from arr_coc.hub import bundled_model_path
from arr_coc.qwen.untrained import LANGUAGE_LAYERS, MARKS, VISION, VOCABULARY, qwen3_vl_config


def write_qwen3_vl_2b(folder: Path) -> None:
    """Write the whole model in bfloat16 (4.3 GB) as a folder that any program can load.

    The tokenizer is the bundled model's, with a text for every other token, so that each one is spoken; none ends an
    answer but the tokenizer's own.
    """
    bundled = bundled_model_path()
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        shutil.copy(bundled / name, folder / name)
    tokenizer = json.loads((bundled / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"t{index}": index for index in range(len(vocabulary), VOCABULARY)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    settings = json.loads((bundled / "preprocessor_config.json").read_text(encoding="utf-8"))
    settings["size"] = {"shortest_edge": 65536, "longest_edge": 16777216}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings), encoding="utf-8")
    source_config = json.loads((bundled / "config.json").read_text(encoding="utf-8"))
    config = qwen3_vl_config(VISION, LANGUAGE_LAYERS, {name: source_config[name] for name in MARKS})
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.save_pretrained(folder)
