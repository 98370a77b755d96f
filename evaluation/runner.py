"""Asks: every question of a suite, in every way of the plan, each answer written down as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arr_coc.qwen.qwenvl import QwenVL
from evaluation.journal import Journal, Row, key_of
from evaluation.looking import looking
from evaluation.memory import peak_bytes, reset_peak
from evaluation.plan import Way
from evaluation.question import Question
from evaluation.scoring import score
from evaluation.strategies.base import Ask


@dataclass(frozen=True, slots=True)
class Suite:
    """Questions under one name; `hash` names their content. `questions` may be called more than once."""

    name: str
    hash: str
    questions: Callable[[], Iterable[Question]]


@dataclass(frozen=True, slots=True)
class Asking:
    """Who is asked: a model under its hash, with at most `max_tokens` an answer."""

    qwen: QwenVL
    model_hash: str
    max_tokens: int = 64

    def key(self, suite: Suite, way: Way, question_id: str) -> Row:
        """What makes an answer the one it is; as `journal.KEY` names it."""
        return {
            "model": self.model_hash,
            "dtype": str(self.qwen.model.dtype).removeprefix("torch."),
            "suite": suite.name,
            "suite_hash": suite.hash,
            "strategy": way.strategy.name,
            "budget": str(way.budget),
            "encode": way.encode,
            "seed": way.seed,
            "max_tokens": self.max_tokens,
            "id": question_id,
        }


def run_suite(
    asking: Asking, suite: Suite, ways: Sequence[Way], journal: Journal, told: Callable[[Question], None]
) -> list[Row]:
    """Every answer that the journal does not hold yet; returns all rows of the suite, question by question.

    A strategy's first answer is made twice, and the second one kept: what the first use of anything takes is not its
    cost.
    `told` hears of each question when it has been answered in every way.
    """
    keys = []
    warm: set[str] = set()
    for question in suite.questions():
        for way in ways:
            key = asking.key(suite, way, question.id)
            keys.append(key_of(key))
            if keys[-1] in journal:
                continue
            if way.strategy.name not in warm:
                _answer(asking, way, question)
                warm.add(way.strategy.name)
            journal.add({**key, **_answer(asking, way, question)})
        told(question)
    return journal.rows(iter(keys))


def _answer(asking: Asking, way: Way, question: Question) -> dict[str, Any]:
    ask = Ask(
        question.frames,
        question.times_s,
        question.text,
        way.budget,
        way.encode,
        way.seed,
        asking.max_tokens,
        question.before,
        question.before_s,
    )
    reset_peak(asking.qwen.device)
    reply = way.strategy.answer(asking.qwen, ask)
    return {
        "kind": question.kind,
        "group": question.group,
        "text": reply.text,
        "score": score(question, reply.text),
        "tokens": reply.tokens,
        "of_tokens": reply.of_tokens,
        "flops": asdict(reply.flops) | {"total": reply.flops.total},
        "ttft_ms": reply.ttft_ms,
        "peak_bytes": peak_bytes(asking.qwen.device),
        **asdict(looking(question, reply)),
    }
