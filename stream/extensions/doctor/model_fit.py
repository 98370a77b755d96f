"""Checks of the model: its files, and its fit to this machine and to graphics cards of usual sizes."""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path

from arr_coc.budget import ADAPTIVE, most_tokens
from arr_coc.errors import ArrCocError, HubUnreachable, ModelError, ModelNotFound, counted
from arr_coc.hub import bundled_model_path, cached_folder, local_folder
from arr_coc.qwen.checkpoint import free_memory_bytes
from arr_coc.qwen.families import check_transformers
from arr_coc.qwen.memory_estimate import MemoryEstimate, ModelSpec, Workload
from arr_coc.qwen.quantisation import SMALL_DTYPES, check_quantisation, check_small_dtype
from arr_coc.qwen.remote_checkpoint import remote_checkpoint
from arr_coc.types import NEEDS_TOKENS_ONLY, SHOWS_ALL_TILES, TILE_PX, TileGrid
from stream.config import Config
from stream.extensions.doctor.diagnostic import DiagnosticCheck

FRAME_PROCESS_BYTES = 250 << 20
ANSWER_PROCESS_BYTES = 280 << 20
"""Memory of the two processes at 1080p without a model: Python, torch and the frames; measured."""

REMEDY = "close other programs, or give --dtype bfloat16, a lower --budget, --no-memory or a smaller model"

CARDS_GB = (8, 12, 16, 24, 32, 48, 80)

OVERHEAD_BYTES = 1 << 30
"""Memory left for CUDA's contexts, its libraries' work space and a screen; not measured."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The configured model: its specification, None if no source has it, and the name that is shown.

    `missing` is why its weights are not on this machine: None if they are, and an error that also a run would
    meet, or `HubUnreachable` if the hub may have it.
    """

    name: str
    spec: ModelSpec | None
    missing: ArrCocError | None = None
    on_hub: bool = False


def find_model(config: Config) -> FoundModel:
    """Return the configured model: from its folder, or by its description on the hub. Raises as `ModelSpec.read`."""
    name = config.answer.model
    folder = bundled_model_path() if name is None else local_folder(name) or cached_folder(name)
    if folder is None:
        assert name is not None
        return _on_hub(name)
    if name is not None and not local_folder(name):
        display_name = name
    else:
        display_name = folder.resolve().name
    try:
        return FoundModel(display_name, ModelSpec.read(folder, display_name, quantised=True))
    except ModelNotFound as missing:
        try:
            return FoundModel(display_name, ModelSpec.of_index(folder, display_name), missing)
        except ArrCocError:
            raise missing from None


@cache
def _on_hub(name: str) -> FoundModel:
    """Ask the hub, once in a process."""
    try:
        return FoundModel(name, ModelSpec.of(remote_checkpoint(name), name), on_hub=True)
    except ArrCocError as error:
        return FoundModel(name, None, error, on_hub=True)


def model(config: Config, free_disk: Callable[[], int] | None = None) -> DiagnosticCheck:
    """Check that the model is present and whole, or can be downloaded, and its context long enough."""
    try:
        configured_model = find_model(config)
    except ArrCocError as error:
        return DiagnosticCheck("model", "broken", error.problem, error.remedy)
    spec = configured_model.spec
    missing = configured_model.missing
    if missing is not None and not isinstance(missing, HubUnreachable):
        return DiagnosticCheck("model", "broken", missing.problem, missing.remedy)
    if spec is None:
        finding = f"{configured_model.name} is not on this machine yet, and the hub cannot be asked about it"
        return DiagnosticCheck("model", "absent", finding, "the first run downloads it; for that it needs the network")
    load = load_of(config)
    visual = load.visual_tokens
    request_tokens = load.prompt_tokens
    if not config.requires_groups:  # a memory is fitted to the context
        request_tokens = visual + load.other_tokens
    if spec.known_world:
        limitation = f"; only knows {spec.known_world}"
    else:
        limitation = ""
    finding = (
        f"{configured_model.name}: {spec.family.title}, {spec.parameters / 1e6:,.1f} M parameters, "
        f"{counted(visual, 'visual token')} a frame, context of {spec.context_tokens}{limitation}"
    )
    finding = "; ".join([finding, *spec.notices])
    try:
        check_transformers(spec.family, configured_model.name)
        on_cuda = _on_cuda(config.answer.device)
        check_quantisation(spec.quantised, configured_model.name, cuda=spec.quantised is None or on_cuda)
        if (dtype := config.answer.dtype) in SMALL_DTYPES:
            check_small_dtype(
                dtype, spec.quantised, configured_model.name, experts=spec.experts_per_token, cuda=on_cuda
            )
    except ModelError as error:
        size = f"{spec.parameters / 1e6:,.1f} M parameters, {size_text(spec.checkpoint_bytes)}"
        return DiagnosticCheck("model", "broken", f"{error.problem} ({size})", error.remedy)
    if request_tokens > spec.context_tokens:
        too_short = f"{finding}: too short for the {request_tokens} tokens of frame, question and answer"
        if config.requires_groups:
            remedy = "lower answer.memory.tokens"
        else:
            remedy = "lower --budget"
        return DiagnosticCheck("model", "broken", too_short, remedy)
    if configured_model.on_hub:
        free_bytes = (free_disk or free_disk_bytes)()
        finding += f"; not on this machine yet, {size_text(spec.checkpoint_bytes)} to download"
        finding += f", {size_text(free_bytes)} free on the disk"
        if spec.checkpoint_bytes > free_bytes:
            return DiagnosticCheck("model", "broken", finding, "make room, or set HF_HOME to a folder on another disk")
        return DiagnosticCheck("model", "absent", finding, "the first run downloads it")
    return DiagnosticCheck("model", "works", finding)


def free_disk_bytes() -> int:
    """Return the free bytes of the disk of the hub's models."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE)
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def memory(config: Config, free: Callable[[], int] | None = None, streams: int = 1) -> DiagnosticCheck:
    """Compare the memory for a run with `streams` streams with what is free, on the CUDA device if it is used."""
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
    checkpoint_facts = facts
    facts = facts.for_device(cuda=not on_cpu)
    if config.answer.dtype == "auto" and on_cpu:
        dtype = dtype_on_cpu(facts)
    else:
        dtype = config.answer.dtype
    parts = MemoryEstimate.of(facts, dtype, load_of(config, streams))
    # to small weights, the stored ones leave one by one
    if dtype in SMALL_DTYPES:
        loading = parts.weights
    else:
        loading = checkpoint_facts.loading_bytes(parts.weights)
    sizes = {
        "weights": parts.weights,
        "keys and values": parts.cache,
        "activations": parts.activations,
        "caches of frames" if streams == 1 else f"caches of {counted(streams, 'stream')}": parts.vision_cache,
        _memory_name(config, streams): parts.groups,
    }
    breakdown = ", ".join(f"{name} {size_text(count)}" for name, count in sizes.items() if count)
    if on_cpu:
        needed_bytes = processes + max(parts.total, loading)
        breakdown = f"{breakdown}, processes {size_text(processes)}; loading {size_text(loading)}"
        finding = f"about {size_text(needed_bytes)} needed ({breakdown})"
        return _fits(f"{finding}, {size_text(free_bytes)} free", needed_bytes, free_bytes)
    device_free_bytes = _free_on_cuda(config.answer.device)
    needed_bytes = parts.total + texture_bytes(config) + OVERHEAD_BYTES
    if texture_bytes(config):
        texture = f", texture {size_text(texture_bytes(config))}"
    else:
        texture = ""
    other = f"CUDA and a screen {size_text(OVERHEAD_BYTES)}"
    breakdown = f"{breakdown}{texture}, {other}; loading {size_text(loading)} on the host"
    finding = (
        f"about {size_text(needed_bytes)} needed on the GPU ({breakdown}), {size_text(device_free_bytes)} free there"
    )
    return _fits(
        f"{finding}: it {'fits' if needed_bytes <= device_free_bytes else 'does not fit'}",
        needed_bytes,
        device_free_bytes,
    )


def facts_of(config: Config) -> tuple[ModelSpec | None, str]:
    """Return the model's specification, None if neither this machine nor the hub has it, and its name. Raises as
    `find_model`."""
    configured_model = find_model(config)
    return configured_model.spec, configured_model.name


def texture_bytes(config: Config) -> int:
    """Return the bytes of the texture on the GPU: level 0 in RGBA8 and its mipmaps; 0 if it is in host memory."""
    if config.texture.backend == "cpu":
        return 0
    return tiles_of(config) * TILE_PX * TILE_PX * 4 * 4 // 3


def load_of(config: Config, streams: int = 1) -> Workload:
    """Return the largest request to the model. A whole frame has the size `capture.size`, else 1080p."""
    answer = config.answer
    visual, other = tokens_of(config)
    frame_tiles = tiles_of(config)
    return Workload(
        visual_tokens=frame_tiles if answer.encode in SHOWS_ALL_TILES else visual,
        other_tokens=other,
        encoded_tokens=None if answer.encode in NEEDS_TOKENS_ONLY else frame_tiles,
        kept_vision_mb=answer.incremental.memory_mb if answer.encode == "incremental" or config.keeps_groups else 0.0,
        streams=streams,
        memory_tokens=answer.memory.tokens if config.keeps_groups else 0,
        memory_frames=answer.memory.frames,
        reads_ahead=config.keeps_groups and answer.memory.frames == 1 and answer.memory.idle != 0,
    )


def _memory_name(config: Config, streams: int) -> str:
    of = "" if streams == 1 else f"{streams} times "
    return f"visual memory of {of}{counted(config.answer.memory.tokens, 'token')}"


def tiles_of(config: Config) -> int:
    """Return the tiles of a frame, as far as the configuration gives its size."""
    width_px, height_px = map(int, (config.capture.size or "1920x1080").split("x"))
    tiles = TileGrid.of(height_px, width_px).tiles
    return min(tiles, config.capture.max_tiles or tiles)


def _fits(finding: str, needed_bytes: int, free_bytes: int) -> DiagnosticCheck:
    if needed_bytes <= free_bytes:
        return DiagnosticCheck("memory", "works", finding)
    return DiagnosticCheck("memory", "broken", finding, REMEDY)


def tokens_of(config: Config) -> tuple[int, int]:
    """Return a prompt's visual tokens at their most, and its other tokens with the answer's."""
    limits = config.allocate.limits
    target_ms = config.value("latency.target_ms")
    raises = config.value("shadow.act")
    budget = config.allocate.budget
    if raises and (target_ms is not None or budget == ADAPTIVE):
        budget = round(limits.max_tokens * config.value("shadow.most"))
    elif raises or target_ms is not None:
        budget = max(limits.max_tokens, most_tokens(budget, tiles_of(config), limits))
    if isinstance(budget, int):
        visual = budget
    else:
        visual = most_tokens(budget, tiles_of(config), limits)
    # tokens of the chat template and a short question, roughly
    return visual, 64 + len(config.answer.query) // 3 + config.answer.max_tokens


def _free_on_cuda(device: str) -> int:
    import torch

    return int(torch.cuda.mem_get_info(torch.device("cuda" if device == "auto" else device))[0])


def _on_cuda(device: str) -> bool:
    import torch

    return (device == "auto" or device.startswith("cuda")) and torch.cuda.is_available()


def size_text(count: int) -> str:
    """Return a number of bytes for people: `1.5 GB`, `300 MB`."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB"


def cards(config: Config, streams: int = 1) -> DiagnosticCheck:
    """Estimate the memory for `streams` streams, and for each card whether it fits, or its largest visual memory.

    Cards of which the same is true share one entry.
    """
    try:
        facts, name = facts_of(config)
    except ArrCocError:
        return DiagnosticCheck("cards", "absent", "no estimate, because the model cannot be used")
    if facts is None:
        return DiagnosticCheck("cards", "absent", f"neither this machine nor the hub describes {name}")
    if config.answer.dtype in SMALL_DTYPES:
        return DiagnosticCheck("cards", "absent", f"no estimate, because dtype {config.answer.dtype} is for a CPU")
    facts = facts.for_device(cuda=True)
    load = load_of(config, streams)
    dtype = config.answer.dtype
    parts = MemoryEstimate.of(facts, dtype, load)
    fits = ", ".join(
        f"{_sizes_text(list(sizes))} {fit}"
        for fit, sizes in groupby(CARDS_GB, partial(_fit, facts, dtype, load, texture_bytes(config)))
    )
    if streams == 1:
        of = ""
    else:
        of = f", {counted(streams, 'stream')}"
    if load.memory_tokens:
        memory = f", {_memory_name(config, streams)}"
    else:
        memory = ""
    request = f"{config.answer.encode}, {counted(load.visual_tokens, 'visual token')}{memory}{of}"
    return DiagnosticCheck("cards", "works", f"{size_text(parts.total)} of GPU memory for {request}; {fits}")


def most_memory_tokens(facts: ModelSpec, dtype: str, load: Workload, free_bytes: int) -> int:
    """Return the largest `answer.memory.tokens` that fits the memory and the context; 0 if not even one frame does.

    Args:
        facts: Specification of the model.
        dtype: Type of the weights.
        load: Largest request; its `memory_tokens` are the upper limit.
        free_bytes: Memory for weights, caches and activations.
    """

    def fails(tokens: int) -> bool:
        trial_load = replace(load, memory_tokens=tokens)
        return (
            trial_load.prompt_tokens > facts.context_tokens
            or MemoryEstimate.of(facts, dtype, trial_load).total > free_bytes
        )

    tokens = bisect_left(range(1, load.memory_tokens + 1), True, key=fails)
    return tokens if tokens >= load.visual_tokens else 0


def _sizes_text(sizes_gb: Sequence[int]) -> str:
    if len(sizes_gb) == 1:
        return f"{sizes_gb[0]} GB"
    return f"{sizes_gb[0]} to {sizes_gb[-1]} GB"


def _fit(facts: ModelSpec, dtype: str, load: Workload, texture: int, card_gb: int) -> str:
    free = (card_gb << 30) - OVERHEAD_BYTES - texture
    if MemoryEstimate.of(facts, dtype, load).total <= free:
        return "fits"
    tokens = most_memory_tokens(facts, dtype, load, free)
    if tokens:
        return f"up to answer.memory.tokens = {tokens}"
    return "too small"
