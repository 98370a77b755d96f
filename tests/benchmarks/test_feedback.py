"""The parts of the feedback benchmark that judge, and that both kinds of answers are about the same pictures."""

from __future__ import annotations

import numpy as np
import pytest

from arr_coc.qwen.attention import PROBED_TOKENS
from arr_coc.qwen.session import AnswerSession
from arr_coc.qwen.untrained import LANGUAGE_LAYERS
from benchmarks.feedback import WARM_UP, answer_times_ms, costs, learning_times_ms, report_of, whole_model
from benchmarks.support.answer_ways import TEXT_TOKENS, speak_on
from tests.support.models import tiny_qwen


def test_the_cost_is_what_pairs_differ_by() -> None:
    figures = costs({True: [11.0, 30.0, 12.0], False: [10.0, 10.0, 10.5]})
    assert figures == {"without_ms": 10.0, "with_ms": 12.0, "cost_ms": 1.5}
    result = report_of(figures)
    assert result["cost_a_token_ms"] == pytest.approx(1.5 / PROBED_TOKENS, abs=1e-4)
    assert result["share_of_answer"] == 0.15


def test_the_whole_model_is_looked_at_as_little_as_a_part_of_it() -> None:
    few, many = (
        {"without_ms": time_ms, "with_ms": 0.0, "cost_ms": cost} for time_ms, cost in ((20.0, 2.0), (26.0, 4.0))
    )
    assert whole_model(few, many) == {
        "without_ms": 20 + (LANGUAGE_LAYERS - 2) * 3,
        "with_ms": 20 + (LANGUAGE_LAYERS - 2) * 3 + 3,
        "cost_ms": 3,
    }


def test_each_picture_is_answered_about_with_feedback_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    qwen = speak_on(tiny_qwen())
    answers: list[tuple[bool, int]] = []
    answer = AnswerSession.answer

    def note(self: AnswerSession, packet: object, query: str) -> object:
        yield from answer(self, packet, query)
        answers.append((self.last.feedback is not None, packet.stamp.frame_index))
        assert self.last.work.text_tokens == TEXT_TOKENS

    monkeypatch.setattr(AnswerSession, "answer", note)
    frames = [
        np.random.default_rng(seed).integers(0, 256, (160, 224, 3), dtype=np.uint8) for seed in range(WARM_UP + 2)
    ]
    times = answer_times_ms(qwen, frames, 12)
    assert answers == [(True, 0), (False, 0), (False, 1), (True, 1), (True, 2), (False, 2), (False, 3), (True, 3)]
    assert [len(times[feedback]) for feedback in (True, False)] == [2, 2]
    assert min(times[True] + times[False]) > 0


def test_learning_is_timed_by_turns() -> None:
    frames = [
        np.random.default_rng(seed).integers(0, 256, (160, 224, 3), dtype=np.uint8) for seed in range(WARM_UP + 1)
    ]
    times = learning_times_ms(tiny_qwen(), frames, 12)
    assert [len(times[feedback]) for feedback in (True, False)] == [1, 1]
    assert times[True][0] > 0
