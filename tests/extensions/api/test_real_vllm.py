"""Tokens to a real vLLM server with the plugin, by name: `ARR_COC_VLLM_URL=http://127.0.0.1:8000/v1 pytest …`.

It serves the bundled model in float32, with blocks of 32 tokens and --enable-prompt-tokens-details.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import chain

import numpy as np
import pytest

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import FrameStamp, GroupPlace, TokenPacket
from arr_coc.video.picture_allocator import PictureAllocator
from evaluation.suites import named_suite
from stream.answer.qwen import QwenAnswerModel
from stream.config import AnswerConfig, Config, MemoryConfig
from stream.extensions.api.model import load_api_model
from stream.extensions.api.section import ApiSection
from tests.support.answer_models import OneClient

URL = os.environ.get("ARR_COC_VLLM_URL")

pytestmark = pytest.mark.skipif(URL is None, reason="ARR_COC_VLLM_URL names no vLLM server with the plugin")

QUESTIONS = 8
LONGEST_S = 300.0
"""The first request for log-probabilities compiles, for minutes on a busy machine."""


def served(frames: int = 1) -> OneClient:
    api = ApiSection(url=URL, picture="tokens", yes_no="", first_s=LONGEST_S)
    answer = AnswerConfig(encode="sparse", memory=MemoryConfig(frames=frames))
    config = Config(answer=answer, api=api)
    pipeline = config.pipeline.model_copy(update={"timeout_s": LONGEST_S})
    return OneClient(load_api_model(config.model_copy(update={"pipeline": pipeline})))


@pytest.fixture(scope="module")
def embedded() -> OneClient:
    qwen = load_qwen(None, device="cpu", dtype="float32")
    return OneClient(QwenAnswerModel(AnswerSession(qwen, AnswerOptions("sparse", Decoding(64)))))


def packets() -> Iterator[tuple[TokenPacket, str]]:
    """Pictures of the suites with their questions; coarse regions among the tokens."""
    qwen = load_qwen(None, device="cpu", dtype="float32")
    for question in chain(named_suite("still", QUESTIONS).questions(), named_suite("text", QUESTIONS).questions()):
        tiles = question.frames[0].shape[0] * question.frames[0].shape[1] // 1024
        allocator = PictureAllocator(qwen, question.text, AllocatorOptions("foveated", max(8, tiles * 27 // 100)))
        packet = allocator.allocate(question.frames[0], FrameStamp(0, 0, 0))
        assert isinstance(packet, TokenPacket)
        yield packet, question.text


def test_texts_and_odds_are_those_of_the_embedded_engine(embedded: OneClient) -> None:
    asking, coarse = served(), 0
    for packet, question in packets():
        coarse += int(np.count_nonzero(packet.regions[:, 0]))
        assert asking.answer(packet, question) == embedded.answer(packet, question)
    assert coarse
    (served_yes, _), (embedded_yes, _) = (
        client.score(packet, "is there a red circle?") for client in (asking, embedded)
    )
    calibration = load_qwen(None, device="cpu", dtype="float32").yes_no_calibration
    odds = calibration.scale * math.log(served_yes / (1 - served_yes)) + calibration.bias
    assert odds == pytest.approx(math.log(embedded_yes / (1 - embedded_yes)), abs=0.01)


def test_frames_of_a_group_are_computed_once() -> None:
    asking, computed = served(frames=10), []
    ((first, _), *_) = packets()
    assert asking.model.memory is not None
    for index in range(10):
        pixels = np.roll(first.host_pixels, 3 * index, axis=3)
        place, stamp = GroupPlace(1, index, 10), FrameStamp(index, index * 500_000_000, 0)
        packet = TokenPacket(stamp, first.grid, first.regions, first.relevance, pixels, 0, place)
        asking.model.memory.add(asking.client, packet)
        asking.answer(packet, "what is there?")
        assert asking.stats is not None
        computed.append(asking.stats.work.prefilled_tokens)
    assert asking.stats.work.tokens_used == 10 * len(first.regions)
    assert 0 < computed[-1] < 3 * len(first.regions)
