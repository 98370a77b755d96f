"""All tokens of every frame: the stock model, and what the others are held against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from arr_coc.qwen.qwenvl import QwenVL
from evaluation.strategies.base import Ask, Reply, Strategy
from evaluation.strategies.packets import answer_from
from evaluation.views import Chosen, View


def _choose(views: Sequence[View], ask: Ask) -> list[Chosen]:
    return [np.ones(view.grid.shape, bool) for view in views]


def _answer(qwen: QwenVL, ask: Ask) -> Reply:
    return answer_from(_choose, qwen, ask)


FULL = Strategy("full", _answer, encodes=("full",), budgeted=False)
