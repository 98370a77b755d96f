"""Model folder before it is loaded: family, configuration, tokenizer, free memory (imports no torch)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arr_coc.errors import ModelError, ModelNotFound
from arr_coc.hub import GGUF_REMEDY, bundled_model_path, cached_folder, local_folder
from arr_coc.qwen.checkpoint_decoding import GENERATION_FILE, CheckpointDecoding
from arr_coc.qwen.families import ModelFamily, family_of
from arr_coc.qwen.quantisation import MLX, check_quantisation, quantisation_of
from arr_coc.qwen.weight_files import TensorInfo, check_sizes, read_object, read_tensors, refuse_pointer

PROCESSOR_FILE = "processor_config.json"
IMAGE_PROCESSOR_FILE = "preprocessor_config.json"
"""File in which transformers 5 saves all processors of a model, and the older file of the image processor alone."""

ADAPTER_FILE = "adapter_config.json"
"""Description of an adapter, as peft writes it."""

TOKENIZER_FILES = (("tokenizer.json",), ("vocab.json", "merges.txt"))
"""Each of these sets is a whole tokenizer."""

TOKENIZER_SETTINGS = "tokenizer_config.json"

TOKENIZER_BYTES_MAX = 48 << 20
"""Largest tokenizer file that is parsed; Qwen's have 11 MB at most."""

TEMPLATE_BYTES_MAX = 1 << 20
"""Largest chat template that is parsed; Qwen's have 8 kB."""

IMAGE_TOKEN = "<|image_pad|>"
THINKING_MARKS = ("<think>", "</think>")
"""Texts of chat templates: place of a picture, and beginning and end of thoughts."""

THINKING_SWITCH = "enable_thinking"
"""Variable by which a chat template switches thoughts off, if it can."""

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
"""Files that may hold a chat template, in addition to `chat_template` in `tokenizer_config.json`."""

CGROUP = Path("/sys/fs/cgroup")

CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""A container's limit and use, in version 2 and version 1."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Contents of a model's folder: its family, `config.json`, the tensors of its weight files by name, and the method
    by which these were quantised, if any. `notices`: lines to show to the user."""

    family: ModelFamily
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    quantised: str | None
    notices: tuple[str, ...] = ()


def read_config(folder: Path) -> dict[str, Any]:
    """Read the folder's `config.json`. Raises ModelNotFound if it is missing, ModelError if it is no JSON object."""
    path = folder / "config.json"
    try:
        exists = path.is_file()
        empty = not exists and not any(folder.iterdir())
    except OSError as error:
        raise ModelError(f"the folder {folder} cannot be read ({error.strerror})", "check its permissions") from error
    if (folder / ADAPTER_FILE).is_file():
        base = read_object(folder / ADAPTER_FILE).get("base_model_name_or_path") or "another model"
        raise ModelError(
            f"{folder} holds an adapter (LoRA) of {base}, not a model",
            "merge it into that model with peft's merge_and_unload(), and give the folder of the result",
        )
    if exists:
        return read_object(path)
    snapshots = [path.parent for path in sorted(folder.glob("snapshots/*/config.json"))]
    if snapshots:
        name = folder.name.removeprefix("models--").replace("--", "/", 1)
        raise ModelNotFound(f"{folder} is a folder of the hub's cache", f"give the name {name}, or {snapshots[-1]}")
    if next(folder.glob("*.gguf"), None) is not None:
        size = sum(path.stat().st_size for path in folder.glob("*.gguf"))
        raise ModelNotFound(f"{folder} holds a GGUF file, which is not read ({size / 1e9:.1f} GB)", GGUF_REMEDY)
    problem = "is empty" if empty else "has no config.json"
    raise ModelNotFound(f"{folder} {problem}", "give the folder of a model, or a name on the hub")


def read_image_processor(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the file with the folder's image preprocessing, and its values; None if the folder has no such file.

    As in transformers, the section of `processor_config.json`, in which transformers 5 saves all processors of a model,
    takes precedence over `preprocessor_config.json`. Raises ModelError for a file that is no JSON object.
    """
    path = folder / PROCESSOR_FILE
    if path.is_file():
        section = read_object(path).get("image_processor")
    else:
        section = None
    if isinstance(section, dict):
        return path, section
    path = folder / IMAGE_PROCESSOR_FILE
    if path.is_file():
        return (path, read_object(path))
    return None


def check_folder(folder: Path, name: str, *, quantised: bool = False) -> Checkpoint:
    """Check that the folder of the model `name` is complete, and return its contents. Reads headers, no weights.
    `quantised`: accept weights that are quantised by any method.

    Raises ModelNotFound if config, weights, some shards or the tokenizer are missing, and ModelError for another
    architecture, damaged files, weights that `config.json` does not describe, and a method of quantisation whose
    package is not installed.
    """
    config = read_config(folder)
    family_of(config.get("model_type"), name)
    is_mlx = quantisation_of(config, folder) == MLX
    checkpoint = parse_checkpoint(config, read_tensors(folder, name, takes_mlx=is_mlx), name, folder)
    if not quantised:
        check_quantisation(checkpoint.quantised, name)
    _check_tokenizer(folder, name)
    return replace(checkpoint, notices=tuple(_notices(folder, name, checkpoint.family)))


def _notices(folder: Path, name: str, family: ModelFamily) -> Iterator[str]:
    if read_image_processor(folder) is None:
        yield f"no {PROCESSOR_FILE} or {IMAGE_PROCESSOR_FILE}, so the published preprocessing of {family.title} is used"
    template = chat_template(folder)
    if THINKING_MARKS[0] in template and THINKING_SWITCH not in template:
        yield "the model thinks before it answers; with answer.thinking = off its prompt ends the thoughts at once"
    if (folder / GENERATION_FILE).is_file():
        decoding = CheckpointDecoding.read(read_object(folder / GENERATION_FILE), name)
        if decoding.notice:
            yield decoding.notice


def parse_checkpoint(
    config: Mapping[str, Any], tensors: Mapping[str, TensorInfo], name: str, folder: Path | None = None
) -> Checkpoint:
    """Return the checkpoint of a configuration and tensors.

    Args:
        config: Contents of `config.json`.
        tensors: Tensors of the weight files, by name.
        name: Name of the model, for errors.
        folder: Folder of the model, in which the method of quantisation is looked up; None before the download.

    Raises:
        ModelError: Another architecture, or tensors that do not match the configuration.
    """
    family = family_of(config.get("model_type"), name)
    quantised = quantisation_of(config, folder)
    tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(family.ignored_prefixes)}
    if quantised is None:
        check_sizes(tensors, config, name)
    return Checkpoint(family, config, tensors, quantised)


def may_be_quantised(name: str | Path | None) -> bool:
    """Return True if the model `name` (None: the bundled one) is quantised, or is not on this machine yet."""
    try:
        folder = bundled_model_path() if name is None else local_folder(name) or cached_folder(str(name))
        return folder is None or quantisation_of(read_config(folder), folder) is not None
    except ModelError:  # loading reports it
        return False


def _check_tokenizer(folder: Path, name: str) -> None:
    """Raise ModelNotFound if tokenizer files are missing, ModelError if they are pointers or too large, and for a chat
    template that is missing or has no images."""
    if not any(all((folder / file).is_file() for file in files) for files in TOKENIZER_FILES):
        file_sets = " or ".join(" and ".join(files) for files in TOKENIZER_FILES)
        raise ModelNotFound(
            f"{name} has no tokenizer: {file_sets} must be in {folder}",
            "copy the tokenizer files from where the weights came from, or download the model again",
        )
    for file in (*(file for files in TOKENIZER_FILES for file in files), TOKENIZER_SETTINGS, *TEMPLATE_FILES):
        if (folder / file).is_file():
            refuse_pointer(folder / file)
            if file in TEMPLATE_FILES:
                limit = TEMPLATE_BYTES_MAX
            else:
                limit = TOKENIZER_BYTES_MAX
            if (size := (folder / file).stat().st_size) > limit:
                raise ModelError(
                    f"{file} of {name} has {size / 2**20:.0f} MiB, more than the {limit / 2**20:.0f} MiB that are read",
                    "take the tokenizer files of the published model",
                )
    template = chat_template(folder)
    if template and IMAGE_TOKEN not in template:
        raise ModelError(
            f"the chat template of {name} is for text only: it has no {IMAGE_TOKEN}",
            "take the chat template of a Qwen-VL model, or use an instruct version of the model",
        )
    if not template:
        raise ModelError(
            f"the tokenizer of {name} has no chat template: no {TEMPLATE_FILES[0]} in {folder}",
            "use an instruct version of the model, or download it again",
        )


def chat_template(folder: Path) -> str:
    """Return the text of the folder's chat template, the default one of several; empty if there is none."""
    path = folder / TEMPLATE_FILES[0]
    if path.is_file():
        return path.read_text("utf-8", errors="replace")
    for path in (folder / TOKENIZER_SETTINGS, folder / TEMPLATE_FILES[1]):
        if path.is_file():
            template = read_object(path).get("chat_template")
        else:
            template = None
        if isinstance(template, list):
            templates = {str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)}
            template = templates.get("default")
        if template:
            return str(template)
    return ""


def free_memory_bytes(cgroup: Path = CGROUP) -> int:
    """Return the free memory of the system, or of the container's limit if that is less."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, usage in CGROUP_FILES:
        try:
            remaining = int((cgroup / limit).read_text()) - int((cgroup / usage).read_text())
        except (OSError, ValueError):  # no container, or one without a limit
            continue
        free = min(free, max(remaining, 0))
    return free


WORD = re.compile(r"[^\W\d_]+")


def unseen_words(question: str, token_ids: Callable[[str], list[int]]) -> tuple[str, ...]:
    """Return the words of `question` that take several tokens, in their order, each once, in lower case.

    For a model whose tokenizer was built from its own small world, so that each word of that is one token. Words in
    capitals are read letter by letter ("is there a word STOP?") and count as seen. `token_ids` tokenizes a text.
    """
    words = [word.lower() for word in WORD.findall(question) if len(word) == 1 or not word.isupper()]
    return tuple(dict.fromkeys(word for word in words if len(token_ids(f" {word}")) > 1))


def folder_token_ids(folder: Path) -> Callable[[str], list[int]]:
    """Return a function that tokenizes text by a folder's `tokenizer.json`, without transformers."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)
