"""The newest frames that a stream answered about, each under its time, with nothing chosen by the question.

`last-4` is the baseline of "SimpleStream" (arXiv:2604.02317): the four newest frames with all of their tokens.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from arr_coc.qwen.qwenvl import QwenVL
from evaluation.strategies.base import Ask, Budget, Reply, Strategy
from evaluation.strategies.sampling import EVS, FULL, SMALLER

FRAMES = 4
LONGEST_FRAMES = 16
"""As many as a clip of the suite `stream` has answer points: all that was seen."""


def newest(ask: Ask, frames: int) -> Ask:
    """The same question about the `frames` newest frames, those before the question's own included."""
    shown, times_s = (*ask.before, *ask.frames), (*ask.before_s, *ask.times_s)
    return replace(
        ask,
        frames=shown[-frames:],
        times_s=times_s[-frames:],
        before=shown[:-frames],
        before_s=times_s[:-frames],
    )


def _answer(qwen: QwenVL, ask: Ask, of: Strategy, frames: int = FRAMES) -> Reply:
    return of.answer(qwen, newest(ask, frames))


def _answer_smaller(qwen: QwenVL, ask: Ask) -> Reply:
    """All frames together have the tokens that the budget gives one."""
    shown = newest(ask, FRAMES)
    tokens = ask.budget.of(ask.views(qwen)[-1].grid.tiles)
    return SMALLER.answer(qwen, replace(shown, budget=Budget(tokens=max(1, tokens // len(shown.frames)))))


NEWEST: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("last-4", partial(_answer, of=FULL), encodes=("full",), budgeted=False),
        Strategy("last-4-smaller", _answer_smaller, encodes=("full",)),
        Strategy("last-4-evs", partial(_answer, of=EVS), encodes=EVS.encodes),
        Strategy("last-16", partial(_answer, of=FULL, frames=LONGEST_FRAMES), encodes=("full",), budgeted=False),
    )
}
"""The strategies by name; asked for by name only."""
