"""Figures of a comparison: each side's, the paired difference, and every question with both answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from evaluation.journal import Row
from evaluation.report import cells, estimate, paired_difference
from evaluation.scoring import normalise

ANSWER = ("text", "tokens", "of_tokens", "ttft_ms", "prefilled", "covered")
"""Fields of a row that the comparison shows of each answer."""

ACCURACY = ("accuracy", "low", "high", "count")


def side_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """The figures of one side; those of accuracy are of the questions with known answers, None without any."""
    (figures,) = cells(rows)
    figures.pop("kinds")
    known = [row for row in rows if row["answers"]]
    accuracy = dict.fromkeys(ACCURACY)
    if known:
        (of_known,) = cells(known)
        accuracy = {name: of_known[name] for name in ACCURACY}
    return figures | accuracy


def paired(rows: Sequence[Row], other_rows: Sequence[Row]) -> dict[str, Any]:
    """B minus A in accuracy (None without known answers), and the share of questions with the same answer, each with
    the ends of its 95 % interval. `rows` of A and `other_rows` of B are about the same questions in one order."""
    known, other_known = ([row for row in side if row["answers"]] for side in (rows, other_rows))
    same = [float(is_same(row, other)) for row, other in zip(rows, other_rows, strict=True)]
    return {"difference": paired_difference(other_known, known), "same_answers": asdict(estimate(same))}


def answer_pairs(rows: Sequence[Row], other_rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Every question with both answers. `score` is None if the right answer is not known."""
    return [
        {
            **{name: row[name] for name in ("id", "kind", "question", "answers")},
            "same": is_same(row, other),
            "a": _answer(row),
            "b": _answer(other),
        }
        for row, other in zip(rows, other_rows, strict=True)
    ]


def is_same(row: Row, other: Row) -> bool:
    """True if two answers are the same, word for word, once both are normalised."""
    return normalise(row["text"]) == normalise(other["text"])


def _answer(row: Row) -> dict[str, Any]:
    score = row["score"] if row["answers"] else None
    return {**{name: row[name] for name in ANSWER}, "flops": row["flops"]["total"], "score": score}
