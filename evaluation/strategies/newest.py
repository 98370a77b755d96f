"""The newest frames that a stream answered about, each under its time, with nothing chosen by the question.

`last-N` is the baseline of "SimpleStream" (arXiv:2604.02317): the N newest frames with all of their tokens.
`last-N-STRATEGY` answers from the same frames as that strategy does: `last-4-evs` is EVS over a sliding window, as
vLLM's and SGLang's over a clip, on pixels. The budget holds for each frame, but of `last-N-smaller` for all of them
together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from arr_coc.qwen.qwenvl import QwenVL
from evaluation.strategies.base import Ask, Budget, Reply, Strategy
from evaluation.strategies.sampling import FULL, SMALLER

_NAME = re.compile(r"last-(?P<frames>[1-9]\d{0,2})(-(?P<of>.+))?")

NAMES = ("last-N", "last-N-STRATEGY")
"""Forms of the names, for messages."""


def newest(ask: Ask, frames: int) -> Ask:
    """The same question about the `frames` newest frames, those before the question's own included."""
    images, times_s = (*ask.before, *ask.frames), (*ask.before_s, *ask.times_s)
    return replace(
        ask,
        frames=images[-frames:],
        times_s=times_s[-frames:],
        before=images[:-frames],
        before_s=times_s[:-frames],
    )


def newest_named(name: str, strategies: Mapping[str, Strategy]) -> Strategy | None:
    """Return the strategy that a name such as `last-4` or `last-4-evs` means; None if it is no such name of one of the
    `strategies`."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    of = strategies.get(match["of"]) if match["of"] else FULL
    if of is None or of.begin is not None:
        return None
    answer = partial(_answer, of=of, frames=int(match["frames"]))
    return Strategy(name, answer, encodes=of.encodes, seeded=of.seeded, budgeted=of.budgeted)


def _answer(qwen: QwenVL, ask: Ask, of: Strategy, frames: int) -> Reply:
    newest_ask = newest(ask, frames)
    if of is SMALLER:
        tokens = ask.budget.of(ask.views(qwen)[-1].grid.tiles)
        newest_ask = replace(newest_ask, budget=Budget(tokens=max(1, tokens // len(newest_ask.frames))))
    return of.answer(qwen, newest_ask)
