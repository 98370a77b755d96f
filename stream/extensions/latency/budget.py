"""Controller for `latency.target_ms`: the times of answers become the budget of the frames that follow."""

from __future__ import annotations

import dataclasses
from typing import Self

from msgspec.structs import replace

from arr_coc.allocation.frame import FrameAllocation
from arr_coc.allocation.latency_budget import BudgetController
from arr_coc.budget import ADAPTIVE, DEFAULT_BUDGET, DEFAULT_LIMITS, Budget, TokenLimits
from arr_coc.errors import counted
from stream.config import Config
from stream.events import AnswerPoint, Event, Notice
from stream.extensions.latency.section import LatencySection
from stream.stages.base import BudgetSetter, FrameLimits

MISSED = "target-missed"
MET = "target-met"
OFF = "target-off"
"""Codes of the notices: the target cannot be met; it is met again; it has no effect in this run."""


class LatencyController(BudgetSetter):
    """Controller of one run's latency, for the thread that allocates: it holds p95 of an answer's `ttft_ms`.

    The search starts at `budget` if that is a number or a share. An adaptive budget still follows the spread of
    relevance, up to what the target allows.
    """

    def __init__(self, target_ms: float, budget: Budget, limits: TokenLimits = DEFAULT_LIMITS) -> None:
        self._adaptive = budget == ADAPTIVE
        self._limits = self._configured = limits
        self._controller = BudgetController(target_ms, DEFAULT_BUDGET if self._adaptive else budget, limits)
        self._last_frame: FrameAllocation | None = None
        self._tokens = 0

    @classmethod
    def of(cls, config: Config, *, lockstep: bool) -> Self | None:
        """Return the controller of a run, None without a target that it can hold."""
        target_ms = LatencySection.of(config).target_ms
        if target_ms is None or lockstep:
            return None
        return cls(target_ms, config.allocate.budget, config.allocate.limits)

    def limits(self, tiles: int, limits: FrameLimits) -> FrameLimits:
        """Return the budget that holds the target, no budget if it is adaptive, and the most tokens of that frame."""
        most_tokens = limits.most_tokens or self._configured.max_tokens
        if most_tokens != self._limits.max_tokens:
            self._limits = self._controller.limits = dataclasses.replace(self._limits, max_tokens=most_tokens)
        tokens = self._controller.budget_for(tiles)
        return FrameLimits(None if self._adaptive else tokens, tokens)

    def on_event(self, event: Event, tiles: int) -> list[Event]:
        """Return an event of the run; an answer has the target and the new budget, and may be followed by notices."""
        if isinstance(event, AnswerPoint):
            return self._on_answer(event)
        return [event]

    def on_request(self, frame: FrameAllocation, appended_tokens: int | None = None) -> None:
        """Note the frame of the answer that is being generated. `appended_tokens`: number of its tokens that are new to
        the model's memory; None without memory."""
        before = self._last_frame
        self._last_frame = frame
        if appended_tokens is not None:
            self._tokens = appended_tokens
        else:
            if before is not None and _same(before, frame):
                self._tokens = 0
            else:
                self._tokens = frame.tokens

    def _on_answer(self, answer: AnswerPoint) -> list[Event]:
        """Return the answer with the target and the new budget, followed by notices.

        An answer does not change the budget if its frame was shown whole because the allocation failed, or shows the
        same tokens as the previous frame, which the model has in memory.
        """
        tiles = answer.tokens_total
        verdict = None
        if answer.timing is not None and 0 < self._tokens <= self._limits.max_tokens:
            verdict = self._controller.observe(answer.timing.ttft_ms, self._tokens, tiles)
        events: list[Event] = [
            replace(answer, target_ms=self._controller.target_ms, budget=self._controller.budget_for(tiles)),
        ]
        if verdict is not None:
            events.append(self._missed_notice(tiles) if verdict == "missed" else self._met_notice())
        return events

    def _missed_notice(self, tiles: int) -> Notice:
        controller = self._controller
        least = min(self._limits.min_tokens, tiles)
        message = (
            f"latency.target_ms = {controller.target_ms:g} cannot be met: even with {counted(least, 'token')} p95 time "
            f"to first token is {controller.p95_ms(least):.0f} ms; raise it, or give a smaller model or another device"
        )
        return Notice(code=MISSED, message=message)

    def _met_notice(self) -> Notice:
        return Notice(code=MET, message=f"latency.target_ms = {self._controller.target_ms:g} can be met again")


def _same(before: FrameAllocation, now: FrameAllocation) -> bool:
    """Return whether a frame shows the same tokens as the previous frame of an answer."""
    if now is before:
        return True
    return now.change_since == 0 and now.allocation.regions.equal(before.allocation.regions)


def notices(config: Config, *, lockstep: bool) -> list[Notice]:
    """Return the notice that a run in lockstep does not hold its target."""
    if LatencySection.of(config).target_ms is None or not lockstep:
        return []
    message = (
        "latency.target_ms has no effect: a file that is read frame by frame gets the same answers on every run; give "
        "--realtime to hold it"
    )
    return [Notice(code=OFF, message=message)]
