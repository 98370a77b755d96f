"""Selections of frames by a selector alone, without an allocator."""

from __future__ import annotations

import numpy as np
import torch

from arr_coc.allocation.attending import Tensions
from arr_coc.allocation.frame import (
    FrameAllocation,
    RegionSelector,
    Selection,
    SelectionInputs,
    SelectorOptions,
    TokenPlan,
)
from arr_coc.allocation.strategies import RegionChoice
from arr_coc.budget import Budget
from arr_coc.types import Feedback, FrameStamp

OVERVIEW = np.zeros((0, 3), np.int64)


def chosen(
    selector: RegionSelector,
    relevance: torch.Tensor,
    budget: Budget,
    staleness: torch.Tensor | None = None,
    at_most: int | None = None,
    lines: np.ndarray | None = None,
) -> FrameAllocation:
    """The next frame, whose regions are chosen and noted."""
    plan = selector.plan(relevance, budget, at_most)
    inputs = selector.inputs(relevance, plan, staleness, lines=lines)
    frame = FrameAllocation(FrameStamp(0, 0, 0), relevance, relevance, relevance, inputs)
    selector.note(inputs, frame.selection)
    return frame


def frame_of(
    regions: torch.Tensor, relevance: torch.Tensor, change_since: float = 1.0, strategy: str = "topk"
) -> FrameAllocation:
    """A frame with these regions [K, 3], whose scores are 0."""
    plan = TokenPlan(len(regions), OVERVIEW, OVERVIEW, len(regions))
    inputs = SelectionInputs(SelectorOptions(strategy, Tensions()), plan, relevance)
    scores, levels = torch.zeros(3, *relevance.shape), torch.zeros(relevance.shape, dtype=torch.int8)
    frame = FrameAllocation(FrameStamp(0, 0, 0), relevance, scores, torch.zeros(3), inputs, change_since)
    choice = RegionChoice(regions, torch.ones(len(regions), dtype=torch.bool), torch.ones(len(regions)), levels)
    frame.selection = Selection(choice, 0, levels, torch.zeros(()), strategy, False, None, None)
    return frame


def feedback_on(frame: FrameAllocation, row: int, col: int) -> Feedback:
    """An answer that looked at one tile of a frame, and nowhere else."""
    regions = frame.allocation.regions.numpy().astype(np.int32)
    shift = regions[:, 0]
    attention = ((regions[:, 1] == row >> shift) & (regions[:, 2] == col >> shift)).astype(np.float32)
    return Feedback(frame.stamp, regions, attention, 0.5 * attention)
