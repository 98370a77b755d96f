"""A standing question: when to look again, and when its answer has turned. Pure logic; times come from outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LookTrigger = Literal["start", "cut", "discontinuity", "again", "change", "every", "end"]


@dataclass(frozen=True, slots=True)
class LookRules:
    """When to look at a frame: after `every_ns` at the latest, and no two looks closer than `least_ns` but at a cut.

    `on_change` is a share of the relevance, in (0, 1]. `on_cut` as in TriggerRules. What is None or false is off.
    """

    every_ns: int | None = None
    on_change: float | None = None
    on_cut: bool = True
    least_ns: int = 0


class LookTriggers:
    """Decides frame by frame whether a look is due. Each frame is shown to `observe`; `fire` says that one was sent.

    A look that is due waits for the answer stage and is then at the newest frame, so nothing piles up.
    """

    def __init__(self, rules: LookRules) -> None:
        self._rules = rules
        self._due: LookTrigger | None = None
        self._again = False
        self._seen_ns: int | None = None
        self._looked_ns: int | None = None
        self._looked_last_frame = False

    @property
    def due(self) -> LookTrigger | None:
        """Why a look is due, if it is."""
        return self._due

    def observe(self, time_ns: int, *, change: float = 0.0, cut: bool = False, discontinuity: bool = False) -> None:
        """Shows the next frame; `change` is the relevance-weighted change since the last look."""
        if self._seen_ns is not None and self._looked_ns is not None and time_ns < self._seen_ns:
            self._looked_ns = time_ns  # time went back: what was waited counts from here
        self._seen_ns, self._looked_last_frame = time_ns, False
        if (cut or discontinuity) and self._rules.on_cut:
            self._due = "cut" if cut else "discontinuity"
        elif self._due is None:
            self._due = self._new(time_ns, change)

    def again(self) -> None:
        """The last look was not sure: another frame is to be looked at, as soon as looks may follow each other."""
        self._again = True

    def finish(self) -> None:
        """No frame comes after the last one observed: it is looked at unless it has been."""
        if self._seen_ns is not None and not self._looked_last_frame:
            self._due = self._due or "end"

    def fire(self) -> LookTrigger | None:
        """The last observed frame is looked at, whether or not that was due: why."""
        fired, self._due, self._again = self._due, None, False
        self._looked_ns, self._looked_last_frame = self._seen_ns, True
        return fired

    def _new(self, time_ns: int, change: float) -> LookTrigger | None:
        rules = self._rules
        if self._looked_ns is None:
            return "start"
        waited_ns = time_ns - self._looked_ns
        if waited_ns >= rules.least_ns:
            if self._again:
                return "again"
            if rules.on_change is not None and change >= rules.on_change:
                return "change"
        return "every" if rules.every_ns is not None and waited_ns >= rules.every_ns else None


@dataclass(frozen=True, slots=True)
class VerdictRules:
    """A probability of yes from `yes_above` on is a yes, up to `no_below` a no, and says nothing in between.

    One of `sure` or more (of no: 1 − `sure` or less) turns the answer at once; any other must be confirmed by the next
    look. A look says nothing either where yes and no together have less than `certain` of the probability.
    """

    yes_above: float = 0.6
    no_below: float = 0.4
    sure: float = 0.95
    certain: float = 0.1


class StandingAnswer:
    """The answer to a standing question, which noise does not turn."""

    def __init__(self, rules: VerdictRules) -> None:
        self._rules = rules
        self._doubted: bool | None = None
        self.answer: bool | None = None
        """Yes, no, or None before the first."""

    @property
    def unsure(self) -> bool:
        """The last look said something else than holds, and wants to be confirmed."""
        return self._doubted is not None

    def off_topic(self, certain: float) -> bool:
        """Whether a look was answered with something else than yes or no."""
        return certain < self._rules.certain

    def look(self, yes: float, certain: float) -> bool:
        """Takes the next look; whether the answer has turned. A first no turns nothing."""
        said = None if self.off_topic(certain) else self._said(yes)
        if said is None or said == self.answer:
            self._doubted = None
            return False
        sure = (yes if said else 1 - yes) >= self._rules.sure
        if not sure and self._doubted is not said:
            self._doubted = said
            return False
        before, self.answer, self._doubted = self.answer, said, None
        return said or before is not None

    def _said(self, yes: float) -> bool | None:
        if yes >= self._rules.yes_above:
            return True
        return False if yes <= self._rules.no_below else None
