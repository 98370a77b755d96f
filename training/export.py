"""Writes the bundled model as a folder that transformers loads: `python -m training.export RUN FOLDER`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from training.network import Learner, new_model
from training.tokenizer import scenes_tokenizer

SHARD_SIZE = "15MB"

PREPROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "size": {"shortest_edge": 32 * 32, "longest_edge": 1920 * 1088},
}


def export(model: Any, folder: Path) -> None:
    """Writes `model` in bfloat16 (it stays as it is itself) and all that belongs to it, over what the folder holds."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder, max_shard_size=SHARD_SIZE)
    scenes_tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n", "utf-8")


def main(
    run: Annotated[Path, typer.Argument(help="Folder of a training run, with its checkpoint.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write the model to.")],
) -> None:
    """Write the model of a training run's checkpoint."""
    learner = Learner(new_model(seed=0))
    learner.load_state_dict(torch.load(run / "checkpoint.pt", weights_only=True)["learner"])
    export(learner.model, folder)


if __name__ == "__main__":
    typer.run(main)
