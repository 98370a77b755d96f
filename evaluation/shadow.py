"""Budgets that follow shadow checks, beside fixed ones; and scores by which two answers count as the same.

    python -m evaluation.shadow [--suite video,stream] [--count 300,700] [--rows FILE] [--out FILE]

Each question is answered by `arr-coc` at every budget of `LEVELS` and with all tokens. A fixed budget, and one that
shadow checks move (`ShadowRule`), are then read off the same answers: the questions of a suite come one after another,
as from one camera, clip by clip in `ORDERS` orders by chance, and with easy and hard clips in blocks by turns.

- `auc`: how often a pair of answers that are both right scores higher than a pair of which one is right; a tie counts
  half. The pairs: an answer at `PAIRED` per cent of the tokens, and the one with all of them.
- `acting`: right answers, tokens and FLOPs of an answer, the checks' own included, and changes of the budget. `gain`:
  right answers minus those of a fixed budget of equal tokens, or equal FLOPs, on the line between measured budgets.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from arr_coc.qwen.loading import load_qwen
from arr_coc.qwen.options import AnswerOptions, Decoding
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.session import AnswerSession
from arr_coc.types import Encode
from evaluation.news import answer_logs
from evaluation.questions import EvalQuestion
from evaluation.scoring import score
from evaluation.strategies.arr_coc import ARR_COC
from evaluation.strategies.base import Ask, Budget, Strategy
from evaluation.strategies.sampling import FULL
from evaluation.suites import named_suite
from stream.answer.agreement import text_agreement
from stream.extensions.shadow.budget import ShadowRule
from stream.extensions.shadow.section import ShadowSection
from stream.monitor.machine import machine

RESULTS = Path(__file__).parent / "results" / "shadow.json"

LEVELS = (5.0, 7.07, 10.0, 14.14, 20.0, 28.28, 40.0)
"""Budgets in per cent of the tiles, each 1.41 times the one before."""

PAIRED = 10.0

STARTS = (0, 2)
"""Configured budgets: places in LEVELS."""

EVERY = (1, 5, 20)
"""Answers of which one is checked."""

AGREE = ShadowSection().agree
ORDERS = 40
BLOCKS = 4
"""Blocks of easy and hard questions, by turns."""

WORDINGS = {
    "do these say the same?": 'Do these two answers say the same? "{one}" and "{other}"',
    "is … the same as …?": '{question} Is "{one}" the same as "{other}"?',
    "is it …?": "{question} Is it {one}?",
}


class ShadowSession:
    """Answers to questions at every budget, and scores of two answers about the whole frames."""

    def __init__(self, qwen: QwenVL) -> None:
        self._qwen = qwen

    def row(self, question: EvalQuestion) -> dict[str, Any]:
        """Answers by their budget: text, score, visual tokens and FLOPs; `least`: log probability of the least likely
        token of that text with all tokens; scores of the pair at `PAIRED`."""
        full = self._reply(question, FULL, 100.0, "full")
        answers = {str(level): self._reply(question, ARR_COC, level, "sparse") for level in LEVELS}
        session = AnswerSession(self._qwen, AnswerOptions(decoding=Decoding(64), feedback=False))
        views = Ask(question.frames, question.times_s, question.text, Budget(), "sparse").views(self._qwen)
        packets = [view.token_packet(np.ones(view.grid.shape, bool)) for view in views]
        least: dict[str, float] = {}
        for answer in answers.values():
            text = answer["text"]
            if text not in least:
                least[text] = float(answer_logs(self._qwen, session, packets, question.text, text).min())
            answer["least"] = least[text]
        pair = answers[str(PAIRED)]["text"].rstrip("."), full["text"].rstrip(".")
        queries = [wording.format(question=question.text, one=pair[0], other=pair[1]) for wording in WORDINGS.values()]
        scores = session.score_all(packets, queries)
        odds = {name: yes_no.raw_log_odds for name, yes_no in zip(WORDINGS, scores, strict=True)}
        return {"kind": question.kind, "group": question.group, "full": full, "answers": answers, "odds": odds}

    def _reply(self, question: EvalQuestion, strategy: Strategy, percent: float, encode: Encode) -> dict[str, Any]:
        ask = Ask(question.frames, question.times_s, question.text, Budget(percent), encode)
        reply = strategy.answer(self._qwen, ask)
        right = score(question, reply.text)
        return {"text": reply.text, "score": right, "tokens": reply.tokens, "flops": reply.flops.total}


def measure_rows(suite: str, count: int, path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a suite's first questions; those that `path` holds are not made again."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    rows = {row["id"]: row for row in map(json.loads, lines) if row["suite"] == suite}
    session: ShadowSession | None = None
    with path.open("a", encoding="utf-8") as file:
        for number, question in enumerate(named_suite(suite, count, "choose").questions()):
            if number not in rows:
                session = session or ShadowSession(load_qwen())
                rows[number] = {"suite": suite, "id": number, **session.row(question.load())}
                file.write(json.dumps(rows[number]) + "\n")
                file.flush()
            yield rows[number]


def auc(rows: Sequence[dict[str, Any]], scored: Callable[[dict[str, Any]], float]) -> float | None:
    """Share of pairs of which both answers are right that score higher than one of which one is; a tie counts half."""
    same, other = (np.array([scored(row) for row in rows if _rights(row) == rights]) for rights in (2, 1))
    if not len(same) or not len(other):
        return None
    return round(float((same[:, None] > other).mean() + 0.5 * (same[:, None] == other).mean()), 3)


def _paired_answer(row: dict[str, Any]) -> dict[str, Any]:
    return dict(row["answers"][str(PAIRED)])


def _rights(row: dict[str, Any]) -> int:
    """Number of right answers of the pair."""
    return int(_paired_answer(row)["score"] == 1) + int(row["full"]["score"] == 1)


def likeness(answer: dict[str, Any], full: dict[str, Any]) -> float:
    """Share of equal words, as a run has it."""
    return text_agreement(answer["text"], full["text"]).words


def comparison(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Scores by which two answers count as the same: AUC, and errors at the default share of words."""
    ways: dict[str, Callable[[dict[str, Any]], float]] = {
        "equal words": lambda row: float(text_agreement(_paired_answer(row)["text"], row["full"]["text"]).same),
        "share of words": lambda row: likeness(_paired_answer(row), row["full"]),
        "least likely token": lambda row: float(_paired_answer(row)["least"]),
        **{name: lambda row, name=name: float(row["odds"][name]) for name in WORDINGS},  # type: ignore[misc]
    }
    reworded = [row for row in rows if not text_agreement(_paired_answer(row)["text"], row["full"]["text"]).same]
    differ = {
        rights: [likeness(_paired_answer(r), r["full"]) < AGREE for r in rows if _rights(r) == rights]
        for rights in (2, 1)
    }
    return {
        "pairs": [sum(_rights(row) == rights for row in rows) for rights in (2, 1)],
        "auc": {name: auc(rows, scored) for name, scored in ways.items()},
        "not word for word": [sum(_rights(row) == rights for row in reworded) for rights in (2, 1)],
        "false alarms": round(float(np.mean(differ[2])), 3),
        "found": round(float(np.mean(differ[1])), 3),
    }


def fixed_curve(rows: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Right answers, tokens and FLOPs of an answer at each budget, and with all tokens."""
    cells = [[row["answers"][str(level)] for row in rows] for level in LEVELS] + [[row["full"] for row in rows]]
    return [
        {
            "percent": percent,
            "right": round(float(np.mean([answer["score"] for answer in cell])), 4),
            "tokens": round(float(np.mean([answer["tokens"] for answer in cell])), 2),
            "gflops": round(float(np.mean([answer["flops"] for answer in cell])) / 1e9, 4),
        }
        for percent, cell in zip((*LEVELS, 100.0), cells, strict=True)
    ]


def act(rows: Sequence[dict[str, Any]], start: int, shadow: ShadowSection) -> dict[str, float]:
    """A run over these questions that begins with the budget `LEVELS[start]`; a step of the rule is one of LEVELS."""
    rule, interval = ShadowRule(shadow), shadow.every or 1
    most = min(start + sum(level <= shadow.most * LEVELS[start] for level in LEVELS[start + 1 :]), len(LEVELS) - 1)
    right, tokens, flops, checks, raises, lowers = 0.0, 0.0, 0.0, 0, 0, 0
    for number, row in enumerate(rows, 1):
        answer = row["answers"][str(LEVELS[start + rule.level])]
        right, tokens, flops = right + answer["score"], tokens + answer["tokens"], flops + answer["flops"]
        if number % interval:
            continue
        checks, flops = checks + 1, flops + row["full"]["flops"]
        differs = likeness(answer, row["full"]) < shadow.agree
        moves = rule.observe(differs, raisable=start + rule.level < most)
        raises, lowers = raises + ("raise" in moves), lowers + ("lower" in moves)
        if "raise" in moves or "lower" in moves:
            rule.begin_window()
    count = len(rows)
    means = {"right": right / count, "tokens": tokens / count, "gflops": flops / count / 1e9}
    return {**means, "checks": checks, "raises": raises, "lowers": lowers}


def orders(rows: Sequence[dict[str, Any]], start: int, kind: str) -> Iterator[list[dict[str, Any]]]:
    """Orders of a suite's clips: `shuffled`, or in `BLOCKS`, of which every other one has the hard ones: those that
    the first budget answers otherwise than all tokens."""
    clips: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        clips.setdefault(row["group"] or str(row["id"]), []).append(row)
    level = str(LEVELS[start])

    def hardness(clip: list[dict[str, Any]]) -> float:
        return float(np.mean([likeness(row["answers"][level], row["full"]) < AGREE for row in clip]))

    for seed in range(ORDERS):
        order = [list(clips.values())[at] for at in np.random.default_rng(seed).permutation(len(clips))]
        if kind != "shuffled":
            order.sort(key=hardness)
            half = len(order) // 2
            easy, hard = order[:half], order[half:]
            parts = BLOCKS // 2
            order = [clip for part in range(parts) for side in (easy, hard) for clip in side[part::parts]]
        yield [row for clip in order for row in clip]


def acting_cells(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Budgets that shadow checks move, beside a fixed one of equal tokens or FLOPs."""
    curve = fixed_curve(rows)
    cells = []
    for start, kind, interval in product(STARTS, ("shuffled", "blocks"), EVERY):
        shadow = ShadowSection(every=interval, act=True)
        runs = [act(order, start, shadow) for order in orders(rows, start, kind)]
        cell = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
        gains = {
            axis: [100 * (run["right"] - _at(curve, axis, run[axis])) for run in runs] for axis in ("tokens", "gflops")
        }
        cells.append(
            {
                "percent": LEVELS[start],
                "order": kind,
                "every": interval,
                **{name: round(value, 4) for name, value in cell.items()},
                **{f"gain at equal {axis}": round(float(np.mean(gain)), 2) for axis, gain in gains.items()},
                **{f"spread at equal {axis}": round(float(np.std(gain)), 2) for axis, gain in gains.items()},
            }
        )
    return cells


def _at(curve: Sequence[dict[str, float]], axis: str, value: float) -> float:
    """Right answers of a fixed budget of so many tokens or FLOPs, between the measured ones, over their logarithm."""
    places = np.log([point[axis] for point in curve])
    return float(np.interp(np.log(value), places, [point["right"] for point in curve]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="video,stream")
    parser.add_argument("--count", default="300,700", help="questions of each suite, from the first")
    parser.add_argument("--rows", type=Path, default=RESULTS.with_suffix(".answers.jsonl"), help="answers so far")
    parser.add_argument("--out", type=Path, default=RESULTS, help="path of the JSON")
    options = parser.parse_args()
    logging.getLogger("arr_coc").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    result: dict[str, Any] = {"machine": machine(), "rule": ShadowSection(act=True).model_dump(), "orders": ORDERS}
    for suite, count in zip(options.suite.split(","), options.count.split(","), strict=True):
        rows = list(measure_rows(suite, int(count), options.rows))
        figures = {
            "questions": len(rows),
            "compare": comparison(rows),
            "fixed": fixed_curve(rows),
            "acting": acting_cells(rows),
        }
        result[suite] = figures
        print(json.dumps(figures, indent=1))
    options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
