"""The whole frame, scaled down until it has no more tiles than the budget: what a user without any of this would do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.qwen.resize import resize_image
from evaluation.strategies.base import Ask, Reply, Strategy
from evaluation.strategies.full import FULL


def smaller_grid(shape: tuple[int, int], tokens: int) -> tuple[int, int]:
    """(rows, cols) of about the same aspect with at most `tokens` tiles."""
    rows, cols = shape
    scale = min(1.0, math.sqrt(tokens / (rows * cols)))
    fewer_rows = max(1, round(rows * scale))
    fewer_cols = max(1, min(cols, tokens // fewer_rows))
    return min(fewer_rows, tokens), fewer_cols


def _answer(qwen: QwenVL, ask: Ask) -> Reply:
    views = ask.views(qwen)
    side_px = qwen.preprocessing.tile_px
    frames = []
    for frame, view in zip(ask.frames, views, strict=True):
        rows, cols = smaller_grid(view.grid.shape, ask.budget.of(view.grid.tiles))
        frames.append(resize_image(frame, rows * side_px, cols * side_px))
    reply = FULL.answer(qwen, replace(ask, frames=tuple(frames), encode="full"))
    sharp = np.zeros((0, 3), np.int32)
    return replace(reply, regions=sharp, grid=views[-1].grid, of_tokens=sum(view.grid.tiles for view in views))


SMALLER = Strategy("smaller", _answer, encodes=("full",))
