"""Plan, asking, progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arr_coc.errors import counted
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.types import Encode
from evaluation.errors import ChoiceError
from evaluation.journal import AnswerJournal, Row, key_of, peak_bytes, reset_peak
from evaluation.questions import EvalQuestion, PendingQuestion
from evaluation.scoring import normalise, score, score_regions
from evaluation.strategies.base import EVERYTHING, Ask, Budget, Reply, Strategy, Stream
from evaluation.strategies.catalogue import strategy_named

ENCODES: tuple[Encode, ...] = ("sparse", "incremental", "prune", "weighted", "full")


@dataclass(frozen=True, slots=True)
class StrategyRun:
    """One strategy at one budget, with one encoding and one seed."""

    strategy: Strategy
    budget: Budget
    encode: Encode
    seed: int = 0


def plan(strategies: str, budgets: str, encodes: str | None, seeds: int) -> list[StrategyRun]:
    """Runs of strategies, from comma-separated names.

    Args:
        strategies: Names of strategies.
        budgets: Shares of all tokens ("27%"), or numbers of tokens a frame.
        encodes: Encodings. Without them, or with none that it knows, a strategy encodes in its own way.
        seeds: Number of runs of a strategy that draws at random.

    Raises:
        ChoiceError: A name does not exist, no strategy of the list knows an encoding, or `seeds` is below 1.
    """
    selection = [strategy_named(name) for name in split(strategies, "--strategy")]
    budget_list = [Budget.parse(text) for text in split(budgets, "--budget")]
    encodings = _encodes(encodes, selection)
    if seeds < 1:
        raise ChoiceError(f"--seeds is a whole number of at least 1, got {seeds}")
    return [
        StrategyRun(strategy, budget, encode, seed)
        for strategy in selection
        for budget in (budget_list if strategy.budgeted else [EVERYTHING])
        for encode in _strategy_encodings(strategy, encodings)
        for seed in range(seeds if strategy.seeded else 1)
    ]


def split(text: str, option: str) -> list[str]:
    """The parts of a comma-separated list, each once. Raises ChoiceError if there is none."""
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise ChoiceError(f"{option} names nothing; leave it out, or give at least one name")
    return parts


def _encodes(text: str | None, strategies: Sequence[Strategy]) -> list[str]:
    encodings = split(text, "--encode") if text is not None else []
    for name in encodings:
        if name not in ENCODES:
            raise ChoiceError(f"unknown encoding {name!r}; there are {', '.join(ENCODES)}")
        if not any(name in strategy.encodes for strategy in strategies):
            names = ", ".join(strategy.name for strategy in strategies)
            raise ChoiceError(f"--encode {name} suits none of the strategies {names}; leave it out, or add arr-coc")
    return encodings


def _strategy_encodings(strategy: Strategy, encodings: Sequence[str]) -> list[Encode]:
    return [encode for encode in strategy.encodes if encode in encodings] or [strategy.encodes[0]]


EVERY_S = 1.0


class Progress:
    """Counter of questions, printed once a second."""

    def __init__(self, name: str) -> None:
        self._name, self._count, self._told_s = name, 0, 0.0

    def step(self, question: PendingQuestion) -> None:
        """One more question has been answered in every way."""
        self._count += 1
        if time.monotonic() - self._told_s >= EVERY_S:
            self._say("\r")
            self._told_s = time.monotonic()

    def finish(self) -> None:
        """End the line of the count."""
        self._say("\n")

    def _say(self, end: str) -> None:
        if sys.stderr.isatty():
            print(f"{self._name}: {counted(self._count, 'question')}", end=end, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Suite:
    """Questions under one name; `hash` names their content. `questions` may be called more than once."""

    name: str
    hash: str
    questions: Callable[[], Iterable[PendingQuestion]]


@dataclass(frozen=True, slots=True)
class ModelUnderTest:
    """Model that is asked, under its hash, with at most `max_tokens` an answer."""

    qwen: QwenVL
    model_hash: str
    max_tokens: int = 64

    def key(self, suite: Suite, way: StrategyRun, question_id: str) -> Row:
        """Identity of an answer; as `journal.KEY` names it."""
        return {
            "model": self.model_hash,
            "dtype": self.qwen.weights_dtype,
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
    asking: ModelUnderTest,
    suite: Suite,
    ways: Sequence[StrategyRun],
    journal: AnswerJournal,
    on_answered: Callable[[PendingQuestion], None],
    *,
    keep_regions: bool = False,
) -> list[Row]:
    """Answer what the journal does not hold yet.

    A strategy's first answer is made twice, and the second one kept: what the first use of anything takes is not its
    cost. Questions of a group are answered by one stream of each strategy. If the journal holds the first of them, a
    strategy that keeps something from answer to answer answers those once more. Frames of a question whose answers the
    journal holds are not read.

    Args:
        asking: The model.
        suite: The questions.
        ways: Strategies at their budgets; each answers all questions.
        journal: Earlier answers, to which new ones are added.
        on_answered: Called with each question once it has been answered in every way.
        keep_regions: Whether new rows have `regions` and `grid`, of the newest frame, as lists.

    Returns:
        All rows of the suite, question by question.
    """
    keys = []
    warm: set[str] = set()
    clip: list[PendingQuestion] = []
    streams: dict[int, tuple[Stream, int]] = {}
    for pending in suite.questions():
        if not clip or not pending.group or pending.group != clip[-1].group:
            clip, streams = [], {}
        clip.append(pending)
        question: EvalQuestion | None = None
        for number, way in enumerate(ways):
            key = asking.key(suite, way, pending.id)
            keys.append(key_of(key))
            if keys[-1] in journal:
                continue
            question = question or pending.load()
            if way.strategy.name not in warm:
                _reply(asking, way, way.strategy.stream(asking.qwen), question)
                warm.add(way.strategy.name)
            stream, answered = streams.get(number) or (way.strategy.stream(asking.qwen), 0)
            for predecessor in clip[answered:-1] if way.strategy.begin is not None else ():
                _reply(asking, way, stream, predecessor.load())
            streams[number] = stream, len(clip)
            row = _answer(asking, way, stream, question)
            if not keep_regions:
                del row["regions"], row["grid"]
            journal.add({**key, **row})
        on_answered(pending)
    return journal.rows(iter(keys))


def _reply(asking: ModelUnderTest, way: StrategyRun, stream: Stream, question: EvalQuestion) -> Reply:
    new = _new_frames(question) if way.strategy.begin is not None else 0
    ask = Ask(
        question.frames[new:],
        question.times_s[new:],
        question.text,
        way.budget,
        way.encode,
        way.seed,
        asking.max_tokens,
        question.before,
        question.before_s,
    )
    return stream(ask)


def _new_frames(question: EvalQuestion) -> int:
    """Index of the first frame that the group's earlier questions were not about; of the newest one if there is
    none."""
    seen_s = question.seen_s
    if seen_s is None:
        return 0
    return min(sum(at_s <= seen_s for at_s in question.times_s), len(question.times_s) - 1)


def _answer(asking: ModelUnderTest, way: StrategyRun, stream: Stream, question: EvalQuestion) -> dict[str, Any]:
    reset_peak(asking.qwen.device)
    reply = _reply(asking, way, stream, question)
    places = score_regions(question, reply)
    return {
        "kind": question.kind,
        "group": question.group or question.clip,
        **({"tags": dict(question.tags)} if question.tags else {}),
        "question": question.text,
        "answers": list(question.answers),
        "text": reply.text,
        "score": (places.iou or 0.0) if question.asks_places else score(question, reply.text),
        "stale": normalise(reply.text) in map(normalise, question.stale) if question.stale else None,
        "tokens": reply.tokens,
        "of_tokens": reply.of_tokens,
        "kept": reply.cached_tokens,
        "prefilled": reply.prefilled,
        "flops": asdict(reply.flops) | {"total": reply.flops.total},
        "ttft_ms": reply.ttft_ms,
        "peak_bytes": peak_bytes(asking.qwen.device),
        **asdict(places),
        "regions": reply.regions.tolist(),
        "grid": list(reply.grid.shape),
    }
