"""Accuracy, and places of tokens.

All of it is about the newest frame, and on its grid of tiles.

An answer counts when it is one of the right ones word for word, once both are normalised as VQA's evaluation does
(Antol et al. 2015, arXiv:1505.00468): case, punctuation, articles and number words play no part. If ten people
answered, it counts min(votes / 3, 1). A description counts the share of its facts that it holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.adaptation.cases import tile_shares
from arr_coc.texture.regions import paint, region_sides, shape_map
from arr_coc.types import TileGrid
from evaluation.questions import EvalQuestion
from evaluation.strategies.base import Reply
from training.clips.truth import Box

TOUCHED_SHARE = 0.05
"""A tile belongs to a box that covers at least this much of it."""


@dataclass(frozen=True, slots=True)
class RegionScores:
    """`iou`: of the tiles shown at level 0 with those that the asked boxes touch; `covered`: share of the latter that
    is shown at level 0. `on_asked`, `on_distractor`: tokens per tile's area there. None if there are no such boxes.
    """

    iou: float | None = None
    covered: float | None = None
    on_asked: float | None = None
    on_distractor: float | None = None


def score_regions(question: EvalQuestion, reply: Reply) -> RegionScores:
    """Places of a reply's regions relative to a question's boxes."""
    asked_shares = _shares(question, question.boxes, reply.grid)
    distractor_shares = _shares(question, question.distractors, reply.grid)
    shapes = shape_map(reply.regions, reply.grid.shape)
    shares = 1 / region_sides(reply.regions).prod(axis=1)
    density = paint(reply.regions, shares, reply.grid.shape, 0.0)
    if asked_shares is None:
        return RegionScores(on_distractor=_mean(density, distractor_shares))
    target, fine = asked_shares >= TOUCHED_SHARE, shapes == 0
    overlap = int((target & fine).sum())
    return RegionScores(
        iou=overlap / max(1, int((target | fine).sum())),
        covered=overlap / max(1, int(target.sum())),
        on_asked=_mean(density, asked_shares),
        on_distractor=_mean(density, distractor_shares),
    )


def _shares(question: EvalQuestion, boxes: Sequence[Sequence[Box]], grid: TileGrid) -> npt.NDArray[np.float64] | None:
    """Share of each tile that the newest frame's boxes cover, [rows, cols]; None if it has none."""
    if not boxes or not boxes[-1]:
        return None
    height_px, width_px = question.frames[-1].shape[:2]
    shares = tile_shares(boxes[-1], grid.shape, (height_px / grid.rows, width_px / grid.cols))
    return shares if shares.any() else None


def _mean(density: npt.NDArray[np.float64], shares: npt.NDArray[np.float64] | None) -> float | None:
    return None if shares is None else float((density * shares).sum() / shares.sum())


VOTERS = 10
"""Number of answers that make a vote: VQAv2 has ten to every question."""

VOTES_FOR_RIGHT = 3

_ARTICLES = {"a", "an", "the"}
_NUMBERS = dict(
    zip(
        ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
        map(str, range(11)),
        strict=True,
    )
)
_WORD = re.compile(r"\d+(?:[.,:]\d+)*|[^\W\d_]+(?:['’][^\W\d_]+)*")


def normalise(text: str) -> str:
    """Lower-case words and numbers with single blanks between; articles go unless nothing else is left."""
    words = [_NUMBERS.get(word, word) for word in _WORD.findall(text.casefold())]
    return " ".join([word for word in words if word not in _ARTICLES] or words)


def score(question: EvalQuestion, text: str) -> float:
    """Score of `text` as an answer."""
    if question.rule is not None:
        return question.rule(question.answers, text)
    response = normalise(text)
    if question.facts:
        return sum(f" {normalise(fact)} " in f" {response} " for fact in question.facts) / len(question.facts)
    votes = sum(normalise(answer) == response for answer in question.answers)
    if len(question.answers) == VOTERS:
        return min(votes / VOTES_FOR_RIGHT, 1.0)
    return float(votes > 0)
