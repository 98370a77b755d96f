"""Strategies and conditions of the suite: streams with and without a memory, and those of other suites."""

from __future__ import annotations

from typing import Literal, Protocol, get_args

from arr_coc.allocation.group import GroupOptions
from arr_coc.qwen.preprocess import Rgb
from arr_coc.qwen.qwenvl import QwenVL
from arr_coc.texture.polygons import Polygon
from evaluation.errors import ChoiceError
from evaluation.strategies.base import Ask, Budget, Strategy
from evaluation.strategies.camera import MAX_TOKENS, CameraOptions, StreamCamera
from evaluation.strategies.catalogue import strategy_named

Condition = Literal["plain", "watch", "other", "zone", "glance"]
CONDITIONS: tuple[Condition, ...] = get_args(Condition)
"""Nothing beside the answers; checks of a watch, with packets of their own between the answers and with each; another
question between the answers; questions about one half of the picture; a glance before each answer."""

GLANCE_EVERY_S = 0.5
"""Less than the time between two answers: a glance is due before each."""

STREAMS: dict[str, CameraOptions] = {
    "memory": CameraOptions(Budget(), memory=GroupOptions()),
    "memory-no-idle": CameraOptions(Budget(), memory=GroupOptions(), idle=0),
    "memory-patch": CameraOptions(Budget(), memory=GroupOptions(patch=True)),
    "snapshot": CameraOptions(Budget()),
}
"""A run with defaults; the same without idle time; with `answer.memory.patch`; and with `--no-memory`."""


class EventStream(Protocol):
    """One stream, as `StreamCamera` is."""

    def ask(self, question: str) -> None: ...
    def show(self, frame: Rgb, at_s: float) -> None: ...
    def idle(self) -> None: ...
    def answer(self) -> str: ...
    def check(self) -> float: ...
    def close(self) -> None: ...


class AnsweredFrames:
    """Stream of a strategy that sees only the frames that are asked about."""

    def __init__(self, qwen: QwenVL, strategy: Strategy, budget: Budget) -> None:
        self._stream = strategy.stream(qwen)
        self._encode = strategy.encodes[0]
        self._budget = budget

    def ask(self, question: str) -> None:
        self._question = question

    def show(self, frame: Rgb, at_s: float) -> None:
        self._frame, self._at_s = frame, at_s

    def idle(self) -> None:
        """Do nothing."""

    def answer(self) -> str:
        times_s = (self._at_s,)
        ask = Ask((self._frame,), times_s, self._question, self._budget, self._encode, max_tokens=MAX_TOKENS)
        return self._stream(ask).text

    def check(self) -> float:
        """Return no probability: a check leaves nothing behind that a later answer could see."""
        return 0.0

    def close(self) -> None:
        """Do nothing."""


def begin(
    qwen: QwenVL, strategy: str, budget: Budget, condition: Condition, zone: Polygon | None, watch: str
) -> EventStream:
    """Return a new stream of a strategy.

    Args:
        qwen: The model.
        strategy: One of `STREAMS`, or of another suite.
        budget: Visual tokens of a snapshot.
        condition: What happens beside the answers.
        zone: Corners of the part of the picture that questions are about, in shares of it.
        watch: Question of the watch, if there is one.

    Raises:
        ChoiceError: An unknown strategy, or one that does not know the condition.
    """
    options = STREAMS.get(strategy)
    if options is None:
        if condition in ("zone", "glance"):
            raise ChoiceError(f"{strategy} does not know {condition}; those that do are {', '.join(STREAMS)}")
        return AnsweredFrames(qwen, strategy_named(strategy), budget)
    glance_every_s = GLANCE_EVERY_S if condition == "glance" else None
    watched = watch if condition == "watch" else ""
    return StreamCamera(qwen, CameraOptions(budget, options.memory, options.idle, glance_every_s, zone, watched))
