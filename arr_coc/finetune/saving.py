"""Writing of a model's folder: weights, tokenizer, preprocessing and allocator, all or none."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from arr_coc.errors import ModelError
from arr_coc.hub import ALLOCATOR_FOLDER
from arr_coc.layer import ARRCOCLayer
from arr_coc.layer_weights import fingerprint
from arr_coc.qwen.checkpoint import PROCESSOR_FILE
from arr_coc.qwen.loading import quiet
from arr_coc.qwen.qwenvl import QwenVL

EARLIER_FILES = ("*.safetensors", "*.safetensors.index.json", PROCESSOR_FILE)
"""Files of an earlier model that would be read instead of, or in addition to, those of the saved one."""


def save_folder(qwen: QwenVL, allocator: ARRCOCLayer, folder: Path) -> None:
    """Write model and allocator into a folder that `load_qwen` reads; existing files are replaced at the end.

    The saved allocator names the weights that it is saved with. Raises ModelError if adapters of peft are not merged,
    if the weights have 8 or 4 bits, and if the folder cannot be written.
    """
    modules = [*qwen.model.modules(), *allocator.modules()]
    if any(type(module).__module__.startswith("peft.") for module in modules):
        raise ModelError(
            "the model has adapters of peft that are not merged",
            "call merge_and_unload() first, or save them alone with the PeftModel's save_pretrained",
        )
    if qwen.small is not None:
        raise ModelError(
            f"a model in {qwen.small} cannot be saved, as its weights are made when it is loaded",
            "load it in float32 or bfloat16",
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=folder.parent, prefix=f".{folder.name}-", ignore_cleanup_errors=True
        ) as part:
            _write(qwen, allocator, Path(part))
            folder.mkdir(exist_ok=True)
            _replace(Path(part), folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ModelError(
            f"the model cannot be saved to {folder} ({reason})", "name another folder, or make room"
        ) from error


def _write(qwen: QwenVL, allocator: ARRCOCLayer, folder: Path) -> None:
    with quiet():
        qwen.model.save_pretrained(folder)
        qwen.tokenizer.save_pretrained(folder)
    qwen.preprocessing.write(folder)
    config = allocator.config
    layer = ARRCOCLayer(replace(config, trained_for=fingerprint(qwen.model.get_input_embeddings().weight)))
    layer.realiser = allocator.realiser
    layer.save_pretrained(folder / ALLOCATOR_FOLDER)


def _replace(part: Path, folder: Path) -> None:
    """Move all files of `part` over those in `folder`, and remove weights and preprocessing of an earlier model."""
    paths = [path for path in part.rglob("*") if path.is_file()]
    names = {path.relative_to(part) for path in paths}
    for path in paths:
        target = folder / path.relative_to(part)
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)
    for stale in [path for file in EARLIER_FILES for path in folder.glob(file)]:
        if stale.relative_to(folder) not in names:
            stale.unlink()
