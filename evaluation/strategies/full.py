"""All tokens of every frame: the stock model, and what the others are held against; and with each frame read apart, as
a stream's window is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from arr_coc.qwen.options import Frames
from arr_coc.qwen.qwenvl import QwenVL
from evaluation.strategies.base import Ask, Reply, Strategy
from evaluation.strategies.packets import answer_from
from evaluation.views import Chosen, View


def _choose(views: Sequence[View], ask: Ask) -> list[Chosen]:
    return [np.ones(view.grid.shape, bool) for view in views]


def _answer(qwen: QwenVL, ask: Ask, frames: Frames = "causal") -> Reply:
    return answer_from(_choose, qwen, ask, frames)


FULL = Strategy("full", _answer, encodes=("full",), budgeted=False)
FULL_APART = Strategy("full-apart", partial(_answer, frames="window"), encodes=("full",), budgeted=False)
