"""This project's way: what `ARRCOCQwen.generate` does for a user, with `strategy="auto"` and the allocator that the
model brings along (docs/methods.md); and what a stream does, which has seen the frames before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.types import TILE_PX, Encode
from arr_coc.video.picture_allocator import PictureAllocator
from evaluation.errors import EvaluationError
from evaluation.strategies.base import Ask, Reply, Strategy, stamps_of
from evaluation.strategies.packets import packet_flops
from evaluation.strategies.speaking import Speaking, Spoken
from evaluation.views import View

ENCODES: tuple[Encode, ...] = ("sparse", "incremental", "prune", "weighted", "full")

FELL_BACK = "allocating tokens failed, so that all were shown; the log says why"

TEXTURE_OPS_A_PIXEL = 60
"""About what mipmaps, luma, entropy, edges and saliency take; element-wise work, an estimate."""


def choosing_flops(realiser: RelevanceRealiser | None, tiles: int) -> int:
    """The allocator on so many tiles: its weights once a tile, which is more than it does, and the texture's work."""
    weights = sum(weight.numel() for weight in (realiser or RelevanceRealiser()).parameters())
    return tiles * (2 * weights + TEXTURE_OPS_A_PIXEL * TILE_PX * TILE_PX)


def allocator_for(
    qwen: QwenVL, ask: Ask, views: Sequence[View], strategy: str = "auto", explore: float = 0.0
) -> PictureAllocator:
    """One stream's allocator, with the budget and the question of `ask`."""
    budget = ask.budget.of(views[-1].grid.tiles)
    return PictureAllocator(qwen, ask.text, AllocatorOptions(strategy, budget, explore=explore), ask.encode)


def reply_from(qwen: QwenVL, ask: Ask, views: Sequence[View], spoken: Spoken, allocate_ms: float) -> Reply:
    """With what was paid for the frames that are asked about."""
    made = spoken.result
    of_tokens = sum(view.grid.tiles for view in views)
    flops = packet_flops(qwen, ask, views, [made.tokens_used / len(views)] * len(views), spoken)
    return Reply(
        text=made.text,
        tokens=made.tokens_used,
        of_tokens=of_tokens,
        regions=made.regions,
        grid=views[-1].grid,
        flops=replace(flops, choose=choosing_flops(qwen.realiser, of_tokens)),
        ttft_ms=allocate_ms + made.first_token_ms,
    )


def check_allocated(allocator: PictureAllocator) -> None:
    """Raises EvaluationError where a picture was shown whole because its allocation failed."""
    if allocator.fallbacks:
        raise EvaluationError(FELL_BACK)


def _answer(qwen: QwenVL, ask: Ask, strategy: str = "auto", *, streaming: bool = False) -> Reply:
    views = ask.views(qwen)
    allocator = allocator_for(qwen, ask, views, strategy)
    before, before_s = (ask.before, ask.before_s) if streaming else ((), ())
    stamps = stamps_of((*before_s, *ask.times_s))
    for frame, stamp in zip(before, stamps, strict=False):
        allocator.allocate(frame, stamp)
    started_s = time.perf_counter()
    packets = [allocator.allocate(frame, stamp) for frame, stamp in zip(ask.frames, stamps[len(before) :], strict=True)]
    allocate_ms = (time.perf_counter() - started_s) * 1e3
    check_allocated(allocator)
    return reply_from(qwen, ask, views, Speaking(qwen, ask).answer(packets), allocate_ms)


ARR_COC = Strategy("arr-coc", _answer, encodes=ENCODES)
ARR_COC_FOVEATED = Strategy("arr-coc-foveated", partial(_answer, strategy="foveated"), encodes=ENCODES)
ARR_COC_MIXED = Strategy("arr-coc-mixed", partial(_answer, strategy="mixed"), encodes=ENCODES)
ARR_COC_STREAM = Strategy("arr-coc-stream", partial(_answer, streaming=True), encodes=ENCODES)
