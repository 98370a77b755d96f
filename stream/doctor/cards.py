"""What a model at these settings needs on graphics cards of usual sizes, from its folder alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from arr_coc.errors import ArrCocError, counted
from arr_coc.qwen.memory_estimate import Footprint, Load, ModelFacts
from stream.config import Config
from stream.doctor.check import Check
from stream.doctor.fitness import facts_of, load_of, size_text

CARDS_GB = (16, 24, 32, 48)

OVERHEAD_BYTES = 1 << 30
"""Left for CUDA's context, its libraries' work space, the texture and a screen: an allowance, not a measurement."""


def cards(config: Config, streams: int = 1) -> Check:
    """What is needed for so many streams, and for each card whether it fits, and the most frames that a window may show
    there. Cards of which the same is true share one entry."""
    try:
        facts, name = facts_of(config)
    except ArrCocError:
        return Check("cards", "absent", "nothing can be reckoned, because the model cannot be used")
    if facts is None:
        return Check("cards", "absent", f"{name} is not on this machine, so nothing can be reckoned")
    load, dtype = load_of(config, streams), config.answer.dtype
    parts = Footprint.of(facts, dtype, load)
    fits = ", ".join(
        f"{_sizes_text(list(sizes))} {fit}" for fit, sizes in groupby(CARDS_GB, partial(_fit, facts, dtype, load))
    )
    frames = "" if load.window == 1 else f" in each of {counted(load.window, 'frame')}"
    of = "" if streams == 1 else f", {counted(streams, 'stream')}"
    asked = f"{config.answer.encode}, {counted(load.visual_tokens, 'visual token')}{frames}{of}"
    return Check("cards", "works", f"{size_text(parts.total)} of GPU memory for {asked}; {fits}")


def most_frames(facts: ModelFacts, dtype: str, load: Load, free_bytes: int) -> int:
    """The largest window of such frames that fits memory and context; 0 where not even one frame does.

    As many are kept as are shown.
    """
    fitting, beyond = 0, facts.context_tokens + 1
    while beyond - fitting > 1:
        frames = (fitting + beyond) // 2
        asked = replace(load, window=frames, kept=frames)
        within = asked.prompt_tokens <= facts.context_tokens
        if within and Footprint.of(facts, dtype, asked).total <= free_bytes:
            fitting = frames
        else:
            beyond = frames
    return fitting


def _sizes_text(sizes_gb: Sequence[int]) -> str:
    return f"{sizes_gb[0]} GB" if len(sizes_gb) == 1 else f"{sizes_gb[0]} to {sizes_gb[-1]} GB"


def _fit(facts: ModelFacts, dtype: str, load: Load, card_gb: int) -> str:
    free = (card_gb << 30) - OVERHEAD_BYTES
    if Footprint.of(facts, dtype, load).total > free:
        return "too small"
    return f"up to --window {most_frames(facts, dtype, load, free)}"
