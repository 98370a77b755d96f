"""Why this token: what each score, the balance and the past contributed to every region of an allocation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from arr_coc.allocator import FrameAllocation
from arr_coc.ops.regions import region_mean
from arr_coc.types import TokenReason

SCORES = ("information", "perspective", "participation")
"""The three ways of knowing, in the order of `FrameAllocation.scores`."""


def weights_of(frame: FrameAllocation) -> dict[str, float]:
    """Each score's weight in the balance, 1 in all; 0 where nothing was balanced, as in a frame that is shown whole."""
    return dict(zip(SCORES, map(float, _normalised(frame)), strict=True))


def explain(frame: FrameAllocation) -> list[TokenReason]:
    """The reasons for every token of a frame, in token order. Pure; plain numbers, fit for JSON."""
    regions = frame.allocation.regions.numpy()
    scores = np.stack([region_mean(regions, score) for score in frame.scores.numpy()])
    parts = _normalised(frame)[:, None] * scores
    now = parts.sum(axis=0)
    shares = parts / np.where(now > 0, now, 1)
    relevance = region_mean(regions, frame.relevance.numpy())
    ranks = np.empty(len(regions), np.int64)
    ranks[np.argsort(-relevance, kind="stable")] = np.arange(1, len(regions) + 1)
    return [
        TokenReason(
            level=int(level),
            row=int(row),
            col=int(col),
            rank=int(ranks[index]),
            relevance=float(relevance[index]),
            now=float(now[index]),
            memory=float(relevance[index] - now[index]),
            scores=_named(scores[:, index]),
            shares=_named(shares[:, index]),
        )
        for index, (level, row, col) in enumerate(regions)
    ]


def _normalised(frame: FrameAllocation) -> npt.NDArray[np.float32]:
    weights: npt.NDArray[np.float32] = frame.weights.numpy()
    return weights / max(float(weights.sum()), 1e-6)


def _named(values: npt.NDArray[np.floating[Any]]) -> dict[str, float]:
    return dict(zip(SCORES, map(float, values), strict=True))
