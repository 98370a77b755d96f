"""Cells, comparisons, effects, intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from statistics import fmean, median
from typing import Any

import numpy as np

from evaluation.journal import Row
from evaluation.scoring import normalise

Z = 1.959964
"""Standard normal deviate of a two-sided 95 % interval."""

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean of `count` scores with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float
    count: int


def estimate(scores: Sequence[float], groups: Sequence[str] | None = None) -> Estimate:
    """The mean of scores in [0, 1]: Wilson's interval if each is right or wrong and in a separate group, else the
    bootstrap's.

    Raises ValueError if there are none.
    """
    if not scores:
        raise ValueError("there is no score to take the mean of")
    is_independent = groups is None or len(set(groups)) == len(groups)
    if is_independent and all(score in (0.0, 1.0) for score in scores):
        low, high = wilson(sum(scores), len(scores))
    else:
        low, high = bootstrap(scores, groups)
    return Estimate(float(np.mean(scores)), low, high, len(scores))


def wilson(right: float, count: int) -> tuple[float, float]:
    """The score interval of a share (Wilson 1927, J. Am. Stat. Assoc. 22, 209)."""
    share, spread = right / count, Z * Z / count
    middle = share + spread / 2
    reach = Z * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, (middle - reach) / (1 + spread)), min(1.0, (middle + reach) / (1 + spread))


def bootstrap(scores: Sequence[float], groups: Sequence[str] | None = None) -> tuple[float, float]:
    """The percentile interval of the mean over 2000 resamples (Efron 1979, Ann. Stat. 7, 1); the same on every call.

    Whole groups are drawn: questions about one clip are not independent of each other.
    """
    names = range(len(scores)) if groups is None else np.unique(groups, return_inverse=True)[1]
    sums, counts = np.bincount(names, scores), np.bincount(names)
    picks = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    low, high = np.percentile(sums[picks].sum(axis=1) / counts[picks].sum(axis=1), [2.5, 97.5])
    return float(low), float(high)


Cell = dict[str, Any]

CELL = ("suite", "strategy", "budget", "encode")


def cells(rows: Iterable[Row]) -> list[Cell]:
    """The figures of all rows, in the order in which their cells come first."""
    rows_by_cell: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        rows_by_cell.setdefault(tuple(row[name] for name in CELL), []).append(row)
    return [_cell(name, of_cell) for name, of_cell in rows_by_cell.items()]


def scores_by_question(rows: Sequence[Row]) -> dict[str, float]:
    """Each question's score, the mean over the seeds: seeds of one question are not independent of each other."""
    question_scores: dict[str, list[float]] = {}
    for row in rows:
        question_scores.setdefault(row["id"], []).append(row["score"])
    return {question: fmean(scores) for question, scores in question_scores.items()}


def groups_of(rows: Iterable[Row], questions: Iterable[str]) -> list[str]:
    """The clip of each question; a question about none is a separate group."""
    clips = {row["id"]: row["group"] or f"question {row['id']}" for row in rows}
    return [clips[question] for question in questions]


def _cell(name: tuple[str, ...], rows: Sequence[Row]) -> Cell:
    kinds = sorted({row["kind"] for row in rows})
    tokens, of_tokens = (sum(row[part] for row in rows) for part in ("tokens", "of_tokens"))
    return {
        **dict(zip(CELL, name, strict=True)),
        "seeds": len({row["seed"] for row in rows}),
        **_accuracy(rows),
        "kinds": {kind: _accuracy([row for row in rows if row["kind"] == kind]) for kind in kinds},
        "tokens": tokens / len(rows),
        "token_share": tokens / of_tokens,
        "flops": {part: fmean(row["flops"][part] for row in rows) for part in rows[0]["flops"]},
        "ttft_ms": median(row["ttft_ms"] for row in rows),
        "peak_mb": max(row["peak_bytes"] for row in rows) / 1e6,
        "iou": _mean(rows, "iou"),
        "covered": _mean(rows, "covered"),
        "on_asked": _mean(rows, "on_asked"),
        "on_distractor": _mean(rows, "on_distractor"),
        "asked_over_distractor": _ratio(rows),
        "flips": _flips(rows),
        "stale": _mean(rows, "stale"),
        "prefilled": _mean(rows, "prefilled"),
        "appended": fmean(row["tokens"] - row.get("kept", 0) for row in rows),
    }


def _accuracy(rows: Sequence[Row]) -> dict[str, Any]:
    scores = scores_by_question(rows)
    figures = asdict(estimate(list(scores.values()), groups_of(rows, scores)))
    return {"accuracy": figures.pop("mean"), **figures}


def _mean(rows: Sequence[Row], part: str) -> float | None:
    values = [row[part] for row in rows if row.get(part) is not None]
    return fmean(values) if values else None


def _ratio(rows: Sequence[Row]) -> float | None:
    """Tokens per area on the asked things, over those on the distractors, of questions that have both."""
    paired_rows = [row for row in rows if row["on_asked"] is not None and row["on_distractor"] is not None]
    on_distractor = sum(row["on_distractor"] for row in paired_rows)
    return sum(row["on_asked"] for row in paired_rows) / on_distractor if on_distractor else None


def _flips(rows: Sequence[Row]) -> float | None:
    """Share of successive answers in a group that differ, though the question and what is right are the same; None if
    no group has two of them."""
    grouped = sorted((row for row in rows if row["group"]), key=lambda row: (row["seed"], row["group"]))
    flips = [
        normalise(previous["text"]) != normalise(current["text"])
        for _, answers in groupby(grouped, key=lambda row: (row["seed"], row["group"]))
        for previous, current in pairwise(answers)
        if all(previous.get(part) == current.get(part) for part in ("question", "answers"))
    ]
    return fmean(flips) if flips else None


OURS, GLANCED = "arr-coc", "arr-coc-glance"
FULL = "full"


def at_equal_tokens(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Our accuracy, with a glance or without, minus each other strategy's at the same budget, and minus that of all
    tokens.

    On the questions that both answered; the 95 % interval is the bootstrap's over the pairs' differences.
    """
    rows_by_cell: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        rows_by_cell.setdefault(tuple(row[name] for name in CELL), []).append(row)
    comparisons = []
    for cell, cell_rows in rows_by_cell.items():
        for other, other_rows in rows_by_cell.items():
            same_budget = cell[2] == other[2] or other[1] == FULL
            compared = cell[1] in (OURS, GLANCED) and other[1] not in (OURS, cell[1])
            if compared and cell[0] == other[0] and same_budget:
                difference = paired_difference(cell_rows, other_rows)
                if difference:
                    comparisons.append({**dict(zip(CELL, cell, strict=True)), "against": _name(other), **difference})
    return comparisons


def at_equal_flops(cell_figures: Sequence[Cell]) -> list[dict[str, Any]]:
    """Our accuracy minus what each other strategy's curve has at the FLOPs of our cell.

    A curve is read off between its points, over the logarithm of FLOPs. Beyond its dearest point its last accuracy
    holds. If even its cheapest point is dearer, it has no accuracy at that cost: `accuracy` is then that of the
    cheapest point, and `reached` false.
    """
    curves: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for cell in cell_figures:
        if cell["strategy"] not in (OURS, FULL):
            name = (cell["suite"], cell["strategy"], cell["encode"])
            curves.setdefault(name, []).append((cell["flops"]["total"], cell["accuracy"]))
    comparisons = []
    for cell in cell_figures:
        if cell["strategy"] != OURS:
            continue
        flops = cell["flops"]["total"]
        for (suite, strategy, encode), points in curves.items():
            if suite == cell["suite"]:
                at, accuracy = zip(*sorted(points), strict=True)
                other_accuracy = float(np.interp(np.log(flops), np.log(at), accuracy))
                comparisons.append(
                    {part: cell[part] for part in CELL}
                    | {"against": f"{strategy} ({encode})", "accuracy": other_accuracy, "reached": flops >= at[0]}
                    | {"difference": cell["accuracy"] - other_accuracy}
                )
    return comparisons


def paired_difference(rows: Sequence[Row], other_rows: Sequence[Row]) -> dict[str, float] | None:
    """The mean difference in score on the questions that both answered, with the ends of its 95 % interval and their
    `count`; None if there are none."""
    scores, other_scores = scores_by_question(rows), scores_by_question(other_rows)
    pairs = {question: scores[question] - other_scores[question] for question in scores if question in other_scores}
    if not pairs:
        return None
    differences = list(pairs.values())
    low, high = bootstrap(differences, groups_of(rows, pairs))
    return {"difference": float(np.mean(differences)), "low": low, "high": high, "count": len(pairs)}


def _name(cell: tuple[str, ...]) -> str:
    return f"{cell[1]} ({cell[3]})"


PARTS: dict[str, tuple[str, str, str]] = {
    "feedback": ("strategy", "arr-coc-feedback", "arr-coc-again"),
    "incremental": ("encode", "incremental", "sparse"),
}
"""Of each part: the distinguishing field, and its values with the part and without."""


def effects(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """For every pair of cells that differ in a part alone, on the questions that both answered: the `difference` in
    accuracy (`low` to `high`: the bootstrap's 95 % over the pairs) and in `covered`, and the share of `other_answers`.
    """
    rows_by_cell: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        rows_by_cell.setdefault(tuple(row[name] for name in CELL), []).append(row)
    results = []
    for part, (name, with_it, without) in PARTS.items():
        place = CELL.index(name)
        for cell, with_rows in rows_by_cell.items():
            without_rows = (
                rows_by_cell.get((*cell[:place], without, *cell[place + 1 :]), []) if cell[place] == with_it else []
            )
            if effect := _effect(with_rows, without_rows):
                results.append({"part": part, **dict(zip(CELL, cell, strict=True)), **effect})
    return results


def _effect(with_rows: Sequence[Row], without_rows: Sequence[Row]) -> dict[str, Any] | None:
    scores = _pairs(with_rows, without_rows, scores_by_question)
    if not scores:
        return None
    differences = [value - other for value, other in scores]
    low, high = bootstrap(differences)
    texts = _pairs(with_rows, without_rows, lambda rows: {row["id"]: normalise(row["text"]) for row in rows})
    coverages = _pairs(
        with_rows, without_rows, lambda rows: {r["id"]: r["covered"] for r in rows if r["covered"] is not None}
    )
    return {
        "difference": float(np.mean(differences)),
        "low": low,
        "high": high,
        "count": len(scores),
        "covered": float(np.mean([value - other for value, other in coverages])) if coverages else None,
        "other_answers": float(np.mean([value != other for value, other in texts])),
    }


def _pairs(
    rows: Sequence[Row], other_rows: Sequence[Row], of: Callable[[Sequence[Row]], dict[str, Any]]
) -> list[tuple[Any, Any]]:
    """Rows of both about the same questions."""
    values, other_values = of(rows), of(other_rows)
    return [(values[question], other_values[question]) for question in values if question in other_values]
