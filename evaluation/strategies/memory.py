"""This project's way with a visual memory: what a stream showed stays, and an answer adds what is new.

A lone question has a separate memory: of one picture that is a snapshot, and of a clip a key frame followed by what
changed and what was not shown yet.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.group import GroupOptions
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.video.picture_allocator import PictureAllocator
from evaluation.strategies.arr_coc import check_allocated, choosing_flops
from evaluation.strategies.base import Ask, Reply, Strategy, stamps_of, stream_strategy

LONGEST_S = 600.0
"""A clip has one group, unless it is cut or full."""


class _Camera:
    """One clip: its allocator, whose group of pictures grows, and the session that holds the group in its cache."""

    def __init__(self, qwen: QwenVL, options: GroupOptions) -> None:
        self._qwen = qwen
        self._options = options
        self._allocator: PictureAllocator | None = None
        self._frames = 0

    def __call__(self, ask: Ask) -> Reply:
        qwen = self._qwen
        if self._allocator is None:
            budget = ask.budget.of(ask.views(qwen)[-1].grid.tiles)
            options = AllocatorOptions(budget=budget, explore=0.0, memory=self._options)
            self._allocator = PictureAllocator(qwen, ask.text, options, ask.encode)
            self._session = AnswerSession(qwen, AnswerOptions(ask.encode, Decoding(ask.max_tokens), feedback=False))
        else:
            self._allocator.set_query(qwen.embed_query(ask.text))
        allocator, session = self._allocator, self._session
        started_s = time.perf_counter()
        for frame, stamp in zip(ask.frames, stamps_of(ask.times_s), strict=True):
            allocator.allocate(frame, replace(stamp, frame_index=self._frames))
            self._frames += 1
        allocate_ms = (time.perf_counter() - started_s) * 1e3
        check_allocated(allocator)
        for _ in session.answer(allocator.group, ask.text):
            pass
        allocator.on_answer(None)
        result, newest = session.last, allocator.group[-1]
        of_tokens = newest.grid.tiles * len(ask.frames)
        return Reply(
            text=result.text,
            tokens=result.tokens_used,
            of_tokens=of_tokens,
            regions=result.regions,
            grid=newest.grid,
            flops=replace(result.work.parts, choose=choosing_flops(qwen.realiser, of_tokens)),
            ttft_ms=allocate_ms + result.first_token_ms,
            prefilled=result.prefilled_tokens,
            cached_tokens=result.tokens_used - result.appended_tokens,
        )


MEMORY: dict[str, Strategy] = {
    name: stream_strategy(name, partial(_Camera, options=replace(options, seconds=LONGEST_S)))
    for name, options in (
        ("memory", GroupOptions()),
        ("memory-4", GroupOptions(frames=4)),
    )
}
"""The strategies by name: of one picture that is kept up to date, and of the four newest frames."""
