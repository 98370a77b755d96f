"""Tiles spread evenly over the frame, exactly as many as the budget pays: subsampling that knows nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arr_coc.qwen.qwenvl import QwenVL
from evaluation.strategies.base import Ask, Reply, Strategy
from evaluation.strategies.packets import answer_from
from evaluation.views import Chosen, View

_GOLDEN = (np.sqrt(5) - 1) / 2


def even_tiles(shape: tuple[int, int], tokens: int) -> Chosen:
    """`tokens` tiles with about the same number in every part of the grid: bool [rows, cols].

    The tiles nearest to the points of a Fibonacci lattice (((i + ½)/n, i·φ mod 1); Niederreiter 1992, "Random Number
    Generation and Quasi-Monte Carlo Methods"), so that no row or column is left out; where two points meet in one
    tile, the next free one along its row or below it is taken.
    """
    rows, cols = shape
    index = np.arange(tokens)
    row = np.minimum((index + 0.5) / tokens * rows, rows - 1).astype(int)
    col = np.minimum((index * _GOLDEN + 0.5) % 1 * cols, cols - 1).astype(int)
    taken = np.zeros(rows * cols, bool)
    for place in row * cols + col:
        free = np.flatnonzero(~np.roll(taken, -int(place)))[0]
        taken[(place + free) % taken.size] = True
    return taken.reshape(shape)


def _choose(views: Sequence[View], ask: Ask) -> list[Chosen]:
    return [even_tiles(view.grid.shape, ask.budget.of(view.grid.tiles)) for view in views]


def _answer(qwen: QwenVL, ask: Ask) -> Reply:
    return answer_from(_choose, qwen, ask)


GRID = Strategy("grid", _answer)
