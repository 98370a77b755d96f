"""Checks of the model: whether it is there, and fits this machine and graphics cards of usual sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from arr_coc.budget import MOST_TOKENS, most_tokens
from arr_coc.errors import ArrCocError, counted
from arr_coc.hub import bundled_model_path, cached_folder, local_folder
from arr_coc.qwen.checkpoint import free_memory_bytes
from arr_coc.qwen.memory_estimate import MemoryEstimate, ModelSpec, Workload
from arr_coc.types import NEEDS_TOKENS_ONLY, SHOWS_ALL_TILES, TileGrid
from stream.config import Config
from stream.doctor.system import DiagnosticCheck

FRAME_PROCESS_BYTES, ANSWER_PROCESS_BYTES = 250 << 20, 280 << 20
"""Memory of the two processes at 1080p without a model: Python, torch and the frames; measured."""

USUAL_SIZE = "1920x1080"

REMEDY = "close other programs, or give --dtype bfloat16, a lower --budget, fewer frames (--window) or a smaller model"

PROMPT_TOKENS = 64
"""Tokens of the chat template and a short question, roughly."""

CARDS_GB = (16, 24, 32, 48)

OVERHEAD_BYTES = 1 << 30
"""Memory left for CUDA's context, its libraries' work space, the texture and a screen; not measured."""


def model(config: Config) -> DiagnosticCheck:
    """Check that the model is there and whole, and its context long enough."""
    try:
        facts, name = facts_of(config)
    except ArrCocError as error:
        return DiagnosticCheck("model", "broken", error.problem, error.remedy)
    if facts is None:
        return DiagnosticCheck("model", "absent", f"{name} is not on this machine yet", "the first run downloads it")
    load = load_of(config)
    visual, needed = load.visual_tokens, load.prompt_tokens
    known = f"; only knows {facts.known_world}" if facts.known_world else ""
    said = (
        f"{name}: {facts.family.title}, {facts.parameters / 1e6:,.1f} M parameters, "
        f"{counted(visual, 'visual token')} a frame, context of {facts.context_tokens}{known}"
    )
    if needed > facts.context_tokens:
        found = f"{said}: too short for the {needed} tokens of frame, question and answer"
        remedy = "lower --budget" if load.window == 1 else "lower --budget, or show fewer frames (--window)"
        return DiagnosticCheck("model", "broken", found, remedy)
    return DiagnosticCheck("model", "works", said)


def memory(config: Config, free: Callable[[], int] | None = None, streams: int = 1) -> DiagnosticCheck:
    """Compare the memory that a run with so many streams needs with what is free, on the CUDA device if it is used."""
    free_bytes = (free or free_memory_bytes)()
    processes = FRAME_PROCESS_BYTES + (0 if config.pipeline.single_process else ANSWER_PROCESS_BYTES)
    try:
        facts, _ = facts_of(config)
    except ArrCocError:
        facts = None
    if facts is None:
        return _fits(
            f"{size_text(processes)} and the model needed, {size_text(free_bytes)} free", processes, free_bytes
        )
    from arr_coc.qwen.cpu_precision import dtype_on_cpu  # torch takes seconds to import

    on_cpu = not _on_cuda(config.answer.device)
    dtype = dtype_on_cpu(facts) if config.answer.dtype == "auto" and on_cpu else config.answer.dtype
    parts = MemoryEstimate.of(facts, dtype, load_of(config, streams))
    named = {
        "weights": parts.weights,
        "keys and values": parts.cache,
        "activations": parts.activations,
        "caches of frames" if streams == 1 else f"caches of {counted(streams, 'stream')}": parts.kept,
    }
    listed = ", ".join(f"{name} {size_text(count)}" for name, count in named.items() if count)
    if on_cpu:
        needed = processes + parts.total
        said = f"about {size_text(needed)} needed ({listed}, processes {size_text(processes)})"
        return _fits(f"{said}, {size_text(free_bytes)} free", needed, free_bytes)
    free_there = _free_on_cuda(config.answer.device)
    said = f"about {size_text(parts.total)} needed on the GPU ({listed}), {size_text(free_there)} free there"
    return _fits(said, parts.total, free_there)


def facts_of(config: Config) -> tuple[ModelSpec | None, str]:
    """Return the specification in the model's folder, None if it would be downloaded, and its name. Raises as
    `ModelSpec.read`."""
    name = config.answer.model
    folder = bundled_model_path() if name is None else local_folder(name) or cached_folder(name)
    if folder is None:
        return None, str(name)
    shown = name if name is not None and not local_folder(name) else folder.resolve().name
    return ModelSpec.read(folder, shown), shown


def load_of(config: Config, streams: int = 1) -> Workload:
    """Return the most that the model is asked. A whole frame is as large as `capture.size` says, else 1080p."""
    answer, window = config.answer, config.answer.window
    visual, other = tokens_of(config)
    whole = tiles_of(config)
    return Workload(
        visual_tokens=whole if answer.encode in SHOWS_ALL_TILES else visual,
        other_tokens=other,
        window=window.frames,
        kept=max(window.frames, window.kept or 0),
        encoded_tokens=None if answer.encode in NEEDS_TOKENS_ONLY else whole,
        kept_vision_mb=answer.incremental.memory_mb if answer.encode == "incremental" else 0.0,
        streams=streams,
    )


def tiles_of(config: Config) -> int:
    """Return the tiles of a frame, as far as the configuration tells."""
    width_px, height_px = map(int, (config.capture.size or USUAL_SIZE).split("x"))
    tiles = TileGrid.of(height_px, width_px).tiles
    return min(tiles, config.capture.max_tiles or tiles)


def _fits(said: str, needed: int, free: int) -> DiagnosticCheck:
    if needed <= free:
        return DiagnosticCheck("memory", "works", said)
    return DiagnosticCheck("memory", "broken", said, REMEDY)


def tokens_of(config: Config) -> tuple[int, int]:
    """Return a prompt's visual tokens at their most, and its other tokens with the answer's."""
    budget = MOST_TOKENS if config.answer.target_ms is not None else config.allocate.budget
    visual = budget if isinstance(budget, int) else most_tokens(budget, tiles_of(config))
    return visual, PROMPT_TOKENS + len(config.answer.query) // 3 + config.answer.max_tokens


def _free_on_cuda(device: str) -> int:
    import torch

    return int(torch.cuda.mem_get_info(torch.device("cuda" if device == "auto" else device))[0])


def _on_cuda(device: str) -> bool:
    import torch

    return (device == "auto" or device.startswith("cuda")) and torch.cuda.is_available()


def size_text(count: int) -> str:
    """Return a number of bytes for people: `1.5 GB`, `300 MB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def cards(config: Config, streams: int = 1) -> DiagnosticCheck:
    """Estimate the memory for so many streams, and for each card whether it fits and the largest window there.

    Cards of which the same is true share one entry.
    """
    try:
        facts, name = facts_of(config)
    except ArrCocError:
        return DiagnosticCheck("cards", "absent", "no estimate, because the model cannot be used")
    if facts is None:
        return DiagnosticCheck("cards", "absent", f"{name} is not on this machine, so there is no estimate")
    load, dtype = load_of(config, streams), config.answer.dtype
    parts = MemoryEstimate.of(facts, dtype, load)
    fits = ", ".join(
        f"{_sizes_text(list(sizes))} {fit}" for fit, sizes in groupby(CARDS_GB, partial(_fit, facts, dtype, load))
    )
    frames = "" if load.window == 1 else f" in each of {counted(load.window, 'frame')}"
    of = "" if streams == 1 else f", {counted(streams, 'stream')}"
    asked = f"{config.answer.encode}, {counted(load.visual_tokens, 'visual token')}{frames}{of}"
    return DiagnosticCheck("cards", "works", f"{size_text(parts.total)} of GPU memory for {asked}; {fits}")


def most_frames(facts: ModelSpec, dtype: str, load: Workload, free_bytes: int) -> int:
    """Return the largest window of such frames that fits memory and context; 0 where not even one frame does.

    As many are kept as are shown.
    """
    fitting, beyond = 0, facts.context_tokens + 1
    while beyond - fitting > 1:
        frames = (fitting + beyond) // 2
        asked = replace(load, window=frames, kept=frames)
        within = asked.prompt_tokens <= facts.context_tokens
        if within and MemoryEstimate.of(facts, dtype, asked).total <= free_bytes:
            fitting = frames
        else:
            beyond = frames
    return fitting


def _sizes_text(sizes_gb: Sequence[int]) -> str:
    return f"{sizes_gb[0]} GB" if len(sizes_gb) == 1 else f"{sizes_gb[0]} to {sizes_gb[-1]} GB"


def _fit(facts: ModelSpec, dtype: str, load: Workload, card_gb: int) -> str:
    free = (card_gb << 30) - OVERHEAD_BYTES
    if MemoryEstimate.of(facts, dtype, load).total > free:
        return "too small"
    return f"up to --window {most_frames(facts, dtype, load, free)}"
