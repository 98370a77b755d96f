"""This project's way with a visual memory: what a stream showed stays, and an answer adds what is new.

A lone question has a separate memory: of one picture, or of the newest frame of a clip, that is a snapshot.
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
from evaluation.strategies.camera import CameraOptions, StreamCamera
from stream.answer.idle import LOCKSTEP_TOKENS_PER_S

LONGEST_S = 600.0
"""A clip has one group, unless it is cut or full."""

IDLE_SHARE = 0.25
"""As a run with defaults has it on a CPU."""


class _Camera:
    """One clip as a run with defaults shows it, with the idle time that a file has between two answers."""

    def __init__(self, qwen: QwenVL) -> None:
        self._qwen = qwen
        self._camera: StreamCamera | None = None
        self._shown_s = 0.0

    def __call__(self, ask: Ask) -> Reply:
        qwen, camera = self._qwen, self._camera
        if camera is None:
            options = CameraOptions(ask.budget, GroupOptions(seconds=LONGEST_S), explore=0.0, max_tokens=ask.max_tokens)
            camera = self._camera = StreamCamera(qwen, options)
        else:
            idle_s = ask.times_s[-1] - self._shown_s
            camera.idle(int(IDLE_SHARE * idle_s * LOCKSTEP_TOKENS_PER_S / qwen.step_tokens))
        camera.ask(ask.text)
        began_s = time.perf_counter()
        for frame, at_s in zip(ask.frames, ask.times_s, strict=True):
            camera.show(frame, at_s)
        self._shown_s = ask.times_s[-1]
        show_ms = (time.perf_counter() - began_s) * 1e3
        text = camera.answer()
        result, grid = camera.last, camera.grid
        of_tokens = grid.tiles * len(ask.frames)
        return Reply(
            text=text,
            tokens=result.work.tokens_used,
            of_tokens=of_tokens,
            regions=result.regions,
            grid=grid,
            flops=replace(result.operations.parts, choose=choosing_flops(qwen.realiser, of_tokens)),
            ttft_ms=show_ms + result.first_token_ms,
            prefilled=result.work.prefilled_tokens,
            cached_tokens=result.work.tokens_used - result.work.appended_tokens,
        )


class _Frames:
    """One clip of which the newest frames are shown, each whole: its allocator and session."""

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
            tokens=result.work.tokens_used,
            of_tokens=of_tokens,
            regions=result.regions,
            grid=newest.grid,
            flops=replace(result.operations.parts, choose=choosing_flops(qwen.realiser, of_tokens)),
            ttft_ms=allocate_ms + result.first_token_ms,
            prefilled=result.work.prefilled_tokens,
            cached_tokens=result.work.tokens_used - result.work.appended_tokens,
        )


MEMORY: dict[str, Strategy] = {
    "memory": stream_strategy("memory", _Camera),
    "memory-4": stream_strategy("memory-4", partial(_Frames, options=GroupOptions(frames=4, seconds=LONGEST_S))),
}
"""The strategies by name: of one picture that is kept up to date, and of the four newest frames."""
