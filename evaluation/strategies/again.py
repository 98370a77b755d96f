"""A stream that is asked the same at every frame, with what its answers teach, and without.

Both see the same frames as often, blend relevance over time and explore as a stream does by itself. What an answer
teaches is the decoder's attention on its tokens, and their similarity with the question
(arr_coc/allocation/feedback.py); the one is
told of it before the next frame, the other is not. Nothing else differs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.qwen.attention import PROBED_LAYERS, PROBED_TOKENS
from arr_coc.qwen.encoding import Packet, VisionReport
from arr_coc.qwen.flops import Costs
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import Encode
from evaluation.prompting import Prompt
from evaluation.strategies.arr_coc import allocator_for, check_allocated, reply_from
from evaluation.strategies.base import Ask, Reply, Strategy, stamps_of
from evaluation.strategies.speaking import Speaking, Spoken
from evaluation.views import View

EARLIER_LOOKS = 2
"""So often the first frame is asked about before anything happens."""

EVERY_S = 2.0
"""Between those looks; a stream's own time between answers (`answer.every_s`)."""


def _answer(qwen: QwenVL, ask: Ask, *, learns: bool) -> Reply:
    """The answer about the newest frame and, of a clip, those before it; each was answered about when it was new."""
    views = ask.views(qwen)
    allocator = allocator_for(qwen, ask, views, explore=AllocatorOptions().explore)
    speaking = Speaking(qwen, ask, feedback=learns)
    frames, times_s = _seen(ask)
    first = len(frames) - len(ask.frames)
    clip: list[Packet] = []
    encoded: list[VisionReport] = []
    for number, (frame, stamp) in enumerate(zip(frames, stamps_of(times_s), strict=True)):
        started_s = time.perf_counter()
        packet = allocator.allocate(frame, stamp)
        allocate_ms = (time.perf_counter() - started_s) * 1e3
        clip = [*clip, packet] if number > first else [packet]
        spoken = speaking.answer(clip)
        encoded += spoken.encoded if number >= first else ()
        allocator.on_answer(spoken.result.feedback)
    check_allocated(allocator)
    reply = reply_from(qwen, ask, views, Spoken(spoken.result, tuple(encoded)), allocate_ms)
    if not learns:
        return reply
    choose = reply.flops.choose + _looking_flops(qwen, ask, views, spoken)
    return replace(reply, flops=replace(reply.flops, choose=choose))


def _seen(ask: Ask) -> tuple[list[Rgb], list[float]]:
    """All frames that the stream sees, and when: the first one some times more, those before, those asked about."""
    frames, times_s = [*ask.before, *ask.frames], [*ask.before_s, *ask.times_s]
    earlier_s = [times_s[0] - EVERY_S * looks for looks in range(EARLIER_LOOKS, 0, -1)]
    return frames[:1] * EARLIER_LOOKS + frames, earlier_s + times_s


def _looking_flops(qwen: QwenVL, ask: Ask, views: Sequence[View], spoken: Spoken) -> int:
    """What it takes to see what the answer's first tokens look at."""
    prompt_tokens = Prompt(qwen, views, ask.text).text_tokens + spoken.result.tokens_used
    looks = PROBED_LAYERS * min(PROBED_TOKENS, spoken.result.text_tokens + 1)
    return looks * Costs(qwen).look(prompt_tokens)


ENCODES: tuple[Encode, ...] = ("sparse", "incremental", "prune", "weighted")

ARR_COC_AGAIN = Strategy("arr-coc-again", partial(_answer, learns=False), encodes=ENCODES)
ARR_COC_FEEDBACK = Strategy("arr-coc-feedback", partial(_answer, learns=True), encodes=ENCODES)
