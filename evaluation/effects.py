"""What one part of the project changes, all else being equal: with it minus without it, question by question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from evaluation.intervals import bootstrap
from evaluation.journal import Row
from evaluation.report import CELL, scores_by_question
from evaluation.scoring import normalise

PARTS: dict[str, tuple[str, str, str]] = {
    "feedback": ("strategy", "arr-coc-feedback", "arr-coc-again"),
    "incremental": ("encode", "incremental", "sparse"),
}
"""Of each part: the name that tells, and what it is with the part and without."""


def effects(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """For every pair of cells that differ in a part alone, on the questions that both answered: the `difference` in
    accuracy (`low` to `high`: the bootstrap's 95 % over the pairs) and in `covered`, and the share of `other_answers`.
    """
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in CELL), []).append(row)
    made = []
    for part, (name, with_it, without) in PARTS.items():
        place = CELL.index(name)
        for cell, ours in found.items():
            theirs = found.get((*cell[:place], without, *cell[place + 1 :]), []) if cell[place] == with_it else []
            if effect := _effect(ours, theirs):
                made.append({"part": part, **dict(zip(CELL, cell, strict=True)), **effect})
    return made


def _effect(ours: Sequence[Row], theirs: Sequence[Row]) -> dict[str, Any] | None:
    scores = _paired(ours, theirs, scores_by_question)
    if not scores:
        return None
    differences = [mine - other for mine, other in scores]
    low, high = bootstrap(differences)
    texts = _paired(ours, theirs, lambda rows: {row["id"]: normalise(row["text"]) for row in rows})
    covered = _paired(ours, theirs, lambda rows: {r["id"]: r["covered"] for r in rows if r["covered"] is not None})
    return {
        "difference": float(np.mean(differences)),
        "low": low,
        "high": high,
        "count": len(scores),
        "covered": float(np.mean([mine - other for mine, other in covered])) if covered else None,
        "other_answers": float(np.mean([mine != other for mine, other in texts])),
    }


def _paired(
    ours: Sequence[Row], theirs: Sequence[Row], of: Callable[[Sequence[Row]], dict[str, Any]]
) -> list[tuple[Any, Any]]:
    """What both have of the same questions."""
    mine, other = of(ours), of(theirs)
    return [(mine[question], other[question]) for question in mine if question in other]
