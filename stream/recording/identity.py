"""Fingerprints of a run and of a model, and the provenance of answers: the data that determine answers.

The answer stage sends its provenance with its greeting, because it may run on another machine with other settings. A
recording stores it, and a replay answers with it.

Files are identified by their size and by samples of their content, not by their time: a copy is the same file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import msgspec

from arr_coc.errors import ModelNotFound, counted
from arr_coc.hub import (
    ALLOCATOR_FILES,
    ALLOCATOR_FOLDER,
    WANTED_FILES,
    allocator_folder,
    bundled_model_path,
    cached_folder,
    local_folder,
)
from stream.config import Config
from stream.untrusted import replace_surrogates

SCENE_PREFIX = "scene:"

LEROBOT_PREFIX = "lerobot:"

SAMPLE_BYTES = 1 << 20
SAMPLES = 16
"""Number of samples of a large file; a file of at most this many samples is read whole."""

UNKNOWN = "unknown"
"""Fingerprint of model files that are not on this machine or cannot be read."""

WITHOUT_EFFECT = (
    "source",
    "capture.headers.",
    "answer.model",
    "answer.allocator",
    "answer.server_choice",
    "answer.cache_weights",
    "output.",
    "network.",
    "texture.backend",
    "pipeline.restart",
    "pipeline.restart_limit",
    "pipeline.heartbeat_s",
    "pipeline.timeout_s",
)
"""Keys that change no answer about a file, or are compared by the files that they name."""


ANSWER_KEYS = {
    "system",
    "thinking",
    "encode",
    "incremental",
    "memory",
    "max_tokens",
    "temperature",
    "decoding",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "no_repeat_ngram_size",
    "stop_loops",
    "seed",
    "feedback",
    "device",
    "dtype",
}
"""Keys of `answer` that affect the answers to given packets."""


def run_fingerprint(config: Config) -> dict[str, str] | None:
    """Return the readable items that must be equal for two runs to give the same answers; None if the source cannot be
    read twice."""
    source = source_fingerprint(config.source)
    if source is None:
        return None
    tables = config.model_dump(mode="json", include=set(Config.model_fields))
    for name, section in config.sections().items():
        if section.changes_answers:
            tables[name] = section.model_dump(mode="json", exclude=set(section.without_effect))
    settings = {
        key: json.dumps(value)
        for key, value in _leaves(tables)
        if not any(key == name or (name.endswith(".") and key.startswith(name)) for name in WITHOUT_EFFECT)
    }
    files = {"source": source, "model": _model(config)}
    if config.answer.allocator is not None:
        files["allocator"] = _allocator(config.answer.allocator)
    items = {**files, **settings, "program": version("arr-coc-stream")}
    return {key: replace_surrogates(value) for key, value in items.items()}  # they name files


def fingerprint(path: Path) -> str:
    """Return a file's size, and a hash of its contents or of samples of them. Raises OSError."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        last = max(0, size - SAMPLE_BYTES)
        is_small = size <= SAMPLES * SAMPLE_BYTES
        starts = range(0, size, SAMPLE_BYTES) if is_small else (last * n // (SAMPLES - 1) for n in range(SAMPLES))
        for start in starts:
            file.seek(start)
            digest.update(file.read(SAMPLE_BYTES))
    return f"{counted(size, 'byte')}, {digest.hexdigest()[:16]}"


def model_fingerprint(name: str | None) -> str:
    """Return a model's fingerprint by its files, in any folder: configuration, weights, tokenizer. None names the
    bundled model.

    UNKNOWN if they are not on this machine or cannot be read.
    """
    try:
        folder = bundled_model_path() if name is None else local_folder(name) or cached_folder(name)
        if folder is None:
            return UNKNOWN
        return _files({path for glob in WANTED_FILES for path in folder.glob(glob)})
    except (ModelNotFound, OSError):
        return UNKNOWN


def weights_of(config: Config) -> str:
    """Return the fingerprint of the configured model's files; for a model of another program, that one's address."""
    if config.model_key is None:
        return model_fingerprint(config.answer.model)
    section, _, name = config.model_key.partition(".")
    return f"served at {_shown_section(config, section)[name]}"


def _shown_section(config: Config, name: str) -> dict[str, Any]:
    """Return the section of an extension as values, without secrets."""
    return config.sections()[name].shown().model_dump(mode="json")


def source_fingerprint(address: str) -> str | None:
    """Return the fingerprint of a source that can be read twice (scene, file, folder, episode); None for others."""
    if address.startswith(SCENE_PREFIX):
        return address
    if address.startswith(LEROBOT_PREFIX):
        return _episode(address)
    path = Path(os.path.expanduser(address))
    try:
        if path.is_file():
            return f"{path.name} ({fingerprint(path)})"
        if path.is_dir():
            return f"{path.name} ({_folder(path)})"
    except (OSError, ValueError):
        return None
    return None


def _episode(address: str) -> str | None:
    """Return the fingerprint of an episode by its dataset's tables, and the names and sizes of all videos."""
    place, _, choice = address.removeprefix(LEROBOT_PREFIX).rpartition("#")
    folder = Path(os.path.expanduser(place or choice))
    try:
        tables = _files(path for path in folder.glob("meta/**/*") if path.is_file())
        videos = sorted((str(path.relative_to(folder)), path.stat().st_size) for path in folder.glob("videos/**/*.mp4"))
    except (OSError, ValueError):
        return None
    digest = hashlib.sha256(repr(videos).encode()).hexdigest()[:16]
    episode = choice if place else "its only episode"
    return f"{folder.name} ({episode}; {tables}; {counted(len(videos), 'video')}, {digest})"


def _model(config: Config) -> str:
    """Return the model by its files if they are on this machine, else by its name on the hub or at its server."""
    name = config.answer.model
    if config.model_key is not None:
        return f"{name} {weights_of(config)}"
    folder = bundled_model_path() if name is None else local_folder(name)
    if folder is None:
        return str(name)
    allocator = folder / ALLOCATOR_FOLDER
    return f"{folder.name} ({_folder(folder)}" + (f", allocator {_folder(allocator)})" if allocator.is_dir() else ")")


def _allocator(name: str) -> str:
    folder = allocator_folder(name)
    if folder is None:
        return name
    return f"{folder.name} ({_files(folder / file for file in ALLOCATOR_FILES)})"


def _folder(folder: Path) -> str:
    return _files(path for path in folder.iterdir() if path.is_file() and path.suffix != ".md")


def _files(paths: Iterable[Path]) -> str:
    files = sorted(paths)
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {fingerprint(path)}\n".encode(errors="surrogateescape"))
    return f"{counted(len(files), 'file')}, {digest.hexdigest()[:16]}"


def _leaves(values: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    leaves: list[tuple[str, object]] = []
    for name, value in values.items():
        leaves += _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return leaves


class AnswerProvenance(msgspec.Struct, frozen=True):
    """Origin of answers: `model` as named (None: the bundled one), `weights` by its files, `threads` of torch.

    `settings`: the part of the configuration that affects answers to given packets.
    """

    program: str
    model: str | None
    weights: str
    threads: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    settings: dict[str, Any]


def answer_provenance(config: Config) -> str:
    """Return the provenance of this process's answers as JSON; to be called once its model is loaded."""
    settings = config.model_dump(mode="json", include={"answer": ANSWER_KEYS})
    name = config.answer.model
    threads = 1
    if config.model_key is not None:
        section = config.model_key.partition(".")[0]
        settings[section] = _shown_section(config, section)
    else:
        import torch

        name = _absolute_name(name)
        threads = torch.get_num_threads()
    provenance = AnswerProvenance(version("arr-coc-stream"), name, weights_of(config), threads, settings)
    return msgspec.json.encode(provenance).decode()


def _absolute_name(name: str | None) -> str | None:
    """Return the model's name in a form that is valid from any directory."""
    try:
        folder = None if name is None else local_folder(name)
    except ModelNotFound:
        return name
    return name if folder is None else str(folder.resolve())
