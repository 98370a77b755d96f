"""This project's way: what `ARRCOCQwen.generate` does for a user, with `strategy="auto"` and the allocator that the
model brings along (docs/architecture.md)."""

from __future__ import annotations

from functools import partial

from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance import RelevanceRealiser
from arr_coc.types import TILE_PX, Encode
from evaluation.errors import EvaluationError
from evaluation.flops import Flops
from evaluation.strategies.base import Ask, Reply, Strategy
from evaluation.strategies.packets import packet_flops

TEXTURE_OPS_A_PIXEL = 60
"""About what mipmaps, luma, entropy, edges and saliency take; element-wise work, an estimate."""


def choosing_flops(realiser: RelevanceRealiser | None, tiles: int) -> int:
    """The allocator on so many tiles: its weights once a tile, which is more than it does, and the texture's work."""
    weights = sum(weight.numel() for weight in (realiser or RelevanceRealiser()).parameters())
    return tiles * (2 * weights + TEXTURE_OPS_A_PIXEL * TILE_PX * TILE_PX)


def _answer(qwen: QwenVL, ask: Ask, strategy: str = "auto") -> Reply:
    views = ask.views(qwen)
    of_tokens = sum(view.grid.tiles for view in views)
    model = ARRCOCQwen(qwen)
    made = model.generate(
        list(ask.frames),
        ask.text,
        ask.max_tokens,
        budget=ask.budget.of(views[-1].grid.tiles),
        encode=ask.encode,
        strategy=strategy,
        times_s=ask.times_s,
    )
    if model.fallbacks:
        raise EvaluationError("allocating tokens failed, so that all were shown; the log says why")
    times = made.timings
    cost = packet_flops(qwen, ask, views, [made.tokens_used / len(views)] * len(views), made.text)
    choosing = choosing_flops(qwen.realiser, of_tokens)
    return Reply(
        text=made.text,
        tokens=made.tokens_used,
        of_tokens=of_tokens,
        regions=made.regions,
        grid=views[-1].grid,
        flops=Flops(choosing, cost.encode, cost.prefill, cost.decode),
        ttft_ms=times.allocate_ms + times.encode_ms + times.prefill_ms,
    )


ENCODES: tuple[Encode, ...] = ("sparse", "prune", "weighted", "full")

ARR_COC = Strategy("arr-coc", _answer, encodes=ENCODES)
ARR_COC_FOVEATED = Strategy("arr-coc-foveated", partial(_answer, strategy="foveated"), encodes=ENCODES)
ARR_COC_MIXED = Strategy("arr-coc-mixed", partial(_answer, strategy="mixed"), encodes=ENCODES)
