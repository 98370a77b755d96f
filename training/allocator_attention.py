"""What a model itself looks at: its attention on every tile while it answers, shown all tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.ops.regions import paint
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import NS_PER_S, FrameStamp
from arr_coc.video.picture_allocator import PictureAllocator
from training.allocator_cases import Case, cases_of
from training.truth import Sample

_TOKENS = 8


def attended(samples: Iterable[Sample], qwen: QwenVL) -> Iterator[Case]:
    """Cases of each sample's last frame, `wanted` being the model's attention on it, divided by its largest.

    As for feedback, attention is that of the middle layers at the answer's first eight tokens.
    """
    session = AnswerSession(qwen, AnswerOptions(encode="full", decoding=Decoding(max_tokens=_TOKENS)))
    for sample in samples:
        last = len(sample.clip.frames) - 1
        only = replace(sample, boxes=((),) * last + sample.boxes[last:])
        for case in cases_of([only]):
            shape = case.wanted.shape[0], case.wanted.shape[1]
            yield replace(case, wanted=_attention(session, sample, shape))


def _attention(session: AnswerSession, sample: Sample, shape: tuple[int, int]) -> torch.Tensor:
    """The attention on the clip's last frame: float32 [gh, gw] in [0, 1]."""
    qwen = session.qwen
    allocator = PictureAllocator(qwen, sample.question, AllocatorOptions("grid", budget=1, explore=0.0), "full")
    stamps = [FrameStamp(index, round(time_s * NS_PER_S), 0) for index, time_s in enumerate(sample.clip.times_s)]
    packets = [allocator.allocate(image, stamp) for image, stamp in zip(sample.clip.frames, stamps, strict=True)]
    for _ in session.answer(packets, sample.question):
        pass
    feedback = session.last.feedback
    assert feedback is not None, "the session's options leave it on"
    return torch.from_numpy(paint(feedback.regions, feedback.attention, shape, 0.0)).float()
