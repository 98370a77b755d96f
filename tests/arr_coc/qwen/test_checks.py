"""Several yes/no questions about the same frames: scores of each alone, and frames that are read once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from arr_coc.errors import ContextLengthError
from arr_coc.qwen.attention import merge_feedback
from arr_coc.qwen.encoding import Packet
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession, SlotQuestion
from arr_coc.types import TokenPacket
from tests.arr_coc.qwen.test_memory import GROUP, NOTHING_NEW
from tests.arr_coc.qwen.test_session import packet, whole
from tests.support.models import FAMILIES, tiny_qwen

QUESTIONS = ("Is the cat sleeping?", "Is it?", "Is there a lamp on the table beside the window?")


def checking(
    monkeypatch: pytest.MonkeyPatch,
    family: str = "qwen3_vl",
    *,
    plainly: bool = True,
    slots: int = 1,
    **options: object,
) -> AnswerSession:
    qwen = tiny_qwen(family)
    qwen.tokenizer.add_tokens(["yes", "no"])
    if not plainly:
        monkeypatch.setattr(QwenVL, "decodes_plainly", False)
    return AnswerSession(qwen, AnswerOptions(decoding=Decoding(max_tokens=4), **options), slots)  # type: ignore[arg-type]


def odds(session: AnswerSession, packets: Packet | list[TokenPacket], *questions: str) -> list[float]:
    return [score.raw_log_odds for score in session.score_all(packets, questions)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("plainly", [True, False])
@pytest.mark.parametrize("kind", ["tokens", "memory", "whole"])
def test_each_has_the_score_that_it_has_alone(
    family: str, plainly: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packets = {"tokens": packet(), "memory": GROUP, "whole": whole()}[kind]
    encode = "full" if kind == "whole" else "sparse"
    session = checking(monkeypatch, family, plainly=plainly, encode=encode)
    scores = odds(session, packets, *QUESTIONS)
    expected = [
        odds(checking(monkeypatch, family, plainly=plainly, encode=encode), packets, question)[0]
        for question in QUESTIONS
    ]
    assert scores == pytest.approx(expected, abs=2e-5)
    assert len(set(scores)) == len(QUESTIONS)


@pytest.mark.parametrize("family", ["qwen3_vl", "qwen3_5"])
def test_a_memory_goes_on_after_checks_as_without_them(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked, plain = (checking(monkeypatch, family) for _ in range(2))
    for count in (1, 2, 3, 3):
        odds(checked, GROUP[:count], *QUESTIONS)
    assert odds(checked, [*GROUP, NOTHING_NEW], QUESTIONS[0]) == pytest.approx(
        odds(plain, [*GROUP, NOTHING_NEW], QUESTIONS[0]), abs=2e-5
    )
    answers = ["".join(session.answer([*GROUP, NOTHING_NEW], QUESTIONS[0])) for session in (checked, plain)]
    assert answers[0] == answers[1]


def test_frames_are_read_once_and_the_cache_keeps_no_question_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    single, several = (checking(monkeypatch) for _ in range(2))
    odds(single, packet(), QUESTIONS[0])
    odds(several, packet(), *QUESTIONS)
    assert several.last.work.prefilled_tokens == single.last.work.prefilled_tokens
    assert several.last.work.kept_bytes == single.last.work.kept_bytes
    assert len(several.prompts.cache) == len(single.prompts.cache)
    odds(several, packet(), *QUESTIONS)
    assert several.last.work.prefilled_tokens == len(several.prompts.question(QUESTIONS[0]))


@pytest.mark.parametrize("plainly", [True, False])
def test_feedback_is_the_most_of_any_question(plainly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    session = checking(monkeypatch, plainly=plainly)
    parts = []
    for question in QUESTIONS:
        odds(session, packet(), question)
        parts.append(session.last.feedback)
    odds(session, packet(), *QUESTIONS)
    feedback, expected = session.last.feedback, merge_feedback([part for part in parts if part is not None])
    assert feedback is not None
    assert np.allclose(feedback.attention, expected.attention, atol=1e-4)
    assert np.allclose(feedback.similarity, expected.similarity, atol=1e-4)
    assert merge_feedback([expected]) is expected
    assert odds(checking(monkeypatch, feedback=False), packet(), *QUESTIONS)


def test_other_slots_are_answered_beside_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    session, reference = (checking(monkeypatch, slots=slots) for slots in (2, 1))
    answers = session.ask(
        [
            SlotQuestion(0, packet(1), QUESTIONS[0]),
            SlotQuestion(1, packet(2), QUESTIONS[0], checks=QUESTIONS),
        ]
    )
    assert [answer.has_ended for answer in answers] == [False, True]
    assert [score.raw_log_odds for score in answers[1].scores] == pytest.approx(
        odds(reference, packet(2), *QUESTIONS), abs=2e-5
    )
    pieces = [answers[0].piece]
    while not answers[0].has_ended:
        session.step()
        pieces.append(answers[0].piece)
    assert "".join(pieces) == "".join(reference.answer(packet(1), QUESTIONS[0]))


def test_any_question_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContextLengthError, match="ask a shorter question"):
        odds(checking(monkeypatch), packet(), QUESTIONS[0], "why " * 4000)


def test_one_check_is_bit_for_bit_a_score_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    checker, reference = (checking(monkeypatch) for _ in range(2))
    assert odds(checker, GROUP, QUESTIONS[0]) == [reference.score_yes_no(GROUP, QUESTIONS[0]).raw_log_odds]
