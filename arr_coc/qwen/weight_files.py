"""The safetensors files of a model: which of them hold its weights, whether they are whole, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from arr_coc.bounded_json import read_json
from arr_coc.errors import ModelError, ModelNotFound, counted, of_counted
from arr_coc.hub import GGUF_REMEDY

if TYPE_CHECKING:
    import torch

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

EMBEDDINGS = "embed_tokens.weight"
"""End of the name of the table of input embeddings."""

LFS_POINTER = b"version https://git-lfs."
"""First bytes of the file that git leaves in place of a large one (Git LFS specification)."""

_NUMBERED = re.compile(r"(?:^|\.)(layers|blocks)\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a weight file: `dtype` as safetensors names it, such as BF16."""

    shape: tuple[int, ...]
    dtype: str


def refuse_pointer(path: Path) -> None:
    """Raise ModelError if the file is a Git LFS pointer, which stands for the real file."""
    with path.open("rb") as file:
        begins = file.read(len(LFS_POINTER))
    if begins == LFS_POINTER:
        raise ModelError(
            f"{path} is a Git LFS pointer and not the file itself",
            "run git lfs pull there, or download the model again",
        )


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises ModelError that says what is there instead, also of one beyond the
    limits of `bounded_json`."""
    try:
        refuse_pointer(path)
        values = read_json(path)
    except ValueError as error:
        raise ModelError(f"{path} is not usable JSON ({error})", "download the model again") from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror})", "check its permissions") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds no JSON object", "download the model again")
    return values


def weight_files(folder: Path, name: str) -> list[Path]:
    """Return the files that hold the weights, as transformers chooses them: one file, or what the index lists.

    Raises ModelNotFound if they are missing, ModelError if the index cannot be used.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        remedy = "download the model again"
        if any(folder.glob("pytorch_model*.bin")):
            remedy = "convert its pytorch_model.bin to safetensors"
        elif any(folder.glob("*.gguf")):
            remedy = f"a GGUF file is not read: {GGUF_REMEDY}"
        raise ModelNotFound(f"{name} has no weights: no {WEIGHTS} in {folder}", remedy)
    weight_map = read_object(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{INDEX} of {name} lists no weight files", "download the model again")
    shards = sorted({str(shard) for shard in weight_map.values()})
    strange = [shard for shard in shards if Path(shard).name != shard]
    if strange:
        raise ModelError(f"{INDEX} of {name} lists {strange[0]!r}, which is no file of the folder", "download it again")
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        ellipsis = "" if len(missing) <= 3 else ", …"
        raise ModelNotFound(
            f"{name} lacks {of_counted(len(missing), len(shards), 'weight file')} ({', '.join(missing[:3])}{ellipsis})",
            "download the model again",
        )
    return [folder / shard for shard in shards]


def read_tensors(folder: Path, name: str, *, takes_mlx: bool = False) -> dict[str, TensorInfo]:
    """Return all tensors of a model by name, from the headers of its weight files; with `takes_mlx` also of those of
    MLX.

    Raises ModelNotFound and ModelError as `weight_files`, and ModelError for a file that is damaged, cut short or a
    Git LFS pointer, and for tensors that the index lists and no file holds.
    """
    tensors: dict[str, TensorInfo] = {}
    for path in weight_files(folder, name):
        tensors |= _header(path, name, takes_mlx=takes_mlx)
    if not (folder / WEIGHTS).is_file():
        missing = sorted(read_object(folder / INDEX)["weight_map"].keys() - tensors.keys())
        if missing:
            raise ModelError(
                f"{INDEX} of {name} lists {counted(len(missing), 'weight')} that no file holds, such as {missing[0]}",
                "download the model again",
            )
    return tensors


def read_embeddings(folder: Path, name: str) -> torch.Tensor:
    """Return the input embeddings [vocabulary, D] of a model, in their dtype, mapped from its weight files.

    Raises as `read_tensors`, and ModelError for a model without such a table.
    """
    for path in weight_files(folder, name):
        tensors = _header(path, name, takes_mlx=False)
        for key in tensors:
            if key.endswith(EMBEDDINGS):
                with safe_open(path, framework="pt") as file:
                    table: torch.Tensor = file.get_tensor(key)
                return table
    raise ModelError(f"the weights of {name} have no {EMBEDDINGS}", "download the model again")


def _header(path: Path, name: str, *, takes_mlx: bool) -> dict[str, TensorInfo]:
    """Return the tensors of one safetensors file, which is checked to be whole."""
    try:
        refuse_pointer(path)
        with safe_open(path, framework="np") as file:
            if not takes_mlx and (file.metadata() or {}).get("format") == "mlx":
                raise ModelError(
                    f"{path.name} of {name} has the layout of MLX", "take the model that was not converted to MLX"
                )
            entries = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118
            return {key: TensorInfo(tuple(entry.get_shape()), entry.get_dtype()) for key, entry in entries.items()}
    except SafetensorError as error:
        raise ModelError(
            f"{path.name} of {name} is damaged or cut short ({error})", "download the model again"
        ) from error
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror})", "check its permissions") from error


def check_sizes(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any], name: str) -> None:
    """Raise ModelError if the weights have other sizes than `config.json` says: layers, width, vocabulary, patches.

    These are checked before gigabytes are read; other differences are reported when the weights are loaded.
    """
    differences = [
        label.format(actual) + f", not {configured}"
        for label, actual, configured in _sizes(tensors, config)
        if actual is not None and isinstance(configured, int) and actual != configured
    ]
    if differences:
        raise ModelError(
            f"the weights of {name} are not those that its config.json describes (they have {', '.join(differences)})",
            "take both from the same model",
        )


def _sizes(tensors: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> list[tuple[str, int | None, Any]]:
    """(what it is, as the weights have it, as the configuration says) of each size that can be read from both."""
    text = config.get("text_config") or config
    vision = config.get("vision_config") or {}
    if not isinstance(text, dict) or not isinstance(vision, dict):
        return []
    embedding = _shape_of(tensors, EMBEDDINGS, 2)
    patches = _shape_of(tensors, "patch_embed.proj.weight", 5)
    return [
        ("a vocabulary of {}", embedding[0], text.get("vocab_size")),
        ("a width of {}", embedding[1], text.get("hidden_size")),
        ("{} text layers", _count(tensors, "layers"), text.get("num_hidden_layers")),
        ("a vision width of {}", patches[0], vision.get("embed_dim") or vision.get("hidden_size")),
        ("{} vision layers", _count(tensors, "blocks"), vision.get("depth")),
        ("patches of {} pixels a side", patches[-1], vision.get("patch_size")),
    ]


def _shape_of(tensors: Mapping[str, TensorInfo], ending: str, axes: int) -> tuple[int | None, ...]:
    """Return the shape of the tensor whose name has this ending; None for each axis if no tensor has it in this
    form."""
    shapes = (
        tensor.shape
        for key, tensor in tensors.items()
        if key.endswith(f".{ending}") and len(tensor.shape) == axes  # packed weights of quantised models differ
    )
    return next(shapes, (None,) * axes)


def _count(tensors: Mapping[str, TensorInfo], kind: str) -> int | None:
    """Return the number of `layers` or `blocks`; None if no name has a number."""
    numbers = {int(match[2]) for key in tensors if (match := _NUMBERED.search(key)) and match[1] == kind}
    return len(numbers) or None
