"""A benchmark's own figures, from the rows of one strategy at one budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeAlias

from evaluation.journal import Row
from evaluation.public.rules import says_yes, video_mme_letter
from evaluation.report import scores_by_question

SEPARATOR = "|"
"""Between several values of a tag."""

NEAR_S = 2
"""Proactive Output is right if the first yes comes at most so far from its true time."""


@dataclass(frozen=True, slots=True)
class Figure:
    """The benchmark's figure in [0, 1], the same by group (name of the grouping → group → figure), and others."""

    figure: float
    groups: dict[str, dict[str, float]] = field(default_factory=dict)
    also: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as a part of the results."""
        return {"figure": self.figure, "groups": self.groups, **self.also}


Figures: TypeAlias = Callable[[Sequence[Row]], Figure]


def mean(rows: Sequence[Row]) -> float:
    """Mean score over the questions."""
    return fmean(scores_by_question(rows).values())


def by(rows: Sequence[Row], tag: str, figure: Callable[[Sequence[Row]], float] = mean) -> dict[str, float]:
    """The figure of each group of a tag, in the order in which they come; a row may be in several."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        for name in row.get("tags", {}).get(tag, "").split(SEPARATOR):
            if name:
                groups.setdefault(name, []).append(row)
    return {name: figure(of_group) for name, of_group in groups.items()}


def mean_by(*tags: str) -> Figures:
    """Return figures: the mean over all questions, and over those of each group."""
    return lambda rows: Figure(mean(rows), {tag: by(rows, tag) for tag in tags})


def video_mme(rows: Sequence[Row]) -> Figure:
    """Share of right answers, in all and by group. `answered`: share of answers with a letter; `of_answered`: right
    ones of them, which is what Video-MME's script prints."""
    answered = [row for row in rows if video_mme_letter(row["text"])]
    groups = {tag: by(rows, tag) for tag in ("duration", "domain", "sub_category", "task")}
    also = {"answered": len(answered) / len(rows), "of_answered": mean(answered) if answered else None}
    return Figure(mean(rows), groups, also)


def ovo_bench(rows: Sequence[Row]) -> Figure:
    """The mean of the three modes' means over their tasks, as OVO-Bench reports it."""
    modes = by(rows, "mode", lambda of_mode: fmean(by(of_mode, "task").values()))
    return Figure(fmean(modes.values()), {"mode": modes, "task": by(rows, "task")})


def proactive(rows: Sequence[Row]) -> Figure:
    """Share of instructions whose first poll with a yes is within two seconds of the true time. `polls`: share of polls
    that were right. Polls after a first yes would not have been made, and count for nothing else."""
    queries: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        queries.setdefault((row["tags"]["query"], row["seed"]), []).append(row)
    right = []
    for polls in queries.values():
        polls.sort(key=lambda row: int(row["tags"]["at_s"]))
        first = next((row for row in polls if says_yes(row["text"])), polls[-1])
        right.append(abs(int(first["tags"]["at_s"]) - int(first["tags"]["due_s"])) <= NEAR_S)
    return Figure(fmean(right), also={"polls": mean(rows), "instructions": len(queries)})
