"""Allocation and the model on the device against the same on the CPU; decoding by captured graphs against none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from typing import Any

import numpy as np
import torch

from arr_coc.allocation.allocator import AllocatorOptions, StreamAllocator
from arr_coc.backends.cuda.device import find_device
from arr_coc.backends.registry import open_store
from arr_coc.errors import counted
from arr_coc.qwen.batching import captured
from arr_coc.qwen.encoding import IncrementalEncoder, Packet, encode_packet
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession, SlotQuestion
from arr_coc.texture.store.planes import PlaneFormat
from arr_coc.video.picture_allocator import PictureAllocator
from stream.extensions.doctor.gpu.checks import CheckFailed, CheckResult
from stream.extensions.doctor.gpu.reference import Picture, random_picture, require_close, rgb_planes, stamp

QUERY = "What do you see?"
BUDGET = 64
TEXT_TOKENS = 12
SIDE_PX = 320

EMBEDDING_ERRORS = {"float32": 1e-3, "bfloat16": 0.03}
"""Allowed difference of visual tokens from those of the CPU in float32, relative to their size."""

SCORE_ERRORS = {"cuda": 0.03, "cpu": 2e-3}
"""A GPU's convolutions round to TF32, which makes 0.006 of a score; the dead band may keep two hundredths more."""


def allocator() -> CheckResult:
    """Score and choose on the device, and compare with the host."""
    frames = sum(compare_allocator(channels) for channels in ("core13", "full40"))
    return CheckResult(f"{counted(frames, 'frame')} scored and chosen as on the CPU")


def compare_allocator(channels: str, on_device: Callable[[], AbstractContextManager[Any]] = nullcontext) -> int:
    """Compare frames of one texture profile, and return their number; `on_device` surrounds the device's work."""
    rng = np.random.default_rng(8)
    pictures = [random_picture(rng, 200, 300, "shapes") for _ in range(2)]
    stores = [open_store(PlaneFormat.of(rgb_planes(pictures[0])), name) for name in ("cuda", "cpu")]
    allocators = [StreamAllocator(AllocatorOptions(budget=20, on_device=True, channels=channels)) for _ in stores]
    tolerance = SCORE_ERRORS[find_device().place.type]
    frames = (pictures[0], pictures[1], pictures[1])
    with closing(stores[0]), closing(stores[1]):
        for index, picture in enumerate(frames):
            maps = []
            for store, allocator in zip(stores, allocators, strict=True):
                store.update(rgb_planes(picture), stamp(index))
                with store.lease() as view, on_device() if store.backend == "cuda" else nullcontext():
                    maps.append(allocator.allocate(view))
            actual, expected = maps
            require_close(actual.relevance.cpu(), expected.relevance.cpu(), f"relevance of {channels}", tolerance)
            if actual.allocation.tokens != expected.allocation.tokens:
                raise CheckFailed(
                    f"{counted(actual.allocation.tokens, 'token')} chosen, and {expected.allocation.tokens}"
                )
    return len(frames)


def whole_model(dtype: str) -> CheckResult:
    """Encode pictures with the bundled model in every way, and answer; compare with the CPU in float32."""
    reference = disable_end_tokens(load_qwen(None, device="cpu", dtype="float32"))
    device_qwen = disable_end_tokens(load_qwen(None, device=find_device().place, dtype=dtype))
    encoder = IncrementalEncoder()
    largest = 0.0
    frames = packets(reference, 3)
    with torch.inference_mode():
        for packet in frames:
            expected = encode_packet(reference, packet, "sparse").tokens.embeds
            for encoding in (
                encode_packet(device_qwen, packet, "sparse"),
                encode_packet(device_qwen, packet, "incremental", encoder),
            ):
                actual = encoding.tokens.embeds.cpu()
                if actual.shape != expected.shape:
                    raise CheckFailed(f"visual tokens are {list(actual.shape)} and should be {list(expected.shape)}")
                largest = max(largest, float((actual.float() - expected).norm() / expected.norm()))
                encoder.clear()
    if not largest <= EMBEDDING_ERRORS[dtype]:
        raise CheckFailed(f"visual tokens are off by {largest:.2g}, and {EMBEDDING_ERRORS[dtype]:g} is allowed")
    answer, reference_answer = (_answer(qwen, frames[-1]) for qwen in (device_qwen, reference))
    if dtype == "float32" and answer.token_ids != reference_answer.token_ids:
        raise CheckFailed(f"the answer is {answer.text!r} and should be {reference_answer.text!r}")
    same = sum(a == b for a, b in zip(answer.token_ids, reference_answer.token_ids, strict=True))
    finding = f"tokens off by {largest:.1g}; {same} of {TEXT_TOKENS} tokens of text the same"
    return CheckResult(
        finding, {"embedding_error": largest, "same_text_tokens": same, "device": str(device_qwen.device)}
    )


def disable_end_tokens(qwen: QwenVL) -> QwenVL:
    """Return the model without a token that ends an answer, so that all are equally long."""
    vars(qwen)["eos_ids"] = frozenset()
    return qwen


def pictures(count: int, side_px: int = SIDE_PX) -> list[Picture]:
    """Return frames in which a part changes."""
    rng = np.random.default_rng(0)
    frames = [random_picture(rng, side_px, side_px, "soft")]
    for _ in range(count - 1):
        frames.append(frames[-1].copy())
        frames[-1][: side_px // 3, : side_px // 3] = rng.integers(0, 256, 3)
    return frames


def picture_allocator(qwen: QwenVL, budget: int = BUDGET) -> PictureAllocator:
    """Return an allocator that explores nothing, so that each run chooses the same tokens."""
    return PictureAllocator(qwen, QUERY, AllocatorOptions(budget=budget, explore=0.0))


def packets(qwen: QwenVL, count: int) -> list[Packet]:
    """Return the chosen tokens of some frames."""
    allocator = picture_allocator(qwen)
    return [allocator.allocate(picture, stamp(index)) for index, picture in enumerate(pictures(count))]


def _answer(qwen: QwenVL, packet: Packet) -> Any:
    session = AnswerSession(qwen, AnswerOptions(decoding=Decoding(TEXT_TOKENS)))
    for _ in session.answer(packet, QUERY):
        pass
    return session.last


def graphs() -> CheckResult:
    """Decode by captured CUDA graphs in slots of several numbers, and compare with the stock model's forward."""
    place = find_device().place
    stock, qwen = (disable_end_tokens(load_qwen(None, device=place, dtype="float32")) for _ in range(2))
    vars(stock)["decodes_plainly"] = False
    capture = CountedCapture()
    batch = AnswerSession(qwen, AnswerOptions(decoding=Decoding(TEXT_TOKENS)), slots=4, capture=capture)
    frames = packets(qwen, 4)
    expected = [_answer(stock, frame) for frame in frames]
    groups = ((0,), (1, 0), (3, 1, 2), (2,))
    for group in groups:
        answers = batch.ask([SlotQuestion(slot, frames[slot], QUERY) for slot in group])
        while batch.open_answers:
            batch.step()
        for slot, answer in zip(group, answers, strict=True):
            if answer.error is not None:
                raise answer.error
            assert answer.result is not None
            label = f"slot {slot} of {len(group)}"
            if answer.result.token_ids != expected[slot].token_ids:
                raise CheckFailed(f"{label}: the text is {answer.result.text!r} and should be {expected[slot].text!r}")
            assert answer.result.feedback is not None
            require_close(
                answer.result.feedback.attention, expected[slot].feedback.attention, f"attention of {label}", 1e-4
            )
    if capture.error is not None:
        raise CheckFailed(f"a step cannot be captured: {capture.error}")
    if not capture.replays:
        raise CheckFailed("no step was captured")
    return CheckResult(f"{capture.captures} graphs, {capture.replays} replays: the stock model's tokens")


class CountedCapture:
    """Capture of CUDA graphs that counts them and their replays, and keeps the error of one that failed."""

    def __init__(self) -> None:
        self.captures = self.replays = 0
        self.error: str | None = None

    def __call__(self, step: Callable[[], None], device: torch.device) -> Callable[[], None]:
        try:
            replay = captured.cuda_graph(step, device)
        except RuntimeError as error:
            self.error = " ".join(str(error).split())
            raise
        self.captures += 1

        def counted() -> None:
            self.replays += 1
            replay()

        return counted
