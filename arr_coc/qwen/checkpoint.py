"""A model folder before it is loaded: whether it holds a model that the adapter serves, and all of its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from arr_coc.errors import ModelError, ModelNotFound
from arr_coc.qwen.families import Family, family_of

INDEX = "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's `config.json`. Raises ModelNotFound where there is none, ModelError where it is no JSON object."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelNotFound(f"{folder} has no config.json; give the folder of a model, or a name on the hub")
    return _read_object(path)


def check_folder(folder: Path, name: str) -> Family:
    """The family of the model in `folder`, once its weights are known to be there.

    Raises ModelNotFound where config, weights or some shards are missing, ModelError for another architecture.
    """
    family = family_of(read_config(folder).get("model_type"), name)
    index = folder / INDEX
    if index.is_file():
        shards = {str(shard) for shard in _read_object(index).get("weight_map", {}).values()}
        missing = sorted(shard for shard in shards if not (folder / shard).is_file())
        if missing or not shards:
            raise ModelNotFound(
                f"{name} lacks {len(missing)} of its {len(shards)} weight files ({', '.join(missing[:3])}); "
                "download the model again"
            )
    elif not (folder / "model.safetensors").is_file():
        pickles = any(folder.glob("pytorch_model*.bin"))
        remedy = "convert its pytorch_model.bin to safetensors" if pickles else "download the model again"
        raise ModelNotFound(f"{name} has no weights: no model.safetensors in {folder}; {remedy}")
    return family


def _read_object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error}); download the model again") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds no JSON object; download the model again")
    return values
