"""Budget by shadow checks: how often answers differ from those of all tokens sets the budget, or raises an alarm."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Literal, Self

from arr_coc.budget import ADAPTIVE, DEFAULT_LIMITS, Budget, TokenLimits, fixed_tokens
from arr_coc.errors import counted
from stream.config import Config
from stream.events import BudgetChanged, Event, Notice, ShadowCheck
from stream.extensions.shadow.section import ShadowSection
from stream.stages.base import BudgetSetter, FrameLimits

LOW = "quality-low"
MET = "quality-met"
"""Codes of the notices: answers differ too often and the budget may not rise; they agree again."""

Move = Literal["raise", "lower", "alarm", "clear"]


PATIENCE_MAX = 16
"""Largest factor of the checks that agree before a fall: a budget that is too small is then tried seldom."""


class ShadowRule:
    """Rule that moves a budget by steps, from checks that agree or differ. No clock, no I/O: the same checks give the
    same moves.

    A raise as soon as more than `raise_above` of `window` checks differ. A fall once `agreeing` checks in a row agree
    and less than `lower_below` of the window differ. A raise that undoes a fall doubles that number, and `agreeing`
    checks in a row after a fall restore it. Either begins a new window, so that one budget's checks say nothing of the
    next one's. `level`: steps above the configured budget.
    """

    def __init__(self, options: ShadowSection) -> None:
        self._options = options
        self._window: deque[bool] = deque(maxlen=options.window)
        self._agreements = 0
        self._patience = 1
        self._fell = self._alarmed = False
        self.level = 0

    @property
    def difference_count(self) -> int:
        """Checks of the window that differ."""
        return sum(self._window)

    @property
    def checks(self) -> int:
        """Checks of the window so far."""
        return len(self._window)

    def factor(self, level: int) -> float:
        """Return the factor of the configured budget at a level."""
        return min(self._options.step**level, self._options.most)

    def observe(self, differs: bool, *, raisable: bool = True) -> list[Move]:
        """Take in a check, and return what follows; `raisable`: another step would change the budget.

        `begin_window` is due after a raise or a fall, once the caller has read the counts.
        """
        options = self._options
        self._window.append(differs)
        self._agreements = 0 if differs else self._agreements + 1
        if self.difference_count > options.raise_above * options.window:
            if options.act and raisable:
                if self._fell:
                    self._patience = min(2 * self._patience, PATIENCE_MAX)
                self._fell = False
                self.level += 1
                return ["raise"]
            first = not self._alarmed
            self._alarmed = True
            return ["alarm"] if first else []
        if self._agreements < options.agreeing or self.difference_count >= options.lower_below * self.checks:
            return []
        moves: list[Move] = ["clear"] if self._alarmed else []
        self._alarmed = False
        if self._fell:
            self._fell = False
            self._patience = 1
        if self.level and self._agreements >= options.agreeing * self._patience:
            self._fell = True
            self.level -= 1
            moves.append("lower")
        return moves

    def begin_window(self) -> None:
        """Forget the checks of another budget."""
        self._window.clear()
        self._agreements = 0


class QualityController(BudgetSetter):
    """Controller of one run's budget by its shadow checks, for the thread that allocates.

    A number, a share and "auto" rise themselves, within `limits.max_tokens` or the number itself if that is more. Of a
    budget that adapts, to the picture or to a latency target (`adaptive`), the most tokens rise.
    """

    def __init__(
        self, options: ShadowSection, budget: Budget, limits: TokenLimits = DEFAULT_LIMITS, *, adaptive: bool = False
    ) -> None:
        self._options = options
        self._budget = budget
        self._limits = limits
        self._adaptive = adaptive or budget == ADAPTIVE
        self._rule = ShadowRule(options)

    @classmethod
    def of(cls, config: Config, *, lockstep: bool) -> Self | None:
        """Return the controller of a run, None without shadow checks. Answers in lockstep have no latency target."""
        options = ShadowSection.of(config)
        if options.every is None:
            return None
        adaptive = config.value("latency.target_ms") is not None and not lockstep
        return cls(options, config.allocate.budget, config.allocate.limits, adaptive=adaptive)

    def limits(self, tiles: int, limits: FrameLimits) -> FrameLimits:
        """Return the limits with the raised budget, or the raised most tokens of one that adapts."""
        if not self._rule.level:
            return limits
        if self._adaptive:
            return replace(limits, most_tokens=self._most_tokens(self._rule.level))
        return replace(limits, budget=self._tokens(tiles, self._rule.level))

    def on_event(self, event: Event, tiles: int) -> list[Event]:
        """Return an event of the run; a check is followed by what it changes for frames of `tiles` tiles."""
        if isinstance(event, ShadowCheck):
            return self._on_check(event, tiles)
        return [event]

    def _on_check(self, check: ShadowCheck, tiles: int) -> list[Event]:
        """Return the check, followed by what it changes for frames of `tiles` tiles."""
        rule = self._rule
        before = self._tokens(tiles, self._rule.level)
        moves = rule.observe(check.differs, raisable=self._tokens(tiles, rule.level + 1) > before)
        events: list[Event] = [check]
        for move in moves:
            if move in ("raise", "lower"):
                events.append(
                    BudgetChanged(
                        answer=check.answer,
                        frame_index=check.frame_index,
                        pts_s=check.pts_s,
                        reason="differ" if move == "raise" else "agree",
                        from_tokens=before,
                        to_tokens=self._tokens(tiles, rule.level),
                        differing=rule.difference_count,
                        checks=rule.checks,
                    )
                )
                rule.begin_window()
            else:
                events.append(self._low_notice(before) if move == "alarm" else self._met_notice())
        return events

    def _tokens(self, tiles: int, level: int) -> int:
        """Return the budget at a level, or the most tokens of one that adapts."""
        if self._adaptive:
            return min(self._most_tokens(level), tiles)
        start = fixed_tokens(self._budget, tiles, self._limits)
        return max(start, min(round(start * self._rule.factor(level)), self._limits.max_tokens, tiles))

    def _most_tokens(self, level: int) -> int:
        """Return the most tokens of a budget that adapts, for a frame of any size."""
        return round(self._limits.max_tokens * self._rule.factor(level))

    def _low_notice(self, tokens: int) -> Notice:
        rule = self._rule
        if self._options.act:
            limit_text = " and its limit is reached"
        else:
            limit_text = ""
        if self._options.act:
            remedy = "raise --max-budget or --budget"
        else:
            remedy = "raise --budget, or give --shadow-act"
        message = (
            f"{rule.difference_count} of the last {counted(rule.checks, 'shadow check')} differ from the answer of all "
            f"tokens: the budget of {counted(tokens, 'token')} is too small{limit_text}; {remedy}"
        )
        return Notice(code=LOW, message=message)

    def _met_notice(self) -> Notice:
        checks = counted(self._options.agreeing, "shadow check")
        return Notice(code=MET, message=f"the last {checks} agree with the answers of all tokens again")
