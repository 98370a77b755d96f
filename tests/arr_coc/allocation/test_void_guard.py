"""The guard against pictures of nothing with the shipped model: a glance at one does not overrule it, an answer may."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from arr_coc.allocation.allocator import AllocatorOptions
from arr_coc.allocation.glance import GlanceOptions
from arr_coc.allocation.packets import overview_packet
from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import Feedback, FramePlanes, FrameStamp
from arr_coc.video.picture_allocator import FrameAllocator
from stream.scenes import load_scene
from tests.arr_coc.allocation.test_structure import blank, drops, slope, white_noise

QUESTION = "What does the sign say?"
STAMP = FrameStamp(0, 0, 0)


@pytest.fixture(scope="module")
def session() -> AnswerSession:
    return AnswerSession(load_qwen(None, device="cpu"))


@pytest.fixture(params=["trained", "untrained"])
def frames(request: pytest.FixtureRequest, session: AnswerSession) -> Iterator[FrameAllocator]:
    qwen: QwenVL = session.qwen
    assert qwen.realiser is not None
    options = AllocatorOptions(budget=96, glance=GlanceOptions())
    allocator = FrameAllocator(options, qwen.realiser if request.param == "trained" else None)
    allocator.allocator.set_query(qwen.embed_query(QUESTION))
    yield allocator
    allocator.close()


def strategies(frames: FrameAllocator, session: AnswerSession, picture: np.ndarray) -> tuple[str, str]:
    """Strategies that `auto` means before a glance at the picture, and after it."""
    first = frames.allocate(FramePlanes("rgb", (picture,)), STAMP).allocation
    with frames.texture.lease() as view:
        packet = overview_packet(view, first.glance_tokens)
        frames.allocator.on_glance()
        frames.allocator.apply_glance(session.glance(packet, QUESTION).feedback)
        return first.strategy, frames.allocator.reallocate(view).strategy


@pytest.mark.parametrize("picture", [white_noise, drops, slope, blank])
def test_nothing_is_spread_evenly_over_also_after_a_glance(
    frames: FrameAllocator, session: AnswerSession, picture: Callable[[int], np.ndarray]
) -> None:
    assert strategies(frames, session, picture(5)) == ("grid", "grid")


def test_a_scene_is_not_nothing(frames: FrameAllocator, session: AnswerSession) -> None:
    assert "grid" not in strategies(frames, session, load_scene("demo").render(6))


def test_attention_overrules_the_guard(frames: FrameAllocator, session: AnswerSession) -> None:
    assert strategies(frames, session, white_noise(5)) == ("grid", "grid")
    attention = np.zeros(2, np.float32)
    attention[0] = 1
    regions = np.array([[0, 3, 4], [0, 8, 12]], np.int32)
    with frames.texture.lease() as view:
        frames.allocator.mark_answered()
        frames.allocator.apply_feedback(Feedback(view.stamp, regions, attention, attention))
        assert frames.allocator.reallocate(view).strategy != "grid"
