"""From answers to figures: one cell for each suite, strategy, budget and encoding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby, pairwise
from statistics import fmean, median
from typing import Any

from evaluation.intervals import Estimate, estimate
from evaluation.journal import Row
from evaluation.scoring import normalise

Cell = dict[str, Any]

CELL = ("suite", "strategy", "budget", "encode")


def cells(rows: Iterable[Row]) -> list[Cell]:
    """The figures of all rows, in the order in which their cells come first."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in CELL), []).append(row)
    return [_cell(name, of_cell) for name, of_cell in found.items()]


def scores_by_question(rows: Sequence[Row]) -> dict[str, float]:
    """Each question's score, the mean over the seeds: seeds of one question are not independent of each other."""
    found: dict[str, list[float]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row["score"])
    return {question: fmean(scores) for question, scores in found.items()}


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
    }


def _accuracy(rows: Sequence[Row]) -> dict[str, Any]:
    found: Estimate = estimate(list(scores_by_question(rows).values()))
    made = asdict(found)
    return {"accuracy": made.pop("mean"), **made}


def _mean(rows: Sequence[Row], part: str) -> float | None:
    values = [row[part] for row in rows if row[part] is not None]
    return fmean(values) if values else None


def _ratio(rows: Sequence[Row]) -> float | None:
    """Tokens per area on what is asked about, over those on the distractors, where a question has both."""
    both = [row for row in rows if row["on_asked"] is not None and row["on_distractor"] is not None]
    on_distractor = sum(row["on_distractor"] for row in both)
    return sum(row["on_asked"] for row in both) / on_distractor if on_distractor else None


def _flips(rows: Sequence[Row]) -> float | None:
    """Share of successive answers in a group that differ; None where no group has two."""
    grouped = sorted((row for row in rows if row["group"]), key=lambda row: (row["seed"], row["group"]))
    flips = [
        normalise(earlier["text"]) != normalise(later["text"])
        for _, answers in groupby(grouped, key=lambda row: (row["seed"], row["group"]))
        for earlier, later in pairwise(answers)
    ]
    return fmean(flips) if flips else None
