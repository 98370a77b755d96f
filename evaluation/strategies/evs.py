"""Frame differences: tiles that did not change since the frame before are dropped.

After Bagrov et al. 2025, "Efficient Video Sampling: Pruning Temporally Redundant Tokens for Faster VLM Inference"
(arXiv:2510.14624) and the differential token drop of Yao et al. 2025, "TimeChat-Online" (arXiv:2504.17343), here on
pixels, so that it is done before the encoder. Over all frames of a clip the tiles that changed most are kept; the first
frame is new as a whole and comes first. That needs a budget of at least one frame. With less, each frame has its own
share: of the first frame even coverage, of later ones the tiles that changed most. A single picture has no
redundancy in time: even coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from arr_coc.qwen.qwenvl import QwenVL
from evaluation.strategies.base import Ask, Reply, Strategy
from evaluation.strategies.grid import even_tiles
from evaluation.strategies.packets import answer_from
from evaluation.views import Chosen, View


def changes(views: Sequence[View]) -> list[npt.NDArray[np.float64]]:
    """For each frame but the first, the mean absolute difference of each tile with the frame before: [tiles]."""
    tiles = [view.tiles().astype(np.int16) for view in views]
    return [np.abs(later - earlier).mean(axis=(1, 2, 3)) for earlier, later in pairwise(tiles)]


def most_changed(views: Sequence[View], tokens: int) -> list[Chosen]:
    """The tiles that the clip's budget, `tokens` a frame, buys."""
    shape, tiles = views[0].grid.shape, views[0].grid.tiles
    changed = changes(views)
    spare = tokens * len(views) - tiles
    if spare < len(changed) or not changed:
        return [even_tiles(shape, tokens), *(_largest(change, tokens).reshape(shape) for change in changed)]
    for change in changed:
        change[change.argmax()] = np.inf  # a frame that shows nothing cannot be introduced
    later = _largest(np.concatenate(changed), spare)
    return [np.ones(shape, bool), *(part.reshape(shape) for part in np.split(later, len(changed)))]


def _largest(values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.bool_]:
    """Where the `count` largest are; of equals, the first."""
    chosen = np.zeros(len(values), bool)
    chosen[np.argsort(-values, kind="stable")[:count]] = True
    return chosen


def _choose(views: Sequence[View], ask: Ask) -> list[Chosen]:
    return most_changed(views, ask.budget.of(views[0].grid.tiles))


def _answer(qwen: QwenVL, ask: Ask) -> Reply:
    return answer_from(_choose, qwen, ask)


EVS = Strategy("evs", _answer)
