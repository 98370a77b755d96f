"""This project’s way, once and again.

Both see the same frames as often, blend relevance over time and explore as a stream does by itself. What an answer
teaches is the decoder's attention on its tokens, and their similarity with the question
(arr_coc/allocation/temporal.py); the one allocator gets it before the next frame, the other does not. Nothing else
differs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch.nn import functional as F

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.qwen.attention import PROBED_LAYERS, PROBED_TOKENS, glanced_layers
from arr_coc.qwen.encoding import Packet, VisionStats, encode_packet, segment_counts
from arr_coc.qwen.flops import Costs, Flops
from arr_coc.qwen.glancing import unshown_tokens
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.slot import GlanceResult
from arr_coc.relevance.balancing import RelevanceRealiser
from arr_coc.types import TILE_PX, Encode, Feedback, TokenPacket
from arr_coc.video.picture_allocator import PictureAllocator
from evaluation.errors import EvaluationError
from evaluation.strategies.base import Ask, Reply, Strategy, TiledFrame, stamps_of
from evaluation.strategies.session import EvalPrompt, EvalSession, SessionAnswer, packet_flops

ENCODES: tuple[Encode, ...] = ("sparse", "incremental", "prune", "weighted", "full")

FELL_BACK = "allocating tokens failed, so that all were shown; the log says why"

TEXTURE_OPS_A_PIXEL = 60
"""About what mipmaps, luma, entropy, edges and saliency take; element-wise work, an estimate."""


def choosing_flops(realiser: RelevanceRealiser | None, tiles: int) -> int:
    """The allocator's on `tiles` tiles: its weights once a tile, an upper bound, and the texture's work."""
    weights = sum(weight.numel() for weight in (realiser or RelevanceRealiser()).parameters())
    return tiles * (2 * weights + TEXTURE_OPS_A_PIXEL * TILE_PX * TILE_PX)


def allocator_for(
    qwen: QwenVL,
    ask: Ask,
    views: Sequence[TiledFrame],
    strategy: str = "auto",
    explore: float = 0.0,
    glance: GlanceOptions | None = None,
) -> PictureAllocator:
    """One stream's allocator, with the budget and the question of `ask`.

    Args:
        qwen: The model.
        ask: Question, budget and encoding.
        views: The frames as the model fits them; a budget in per cent is one of the newest frame's tiles.
        strategy: How the budget is spent.
        explore: Share of the budget for what was not shown for longest.
        glance: Options of a glance before the choice; None for no glance.
    """
    budget = ask.budget.of(views[-1].grid.tiles)
    options = AllocatorOptions(strategy, budget, explore=explore, glance=glance)
    return PictureAllocator(qwen, ask.text, options, ask.encode)


def reply_from(qwen: QwenVL, ask: Ask, views: Sequence[TiledFrame], answer: SessionAnswer, allocate_ms: float) -> Reply:
    """A session's answer as a reply, with what was paid for the frames that are asked about.

    Args:
        qwen: The model.
        ask: The question.
        views: The frames as the model fits them.
        answer: The session's answer about them.
        allocate_ms: Time of the choice of tokens.
    """
    result = answer.result
    of_tokens = sum(view.grid.tiles for view in views)
    flops = packet_flops(qwen, ask, views, [result.work.tokens_used / len(views)] * len(views), answer)
    return Reply(
        text=result.text,
        tokens=result.work.tokens_used,
        of_tokens=of_tokens,
        regions=result.regions,
        grid=views[-1].grid,
        flops=replace(flops, choose=choosing_flops(qwen.realiser, of_tokens)),
        ttft_ms=allocate_ms + result.first_token_ms,
        prefilled=result.work.prefilled_tokens,
    )


def check_allocated(allocator: PictureAllocator) -> None:
    """Raise EvaluationError if a picture was shown whole because its allocation failed."""
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
    return reply_from(qwen, ask, views, EvalSession(qwen, ask).answer(packets), allocate_ms)


def _answer_glanced(qwen: QwenVL, ask: Ask, options: GlanceOptions, *, attends: bool = True) -> Reply:
    """Each frame's overview is looked at with the question in mind before its tokens are chosen, if that is due.

    Without `attends`, by similarity alone: the decoder reads nothing before the answer.
    """
    views = ask.views(qwen)
    allocator = allocator_for(qwen, ask, views, glance=options)
    session = EvalSession(qwen, ask)
    glancer = session.glancer(timed=len(views) > 1)
    started_s = time.perf_counter()
    packets: list[Packet] = []
    for frame, stamp in zip(ask.frames, stamps_of(ask.times_s), strict=True):
        glance = glancer.after(packets) if attends else partial(glance_by_similarity, qwen, ask.text)
        packets.append(allocator.allocate(frame, stamp, glance))
    allocate_ms = (time.perf_counter() - started_s) * 1e3
    check_allocated(allocator)
    answer = session.answer(packets)
    reply = reply_from(qwen, ask, views, answer, allocate_ms)
    glance_tokens = unshown_tokens(glancer.glances, packets)
    encode = sum(Costs(qwen).encode(count) for packet in packets for count in segment_counts(packet, ask.encode))
    flops = replace(
        _glanced_flops(qwen, ask, views, answer, glancer.glances), encode=encode + Costs(qwen).encode(glance_tokens)
    )
    prefilled = reply.prefilled + sum(result.work.prefilled_tokens for result in glancer.glances)
    return replace(reply, tokens=reply.tokens + glance_tokens, flops=flops, prefilled=prefilled)


@torch.inference_mode()
def glance_by_similarity(qwen: QwenVL, question: str, overview: TokenPacket) -> Feedback:
    """Return a glance without the decoder's attention: of each region the cosine of its embedding and the most similar
    word's, above that word's mean over the regions (late interaction; Khattab and Zaharia, arXiv:2004.12832)."""
    regions = encode_packet(qwen, overview, "sparse").tokens.embeds[0].float()
    words = torch.from_numpy(qwen.embed_query(question).tokens)
    similarity = F.cosine_similarity(regions[:, None], words[None], dim=-1)
    above = (similarity - similarity.mean(dim=0)).amax(dim=1).clamp(min=0).numpy()
    attention = (above / max(float(above.max()), np.finfo(np.float32).tiny)).astype(np.float32)
    return Feedback(overview.stamp, overview.regions, attention, similarity.amax(dim=1).numpy())


def _glanced_flops(
    qwen: QwenVL, ask: Ask, views: Sequence[TiledFrame], answer: SessionAnswer, glances: Sequence[GlanceResult]
) -> Flops:
    """All but encoding. What a glance leaves in the cache is not computed again for the answer: it is charged once."""
    costs, result = Costs(qwen), answer.result
    prompt_tokens = EvalPrompt(qwen, views, ask.text).text_tokens + result.work.tokens_used
    layers = len(glanced_layers(qwen.layers.attending))
    looks = sum(layers * costs.attention_row(glance.prompt_tokens) for glance in glances)
    runs = [(glance.prompt_tokens, glance.work.prefilled_tokens) for glance in glances]
    runs.append((prompt_tokens, result.work.prefilled_tokens))
    return Flops(
        choose=choosing_flops(qwen.realiser, sum(view.grid.tiles for view in views)) + looks,
        prefill=sum(costs.prefill_after(tokens - new, new) for tokens, new in runs),
        decode=costs.decode([prompt_tokens] * costs.layers, len(qwen.plain_token_ids(result.text))),
    )


ARR_COC = Strategy("arr-coc", _answer, encodes=ENCODES)
ARR_COC_FIXATION = Strategy("arr-coc-fixation", partial(_answer, strategy="fixation"), encodes=ENCODES)
ARR_COC_FOVEATED = Strategy("arr-coc-foveated", partial(_answer, strategy="foveated"), encodes=ENCODES)
ARR_COC_MIXED = Strategy("arr-coc-mixed", partial(_answer, strategy="mixed"), encodes=ENCODES)
ARR_COC_QUERYSTREAM = Strategy(
    "arr-coc-querystream", partial(_answer, strategy="querystream", streaming=True), encodes=ENCODES
)
ARR_COC_GLANCE = Strategy("arr-coc-glance", partial(_answer_glanced, options=GlanceOptions()), encodes=("sparse",))
ARR_COC_GLANCE_KEEP = Strategy(
    "arr-coc-glance-keep", partial(_answer_glanced, options=GlanceOptions(keep=True)), encodes=("sparse",)
)
ARR_COC_GLANCE_DROP = Strategy(
    "arr-coc-glance-drop", partial(_answer_glanced, options=GlanceOptions(keep=False)), encodes=("sparse",)
)
ARR_COC_GLANCE_SIMILARITY = Strategy(
    "arr-coc-glance-similarity",
    partial(_answer_glanced, options=GlanceOptions(), attends=False),
    encodes=("sparse",),
)
ARR_COC_STREAM = Strategy("arr-coc-stream", partial(_answer, streaming=True), encodes=ENCODES)


EARLIER_LOOKS = 2
"""So often the first frame is asked about before anything happens."""

EVERY_S = 2.0
"""Between those looks; a stream's own time between answers (`answer.every_s`)."""


def _answer_again(qwen: QwenVL, ask: Ask, *, learns: bool) -> Reply:
    """The answer about the newest frame and, of a clip, those before it; each was answered about when it was new."""
    views = ask.views(qwen)
    allocator = allocator_for(qwen, ask, views, explore=AllocatorOptions().explore)
    session = EvalSession(qwen, ask, feedback=learns)
    frames, times_s = _stream_frames(ask)
    first = len(frames) - len(ask.frames)
    clip: list[Packet] = []
    encoded: list[VisionStats] = []
    for number, (frame, stamp) in enumerate(zip(frames, stamps_of(times_s), strict=True)):
        started_s = time.perf_counter()
        packet = allocator.allocate(frame, stamp)
        allocate_ms = (time.perf_counter() - started_s) * 1e3
        clip = [*clip, packet] if number > first else [packet]
        answer = session.answer(clip)
        encoded += answer.encoded if number >= first else ()
        allocator.on_answer(answer.result.feedback)
    check_allocated(allocator)
    reply = reply_from(qwen, ask, views, SessionAnswer(answer.result, tuple(encoded)), allocate_ms)
    if not learns:
        return reply
    choose = reply.flops.choose + _looking_flops(qwen, ask, views, answer)
    return replace(reply, flops=replace(reply.flops, choose=choose))


def _stream_frames(ask: Ask) -> tuple[list[Rgb], list[float]]:
    """All frames that the stream sees, and when: the first one some times more, those before, those asked about."""
    frames, times_s = [*ask.before, *ask.frames], [*ask.before_s, *ask.times_s]
    earlier_s = [times_s[0] - EVERY_S * looks for looks in range(EARLIER_LOOKS, 0, -1)]
    return frames[:1] * EARLIER_LOOKS + frames, earlier_s + times_s


def _looking_flops(qwen: QwenVL, ask: Ask, views: Sequence[TiledFrame], answer: SessionAnswer) -> int:
    """FLOPs of reading the attention of the answer's first tokens."""
    prompt_tokens = EvalPrompt(qwen, views, ask.text).text_tokens + answer.result.work.tokens_used
    looks = PROBED_LAYERS * min(PROBED_TOKENS, answer.result.work.text_tokens + 1)
    return looks * Costs(qwen).attention_row(prompt_tokens)


ENCODES_AGAIN: tuple[Encode, ...] = ("sparse", "incremental", "prune", "weighted")

ARR_COC_AGAIN = Strategy("arr-coc-again", partial(_answer_again, learns=False), encodes=ENCODES_AGAIN)
ARR_COC_FEEDBACK = Strategy("arr-coc-feedback", partial(_answer_again, learns=True), encodes=ENCODES_AGAIN)
