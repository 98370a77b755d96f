"""This project against everything else: at equal tokens, question by question, and at equal FLOPs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from evaluation.intervals import bootstrap
from evaluation.journal import Row
from evaluation.report import CELL, Cell, scores_by_question

OURS = "arr-coc"
FULL = "full"


def at_equal_tokens(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Our accuracy minus each other strategy's at the same budget, and minus that of all tokens.

    On the questions that both answered; the 95 % interval is the bootstrap's over the pairs' differences.
    """
    scores: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        scores.setdefault(tuple(row[name] for name in CELL), []).append(row)
    found = []
    for ours, own in scores.items():
        for other, theirs in scores.items():
            same_budget = ours[2] == other[2] or other[1] == FULL
            if ours[1] == OURS and other[1] != OURS and ours[0] == other[0] and same_budget:
                difference = _difference(scores_by_question(own), scores_by_question(theirs))
                if difference:
                    found.append({**dict(zip(CELL, ours, strict=True)), "against": _name(other), **difference})
    return found


def at_equal_flops(made: Sequence[Cell]) -> list[dict[str, Any]]:
    """Our accuracy minus what each other strategy's curve has at the FLOPs of our cell.

    A curve is read off between its points, over the logarithm of FLOPs. Beyond its dearest point its last accuracy
    holds; where even its cheapest point is dearer, it cannot be had for so little: `accuracy` is then that of the
    cheapest point, and `reached` false.
    """
    curves: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for cell in made:
        if cell["strategy"] not in (OURS, FULL):
            name = (cell["suite"], cell["strategy"], cell["encode"])
            curves.setdefault(name, []).append((cell["flops"]["total"], cell["accuracy"]))
    found = []
    for cell in made:
        if cell["strategy"] != OURS:
            continue
        flops = cell["flops"]["total"]
        for (suite, strategy, encode), points in curves.items():
            if suite == cell["suite"]:
                at, accuracy = zip(*sorted(points), strict=True)
                there = float(np.interp(np.log(flops), np.log(at), accuracy))
                found.append(
                    {part: cell[part] for part in CELL}
                    | {"against": f"{strategy} ({encode})", "accuracy": there, "reached": flops >= at[0]}
                    | {"difference": cell["accuracy"] - there}
                )
    return found


def _difference(ours: dict[str, float], theirs: dict[str, float]) -> dict[str, float] | None:
    pairs = [ours[question] - theirs[question] for question in ours if question in theirs]
    if not pairs:
        return None
    low, high = bootstrap(pairs)
    return {"difference": float(np.mean(pairs)), "low": low, "high": high, "count": len(pairs)}


def _name(cell: tuple[str, ...]) -> str:
    return f"{cell[1]} ({cell[3]})"
