"""This project's way: what `ARRCOCQwen.generate` does for a user, with `strategy="auto"` and the allocator that the
model brings along (docs/architecture.md); and what a stream does, which has seen the frames before."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from arr_coc.allocator import AllocatorOptions
from arr_coc.gaze import Gaze
from arr_coc.model import ARRCOCQwen
from arr_coc.qwen.decode import Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerOptions, AnswerSession
from arr_coc.relevance import RelevanceRealiser
from arr_coc.types import TILE_PX, Encode
from evaluation.errors import EvaluationError
from evaluation.flops import Flops
from evaluation.strategies.base import Ask, Reply, Strategy, stamps_of
from evaluation.strategies.packets import packet_flops
from evaluation.views import View

FELL_BACK = "allocating tokens failed, so that all were shown; the log says why"

TEXTURE_OPS_A_PIXEL = 60
"""About what mipmaps, luma, entropy, edges and saliency take; element-wise work, an estimate."""


def choosing_flops(realiser: RelevanceRealiser | None, tiles: int) -> int:
    """The allocator on so many tiles: its weights once a tile, which is more than it does, and the texture's work."""
    weights = sum(weight.numel() for weight in (realiser or RelevanceRealiser()).parameters())
    return tiles * (2 * weights + TEXTURE_OPS_A_PIXEL * TILE_PX * TILE_PX)


def _answer(qwen: QwenVL, ask: Ask, strategy: str = "auto") -> Reply:
    views = ask.views(qwen)
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
        raise EvaluationError(FELL_BACK)
    times = made.timings
    ttft_ms = times.allocate_ms + times.encode_ms + times.prefill_ms
    return _reply(qwen, ask, views, made.text, made.tokens_used, made.regions, ttft_ms)


def _answer_streaming(qwen: QwenVL, ask: Ask) -> Reply:
    views = ask.views(qwen)
    options = AllocatorOptions("auto", ask.budget.of(views[-1].grid.tiles), explore=0.0, levels=qwen.knows_levels)
    gaze = Gaze(qwen.preprocessing, ask.encode, options, qwen.embed_query(ask.text), qwen.realiser)
    stamps = stamps_of((*ask.before_s, *ask.times_s))
    for frame, stamp in zip(ask.before, stamps, strict=False):
        gaze.look(frame, stamp)
    started_s = time.perf_counter()
    packets = [gaze.look(frame, stamp) for frame, stamp in zip(ask.frames, stamps[len(ask.before) :], strict=True)]
    allocate_ms = (time.perf_counter() - started_s) * 1e3
    if gaze.fallbacks:
        raise EvaluationError(FELL_BACK)
    session = AnswerSession(qwen, AnswerOptions(ask.encode, Decoding(ask.max_tokens)))
    text = "".join(session.answer(packets, ask.text))
    made = session.last
    return _reply(
        qwen, ask, views, text, made.tokens_used, made.regions, allocate_ms + made.encode_ms + made.prefill_ms
    )


def _reply(
    qwen: QwenVL,
    ask: Ask,
    views: Sequence[View],
    text: str,
    tokens: int,
    regions: npt.NDArray[np.int32],
    ttft_ms: float,
) -> Reply:
    """With what was paid for the frames that are asked about."""
    of_tokens = sum(view.grid.tiles for view in views)
    cost = packet_flops(qwen, ask, views, [tokens / len(views)] * len(views), text)
    flops = Flops(choosing_flops(qwen.realiser, of_tokens), cost.encode, cost.prefill, cost.decode)
    return Reply(text, tokens, of_tokens, regions, views[-1].grid, flops, ttft_ms)


ENCODES: tuple[Encode, ...] = ("sparse", "prune", "weighted", "full")

ARR_COC = Strategy("arr-coc", _answer, encodes=ENCODES)
ARR_COC_FOVEATED = Strategy("arr-coc-foveated", partial(_answer, strategy="foveated"), encodes=ENCODES)
ARR_COC_MIXED = Strategy("arr-coc-mixed", partial(_answer, strategy="mixed"), encodes=ENCODES)
ARR_COC_STREAM = Strategy("arr-coc-stream", _answer_streaming, encodes=ENCODES)
