"""A model's folder exported for OpenVINO GenAI, with weights of 8 bits, by the packages of another Python.

`optimum-intel` reads models with transformers 4.57, which has other names in the configuration than later versions.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PACKAGES = "openvino-genai optimum-intel nncf torchvision 'transformers<4.58'"
"""What that Python needs."""


def export(python: str, model: Path, exported: Path) -> None:
    """Write the exported model (2.4 GB); takes one to two minutes and 9 GB of memory."""
    with tempfile.TemporaryDirectory() as temporary:
        write_older(model, Path(temporary))
        command = [python, "-m", "optimum.commands.optimum_cli", "export", "openvino", "-m", temporary]
        command += ["--task", "image-text-to-text", "--weight-format", "int8", str(exported)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not (exported / "openvino_language_model.bin").is_file():
        raise RuntimeError(f"the export failed; {python} needs pip install {PACKAGES}\n{process.stderr[-2000:]}")


def write_older(model: Path, folder: Path) -> None:
    """Write a Qwen3-VL model's folder as transformers 4.57 reads it, with links to its weights."""
    for path in model.iterdir():
        if path.suffix == ".safetensors":
            (folder / path.name).symlink_to(path.resolve())
        else:
            shutil.copy(path, folder)
    config = _read(model / "config.json")
    rope = config["text_config"].pop("rope_parameters")
    config["text_config"] |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    config["vision_config"].pop("rope_parameters", None)
    tokenizer = _read(model / "tokenizer_config.json")
    special = tokenizer.pop("extra_special_tokens", [])
    tokenizer |= {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": special}
    pictures = _read(model / "preprocessor_config.json")
    video = {**pictures, "video_processor_type": "Qwen3VLVideoProcessor"}
    video.pop("image_processor_type", None)
    configs = {"tokenizer_config": tokenizer, "preprocessor_config": pictures, "video_preprocessor_config": video}
    for name, values in ({"config": config} | configs).items():
        text = json.dumps(values if name == "config" else values | {"processor_class": "Qwen3VLProcessor"})
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values
