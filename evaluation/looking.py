"""Where the tokens went: whether they lie on what was asked about.

All of it is about the newest frame, and on its grid of tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from arr_coc.ops.regions import level_map
from arr_coc.types import TileGrid
from evaluation.question import Question
from evaluation.strategies.base import Reply
from training.coverage import tile_shares
from training.truth import Box

TOUCHED_SHARE = 0.05
"""A tile belongs to a box that covers at least this much of it."""


@dataclass(frozen=True, slots=True)
class Looking:
    """`iou`: of the tiles shown at level 0 with those that the asked boxes touch; `covered`: share of the latter that
    is shown at level 0. `on_asked`, `on_distractor`: tokens per tile's area there. None where there are no such boxes.
    """

    iou: float | None = None
    covered: float | None = None
    on_asked: float | None = None
    on_distractor: float | None = None


def looking(question: Question, reply: Reply) -> Looking:
    """How a reply's regions lie to a question's boxes."""
    asked = _shares(question, question.boxes, reply.grid)
    distractors = _shares(question, question.distractors, reply.grid)
    levels = level_map(reply.regions, reply.grid.shape)
    density = np.where(levels >= 0, 0.25 ** np.maximum(levels, 0).astype(np.float64), 0.0)
    if asked is None:
        return Looking(on_distractor=_mean(density, distractors))
    wanted, fine = asked >= TOUCHED_SHARE, levels == 0
    both = int((wanted & fine).sum())
    return Looking(
        iou=both / max(1, int((wanted | fine).sum())),
        covered=both / max(1, int(wanted.sum())),
        on_asked=_mean(density, asked),
        on_distractor=_mean(density, distractors),
    )


def _shares(question: Question, boxes: Sequence[Sequence[Box]], grid: TileGrid) -> npt.NDArray[np.float64] | None:
    """How much of each tile the newest frame's boxes cover, [rows, cols]; None where it has none."""
    if not boxes or not boxes[-1]:
        return None
    height_px, width_px = question.frames[-1].shape[:2]
    covered = tile_shares(boxes[-1], grid.shape, (height_px / grid.rows, width_px / grid.cols))
    return covered if covered.any() else None


def _mean(density: npt.NDArray[np.float64], shares: npt.NDArray[np.float64] | None) -> float | None:
    return None if shares is None else float((density * shares).sum() / shares.sum())
