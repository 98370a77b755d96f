"""Figures of the suite: right answers before and after the event, and errors by their kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Cell = dict[str, Any]

ALL = "all"
_KEY = ("strategy", "budget", "condition")
_ERRORS = ("ghosts", "misses", "inventions")


def report(rows: Sequence[Row]) -> list[Cell]:
    """Return the figures of each strategy, budget and condition: by kind of event, by question, and over all.

    `right_before`, `right_after`: shares of right answers. `ghosts`, `misses`, `inventions`: shares of the answers
    after the event with one or more; `answers` is their number.
    """
    cells = []
    for way in dict.fromkeys(tuple(row[name] for name in _KEY) for row in rows):
        of_way = [row for row in rows if tuple(row[name] for name in _KEY) == way]
        for column in ("kind", "asks"):
            for value in dict.fromkeys(row[column] for row in of_way):
                cells.append(_cell(way, value, [row for row in of_way if row[column] == value]))
        cells.append(_cell(way, ALL, of_way))
    return cells


def _cell(way: Sequence[Any], of: str, rows: Sequence[Row]) -> Cell:
    before, after = ([row for row in rows if row["after"] is is_after] for is_after in (False, True))
    return {
        **dict(zip(_KEY, way, strict=True)),
        "of": of,
        "answers": len(after),
        "right_before": _share(before, "right"),
        "right_after": _share(after, "right"),
        **{error: _share(after, error) for error in _ERRORS},
    }


def _share(rows: Sequence[Row], name: str) -> float | None:
    return round(sum(bool(row[name]) for row in rows) / len(rows), 4) if rows else None


def table(cells: Sequence[Cell]) -> str:
    """Return the figures in per cent, a line for each cell, as a table of Markdown."""
    head = ("strategy", "condition", "of", "answers", "right before", "right after", *_ERRORS)
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    for cell in cells:
        shares = [cell[name] for name in ("right_before", "right_after", *_ERRORS)]
        texts = ["–" if share is None else f"{100 * share:.0f}" for share in shares]
        strategy = f"{cell['strategy']} {cell['budget']}"
        lines.append(f"| {' | '.join((strategy, cell['condition'], cell['of'], str(cell['answers']), *texts))} |")
    return "\n".join(lines)
