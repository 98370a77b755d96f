"""Tiles drawn at random, as many as the budget pays.

A strong baseline for token reduction, as several comparisons found (Wen et al. 2025, "Token Pruning in Multimodal Large
Language Models: Are We Solving the Right Problem?", arXiv:2502.11501).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arr_coc.qwen.qwenvl import QwenVL
from evaluation.strategies.base import Ask, Reply, Strategy
from evaluation.strategies.packets import answer_from
from evaluation.views import Chosen, View


def _choose(views: Sequence[View], ask: Ask) -> list[Chosen]:
    rng = np.random.default_rng(ask.seed)
    chosen = []
    for view in views:
        tiles = np.zeros(view.grid.tiles, bool)
        tiles[rng.permutation(tiles.size)[: ask.budget.of(tiles.size)]] = True
        chosen.append(tiles.reshape(view.grid.shape))
    return chosen


def _answer(qwen: QwenVL, ask: Ask) -> Reply:
    return answer_from(_choose, qwen, ask)


RANDOM = Strategy("random", _answer, seeded=True)
