"""Cache of weights in 8 or 4 bits beside the checkpoint that they were made from, so that they are made once.

The folder `arr_coc_weights/int8` or `…/int4` of a model's folder holds safetensors files with all tensors of the small
model, and `cache.json`: what they were made from, and the size and XXH3 of each file. The files are mapped. Weights in
the order of the compiled kernel, or of torch's for 4 bits, embeddings and all that is in floating point are used in
place, so that processes share their memory; weights of 8 bits that oneDNN or FBGEMM multiplies are packed as they are
loaded, layer by layer.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from arr_coc.errors import ModelError
from arr_coc.qwen.convert_dtype import MappedWeights, trim_heap
from arr_coc.qwen.direct_load import empty_model, read_transformers_config
from arr_coc.qwen.quantisation import SmallDtype
from arr_coc.qwen.small_weights.layers import (
    GROUP,
    STORED_NAMES,
    SmallLinear,
    linear_layers,
    packing_format,
    small_linear,
    use_float_rows,
)
from arr_coc.qwen.weight_files import read_object, weight_files

FOLDER = "arr_coc_weights"
"""Sub-folder of a model's folder."""

DESCRIPTION = "cache.json"

VERSION = 2
"""Of the layout of the files. A cache of another version is made again."""

SHARD_BYTES = 256 << 20
"""Largest size of a file with several tensors. While files are written, memory holds so much more."""

HASHED_BYTES = 32 << 20
"""Bytes of a file that are hashed at once."""

ALIGNED_BYTES = 64
"""Of a line of the processor's cache. Products of one row take a tenth longer if vectors of weights lie in two."""

_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, SafetensorError)
"""Exceptions of reading files whose contents are not those that were written."""


class WeightCache:
    """Small weights of the model in `folder`. `notices`: lines to show to the user."""

    def __init__(self, folder: Path, dtype: SmallDtype) -> None:
        self.folder = folder / FOLDER / dtype
        self.notices: list[str] = []
        self._model_folder = folder
        self._dtype = dtype

    def load(self) -> Any | None:
        """Return the model with the cached weights; None, with a notice if there is a cache, if they cannot be used."""
        if self._link() is not None:
            return None  # `save` says so
        try:
            if not (self.folder / DESCRIPTION).is_file():
                return None
            described = read_object(self.folder / DESCRIPTION)
            if described.get("made_from") == self._sources():
                return self._read(described["files"])
            problem = "were made from other files or by another version"
        except _DAMAGED:
            problem = "are damaged"
        self.notices.append(f"the {self._dtype} weights in {self.folder} {problem}, and are made again")
        return None

    def save(self, model: Any) -> None:
        """Write the weights of a model that `shrink_weights` has just reduced. If the folder cannot be written, a
        notice says so."""
        if (link := self._link()) is not None:
            self.notices.append(
                f"the {self._dtype} weights are not cached: {link} is a link, and nothing outside "
                f"{self._model_folder} is written or removed; remove the link"
            )
            return
        temporary = self.folder.with_name(f"{self.folder.name}.{os.getpid()}")
        try:
            import psutil

            # processes that ended while they were writing left these
            for unfinished in self.folder.parent.glob(f"{self.folder.name}.*"):
                pid = unfinished.name.rpartition(".")[2]
                if pid.isdecimal() and not psutil.pid_exists(int(pid)):
                    shutil.rmtree(unfinished, ignore_errors=True)
            temporary.mkdir(parents=True)
            files = {}
            for number, tensors in enumerate(_shards(model), 1):
                path = temporary / f"weights-{number:05}.safetensors"
                save_file(tensors, path, {"padding": ""})
                with path.open("rb") as file:
                    begin = 8 + int.from_bytes(file.read(8), "little")
                # the first tensor is aligned, and so are the others if sizes are multiples of ALIGNED_BYTES
                if missing := -begin % ALIGNED_BYTES:
                    save_file(tensors, path, {"padding": " " * missing})
                files[path.name] = {"bytes": path.stat().st_size, "xxh3": _hash(path)}
            description = {"made_from": self._sources(), "files": files}
            (temporary / DESCRIPTION).write_text(json.dumps(description, indent=1), encoding="utf-8")
            if self.folder.exists():
                shutil.rmtree(self.folder)
            temporary.rename(self.folder)
        except (OSError, SafetensorError, ModelError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.notices.append(f"the {self._dtype} weights cannot be cached in {self.folder} ({reason})")
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def _link(self) -> Path | None:
        """Return the cache's folder, or the one that holds it, if it is a link."""
        return next((path for path in (self.folder.parent, self.folder) if path.is_symlink()), None)

    def _sources(self) -> dict[str, Any]:
        """Return what the weights depend on: files by size and time, and what they are packed for."""
        files = [self._model_folder / "config.json", *weight_files(self._model_folder, self._model_folder.name)]
        stats = {path.name: path.stat() for path in files}
        return {
            "version": VERSION,
            "transformers": transformers.__version__,
            "group": GROUP,
            "packing": packing_format(),
            "files": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()},
        }

    def _read(self, files: dict[str, Any]) -> Any:
        """Return the model. Raises one of `_DAMAGED` if the files are not as they were written."""
        tensors: dict[str, torch.Tensor] = {}
        for name, expected in files.items():
            path = self.folder / Path(name).name
            if {"bytes": path.stat().st_size, "xxh3": _hash(path)} != expected:
                raise ValueError(f"{name} was changed")
            tensors |= load_file(path)
        mapped = MappedWeights()
        model = empty_model(self._model_folder, read_transformers_config(self._model_folder), torch.float32)
        linears = linear_layers(model)
        for name in sorted(linears, key=lambda name: -linears[name].weight.numel()):
            linear = linears.pop(name)
            layer_tensors = {key: tensors.pop(f"{name}.{key}") for key in STORED_NAMES if f"{name}.{key}" in tensors}
            model.set_submodule(name, small_linear(name, linear, self._dtype, layer_tensors))
            if "codes" in layer_tensors:
                mapped.release(layer_tensors["codes"])
        model.load_state_dict(tensors, assign=True)
        use_float_rows(model.get_input_embeddings())
        trim_heap()
        return model.eval().requires_grad_(False)


def _shards(model: Any) -> Iterator[dict[str, torch.Tensor]]:
    """Yield all tensors of a small model, in parts of at most SHARD_BYTES or one tensor."""
    mapped = MappedWeights()
    shard = dict[str, torch.Tensor]()
    for name, tensor in _tensors(model):
        if shard and sum(part.nbytes for part in (*shard.values(), tensor)) > SHARD_BYTES:
            yield shard
            for part in shard.values():
                mapped.release(part)
            shard = {}
        shard[name] = tensor.contiguous()
    yield shard


def _tensors(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.state_dict().items()
    for name, module in model.named_modules():
        if isinstance(module, SmallLinear):
            yield from ((f"{name}.{key}", tensor) for key, tensor in module.export_tensors().items())


def _hash(path: Path) -> str:
    """Return the XXH3 of a file, which stays out of the process's memory. A link is refused."""
    if path.is_symlink():
        raise ValueError(f"{path.name} is a link")
    values = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    mapped = MappedWeights()
    state = xxhash.xxh3_128()
    for part in values.split(HASHED_BYTES):
        state.update(part.numpy())
        mapped.release(part)
    return str(state.hexdigest())
