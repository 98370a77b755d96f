"""Whether the model is there, and fits this machine at this budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from arr_coc.errors import ArrCocError
from arr_coc.qwen.footprint import Footprint, ModelFacts
from arr_coc.qwen.hub import bundled_model_path, cached_folder, local_folder
from stream.config import Config
from stream.doctor.check import Check

FRAME_PROCESS_BYTES, ANSWER_PROCESS_BYTES = 250 << 20, 280 << 20
"""What the two processes take at 1080p without a model: Python, torch and the frames; measured."""

ADAPTIVE_TOKENS = 400
"""The most that `allocate.budget = "adaptive"` and `answer.target_ms` take."""

CGROUP = Path("/sys/fs/cgroup")

CGROUP_FILES = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)
"""A container's limit and use, in version 2 and version 1."""

PROMPT_TOKENS = 64
"""About what the chat template and a short question take."""


def model(config: Config) -> Check:
    """Whether it is there and whole, and its context long enough."""
    try:
        facts, name = facts_of(config)
    except ArrCocError as error:
        problem, _, remedy = str(error).rpartition("; ")
        return Check("model", "broken", problem or remedy, remedy if problem else None)
    if facts is None:
        return Check("model", "absent", f"{name} is not on this machine yet", "the first run downloads it")
    visual, other = tokens_of(config)
    known = f"; only knows {facts.known_world}" if facts.known_world else ""
    said = (
        f"{name}: {facts.family.title}, {facts.parameters / 1e6:,.1f} M parameters, "
        f"{visual} visual tokens a frame, context of {facts.context_tokens}{known}"
    )
    if visual + other > facts.context_tokens:
        found = f"{said}: too short for the {visual + other} tokens of frame, question and answer"
        return Check("model", "broken", found, "lower --budget")
    return Check("model", "works", said)


def memory(config: Config, free: Callable[[], int] | None = None) -> Check:
    """What a run needs against what is free; on a CUDA device the model lies there."""
    free_bytes = (free or free_memory)()
    processes = FRAME_PROCESS_BYTES + (0 if config.pipeline.single_process else ANSWER_PROCESS_BYTES)
    try:
        facts, _ = facts_of(config)
    except ArrCocError:
        facts = None
    if facts is None:
        return _fits(f"{_size(processes)} and the model needed, {_size(free_bytes)} free", processes, free_bytes)
    on_cpu = not _on_cuda(config.answer.device)
    dtype = "float32" if config.answer.dtype == "auto" and on_cpu else config.answer.dtype
    parts = Footprint.of(facts, dtype, *tokens_of(config))
    listed = (
        f"weights {_size(parts.weights)}, keys and values {_size(parts.cache)}, activations {_size(parts.activations)}"
    )
    if on_cpu:
        needed = processes + parts.total
        said = f"about {_size(needed)} needed ({listed}, processes {_size(processes)}), {_size(free_bytes)} free"
        return _fits(said, needed, free_bytes)
    free_there = _free_on_cuda(config.answer.device)
    said = f"about {_size(parts.total)} needed on the GPU ({listed}), {_size(free_there)} free there"
    return _fits(said, parts.total, free_there)


def facts_of(config: Config) -> tuple[ModelFacts | None, str]:
    """What the model's folder says, None where it would be downloaded; and its name. Raises as `ModelFacts.read`."""
    name = config.answer.model
    folder = bundled_model_path() if name is None else local_folder(name) or cached_folder(name)
    if folder is None:
        return None, str(name)
    shown = name if name is not None and not local_folder(name) else folder.resolve().name
    return ModelFacts.read(folder, shown), shown


def free_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that new processes can have: what the system has, or what the container still may."""
    import psutil

    free = int(psutil.virtual_memory().available)
    for limit, used in CGROUP_FILES:
        try:
            left = int((cgroup / limit).read_text()) - int((cgroup / used).read_text())
        except (OSError, ValueError):
            continue
        free = min(free, max(left, 0))
    return free


def _fits(said: str, needed: int, free: int) -> Check:
    if needed <= free:
        return Check("memory", "works", said)
    return Check(
        "memory", "broken", said, "close other programs, or give --dtype bfloat16, a lower --budget or a smaller model"
    )


def tokens_of(config: Config) -> tuple[int, int]:
    """A prompt's visual tokens, and its others with the answer's."""
    budget = config.allocate.budget
    visual = ADAPTIVE_TOKENS if budget == "adaptive" or config.answer.target_ms is not None else budget
    return visual, PROMPT_TOKENS + len(config.answer.query) // 3 + config.answer.max_tokens


def _free_on_cuda(device: str) -> int:
    import torch

    return int(torch.cuda.mem_get_info(torch.device("cuda" if device == "auto" else device))[0])


def _on_cuda(device: str) -> bool:
    import torch

    return (device == "auto" or device.startswith("cuda")) and torch.cuda.is_available()


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
