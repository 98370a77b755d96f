"""Share of each box that is seen, by strategy, budget and class."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evaluation.output import align
from evaluation.real.choices import Seen, seen
from evaluation.real.frames import ShownFrame
from evaluation.real.labels import CLASSES, LABELS, Folders, LabelledFrame
from evaluation.report import bootstrap
from evaluation.strategies.base import Budget

LOOKS = ("full", "half", "any")
"""Seen at full resolution, at half of it or better, and at all."""

ALL = "all"


@dataclass(frozen=True, slots=True)
class BoxShares:
    """Shares of one box that a strategy shows, by `LOOKS`; `picture` is the clip or picture, `classes` what it counts
    for."""

    strategy: str
    budget: str
    picture: str
    classes: tuple[str, ...]
    shares: tuple[float, float, float]


def box_shares(frame: ShownFrame, way: tuple[str, Budget], shown: Seen) -> list[BoxShares]:
    """Return the shares of a frame's boxes that are seen.

    Args:
        frame: The frame.
        way: Strategy and budget.
        shown: What they show of it.
    """
    result = []
    for box in frame.label.boxes:
        coverage = frame.coverage(box)
        full, half, shown_at_all = (float((coverage * part).sum()) for part in (shown.full, shown.half, shown.any))
        classes = (ALL, *box.classes)
        result.append(BoxShares(way[0], str(way[1]), frame.label.source.name, classes, (full, half, shown_at_all)))
    return result


def measure(frames: Iterable[ShownFrame], strategies: Sequence[str], budgets: Sequence[Budget]) -> dict[str, Any]:
    """Return the figures over frames: `cells`, and how many frames and boxes they are of.

    A cell has the mean share of the boxes of a class, for each of `LOOKS`, with the 95 % interval of a bootstrap over
    whole clips and pictures; `tokens` is the share of all tokens that was spent.
    """
    rows: list[BoxShares] = []
    spent: dict[tuple[str, str], list[float]] = {}
    count = 0
    for frame in frames:
        count += 1
        for way, shown in seen(frame, strategies, budgets).items():
            rows += box_shares(frame, way, shown)
            spent.setdefault((way[0], str(way[1])), []).append(shown.tokens / frame.grid.tiles)
    cells = []
    for (strategy, budget), shares in spent.items():
        of_way = [row for row in rows if (row.strategy, row.budget) == (strategy, budget)]
        for name in (ALL, *CLASSES):
            boxes = [row for row in of_way if name in row.classes]
            if boxes:
                cell = {"strategy": strategy, "budget": budget, "class": name, "boxes": len(boxes)}
                cells.append(cell | {"tokens": round(float(np.mean(shares)), 4)} | _looks(boxes))
    return {"frames": count, "cells": cells}


def _looks(boxes: Sequence[BoxShares]) -> dict[str, Any]:
    pictures = [row.picture for row in boxes]
    result: dict[str, Any] = {"pictures": len(set(pictures))}
    for place, look in enumerate(LOOKS):
        shares = [row.shares[place] for row in boxes]
        low, high = bootstrap(shares, pictures)
        result[look] = {"mean": round(float(np.mean(shares)), 4), "low": round(low, 4), "high": round(high, 4)}
    return result


def absent_sources(labels: Sequence[LabelledFrame], folders: Folders) -> dict[str, dict[str, Any]]:
    """Return the sources whose file cannot be used, by name, with the reason and the number of frames left out."""
    result: dict[str, dict[str, Any]] = {}
    for source in dict.fromkeys(label.source for label in labels):
        reason = source.absence(folders)
        if reason is not None:
            frames = sum(label.source == source for label in labels)
            result[source.name] = {"reason": reason, "frames": frames}
    return result


def labels_hash() -> str:
    """Return a hash of the labels, to tell whether two results are of the same ones."""
    return hashlib.sha256(LABELS.read_bytes()).hexdigest()[:16]


def table(cells: Sequence[dict[str, Any]]) -> str:
    """Return one line for each strategy and budget, in per cent: boxes seen at full resolution, with the interval, at
    half or better, and at all; then at full resolution by class."""
    names = [name for name in CLASSES if any(cell["class"] == name for cell in cells)]
    lines: list[tuple[str, ...]] = [("strategy", "budget", "full", "95 %", "half", "any", *names)]
    for way in dict.fromkeys((cell["strategy"], cell["budget"]) for cell in cells):
        by_class = {cell["class"]: cell for cell in cells if (cell["strategy"], cell["budget"]) == way}
        full = by_class[ALL]["full"]
        looks = [f"{100 * by_class[ALL][look]['mean']:.1f}" for look in LOOKS]
        interval = f"{100 * full['low']:.1f}-{100 * full['high']:.1f}"
        of_names = [f"{100 * by_class[name]['full']['mean']:.0f}" for name in names]
        lines.append((*way, looks[0], interval, *looks[1:], *of_names))
    return align(lines)
