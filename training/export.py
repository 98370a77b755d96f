"""Export of the bundled model as a folder that transformers loads: `python -m training.export RUN FOLDER`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.optim.swa_utils import AveragedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from arr_coc.errors import ModelError
from training.model.network import new_model
from training.model.tokenizer import scenes_tokenizer

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
    """Write `model` in bfloat16 (it stays as it is itself) and all that belongs to it, over an earlier export.

    Raises ModelError if the folder holds anything else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in _earlier_weights(folder):
        old.unlink(missing_ok=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder, max_shard_size=SHARD_SIZE)
    scenes_tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR, indent=2) + "\n", "utf-8")


def _earlier_weights(folder: Path) -> list[Path]:
    """The files of weights that an earlier export wrote. Raises ModelError if none wrote what the folder holds."""
    if not any(folder.iterdir()):
        return []
    try:
        exported = "arr_coc_world" in json.loads((folder / "config.json").read_text("utf-8"))
        index = folder / SAFE_WEIGHTS_INDEX_NAME
        shards = json.loads(index.read_text("utf-8"))["weight_map"].values() if index.exists() else []
    except (OSError, ValueError, AttributeError, KeyError) as error:
        raise ModelError(f"{folder} is not empty, and no export wrote it; name a new folder") from error
    if not exported:
        raise ModelError(f"{folder} holds another model; name a new folder")
    names = {SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, *(Path(shard).name for shard in shards)}
    return [folder / name for name in names]


def main(
    run: Annotated[Path, typer.Argument(help="Folder of a training run, with its checkpoint.")],
    folder: Annotated[Path, typer.Argument(help="Folder to write the model to.")],
) -> None:
    """Write the model of a training run's checkpoint."""
    recipe = run / "recipe.json"
    whole = recipe.exists() and json.loads(recipe.read_text("utf-8")).get("whole", False)
    mean = AveragedModel(new_model(seed=0, whole=whole))
    mean.load_state_dict(torch.load(run / "checkpoint.pt", weights_only=True, map_location="cpu")["mean"])
    try:
        export(mean.module, folder)
    except ModelError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    typer.run(main)
