"""Packets of a group of pictures that are read in steps, compared with those read for a question."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from arr_coc.errors import OptionError
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import TokenPacket, finish
from tests.arr_coc.qwen.test_memory import (
    GROUP,
    OTHER_QUERY,
    QUERY,
    answer_text,
    frame,
    next_logits,
    reference_logits,
    session,
    video,
)
from tests.support.models import FAMILIES


def read(speaking: AnswerSession, packets: list[TokenPacket]) -> None:
    reading = speaking.slots[0].read_ahead(packets)
    finish(reading.steps())
    reading.commit()


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One or two tokens a step, so that every packet takes several."""
    monkeypatch.setattr(QwenVL, "step_tokens", 2)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_equal_those_of_one_prefill(family: str) -> None:
    speaking = session(family)
    for count in (1, 2, 3):
        read(speaking, GROUP[:count])
        before = len(speaking.prompts.cache)
        logits = next_logits(speaking, GROUP[:count], QUERY)
        assert torch.allclose(logits, reference_logits(speaking, GROUP[:count], QUERY), atol=1e-5)
        question = len(speaking.prompts.question(QUERY)) + len(speaking.prompts.ids.frame_close)
        assert len(speaking.prompts.cache) == before + question


@pytest.mark.parametrize("family", FAMILIES)
def test_a_reading_that_is_given_up_leaves_no_trace(family: str) -> None:
    """After any number of steps, an answer is that of a session which never began to read."""
    speaking = session(family)
    answer_text(speaking, GROUP[:2])
    for count in range(0, 60, 7):
        steps = speaking.slots[0].read_ahead(GROUP).steps()
        for _ in zip(range(count), steps, strict=False):
            pass
        assert answer_text(speaking, GROUP[:2], OTHER_QUERY) == answer_text(session(family), GROUP[:2], OTHER_QUERY)
        assert speaking.last.work.appended_tokens == 0
    assert answer_text(speaking, GROUP) == answer_text(session(family), GROUP)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_new_group_is_read_while_the_old_one_answers(family: str) -> None:
    speaking = session(family)
    answer_text(speaking, GROUP)
    rebuilt = frame(9, [0, 3, 1, 5], group=2, at=0)
    reading = speaking.slots[0].read_ahead([rebuilt])
    for number, _ in enumerate(reading.steps()):
        if number % 20 == 5:
            assert answer_text(speaking, GROUP) == answer_text(session(family), GROUP)
            assert speaking.last.work.appended_tokens == 0
    assert reading.fits
    reading.commit()
    assert answer_text(speaking, [rebuilt]) == answer_text(session(family), [rebuilt])
    assert speaking.last.work.appended_tokens == 0


def test_a_reading_fits_no_other_group() -> None:
    speaking = session()
    answer_text(speaking, GROUP[:1])
    reading = speaking.slots[0].read_ahead(GROUP[:2])
    assert reading.fits
    answer_text(speaking, [frame(5, [1, 2], group=2, at=0)])
    assert not reading.fits


def test_a_packet_that_only_supersedes_is_read() -> None:
    speaking = session()
    answer_text(speaking, GROUP[:1])
    packets = [GROUP[0], frame(1, [], [1])]
    read(speaking, packets)
    assert answer_text(speaking, packets) == answer_text(session(), packets)
    assert speaking.last.work.tokens_used == 3


def test_several_frames_are_not_read_ahead() -> None:
    with pytest.raises(OptionError, match="kept up to date"):
        session().slots[0].read_ahead(video(2))
    with pytest.raises(OptionError, match="kept up to date"):
        session().slots[0].read_ahead([replace(GROUP[0], place=None)])
