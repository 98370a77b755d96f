"""Triggers of answers, and of evaluations of a standing query. Pure logic; times come from outside."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from stream.events import Event, Notice, VerdictChanged, YesNoResult

TriggerReason = Literal["start", "asked", "cut", "discontinuity", "change", "every", "end"]

_URGENCY: dict[TriggerReason, int] = {
    "start": 5, "asked": 4, "cut": 3, "discontinuity": 3, "change": 2, "every": 1, "end": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AnswerTriggerOptions:
    """`every_ns` and `on_change` are off where None; `on_change` is a share of the relevance, in (0, 1].

    `on_cut`: at scene cuts, and wherever else a frame cannot be compared with the one before.
    """

    every_ns: int | None = None
    on_change: float | None = None
    on_cut: bool = True


class AnswerTriggers:
    """Decides frame by frame whether an answer is due, and remembers it until the answer stage is free.

    Times are nanoseconds of media time (file) or capture time (live). Each frame is shown to `observe`; when its
    packet has been sent, `fire` says so. A trigger that comes while another one still waits does not queue up: the
    more urgent of the two waits on, and the other one counts as missed.
    """

    def __init__(self, rules: AnswerTriggerOptions) -> None:
        self._rules = rules
        self._pending: TriggerReason | None = None
        self._next_ns: int | None = None
        self._seen_ns: int | None = None
        self._fired_last_frame = False
        self._missed = 0

    @property
    def due(self) -> TriggerReason | None:
        """The trigger that waits for the answer stage."""
        return self._pending

    @property
    def missed(self) -> int:
        """Triggers that came while another one was waiting."""
        return self._missed

    def observe(
        self, time_ns: int, *, change: float = 0.0, cut: bool = False, discontinuity: bool = False
    ) -> TriggerReason | None:
        """Shows the next frame; `change` is the relevance-weighted change since the last answer. Returns `due`."""
        new = self._new_trigger(time_ns, change, cut, discontinuity)
        self._seen_ns = time_ns
        self._fired_last_frame = False
        if new is not None:
            self._missed += self._pending is not None
            if self._pending is None or _URGENCY[new] > _URGENCY[self._pending]:
                self._pending = new
        return self._pending

    def ask(self) -> None:
        """Somebody wants an answer now: about the next frame that is sent. Before the first frame that one is it."""
        if self._seen_ns is None:
            return
        if self._pending is None or _URGENCY["asked"] > _URGENCY[self._pending]:
            self._missed += self._pending is not None
            self._pending = "asked"

    def finish(self) -> TriggerReason | None:
        """No frame comes after the last one observed: it gets an answer unless it already was an answer point."""
        if self._seen_ns is None or self._fired_last_frame:
            return None
        self._pending = self._pending or "end"
        return self._pending

    def fire(self) -> TriggerReason:
        """The packet of the last observed frame has been sent. Raises LookupError where nothing was due."""
        if self._pending is None or self._seen_ns is None:
            raise LookupError("no trigger is due")
        fired, self._pending = self._pending, None
        self._fired_last_frame = True
        if fired != "every" and self._rules.every_ns is not None:
            self._next_ns = self._seen_ns + self._rules.every_ns
        return fired

    def _new_trigger(self, time_ns: int, change: float, cut: bool, discontinuity: bool) -> TriggerReason | None:
        every = self._period_over(time_ns)
        if self._seen_ns is None:
            return "start"
        if (cut or discontinuity) and self._rules.on_cut:
            return "cut" if cut else "discontinuity"
        if self._rules.on_change is not None and change >= self._rules.on_change and self._pending is None:
            return "change"
        return "every" if every else None

    def _period_over(self, time_ns: int) -> bool:
        """Whether a period has ended; moves on to the end of the one that `time_ns` lies in."""
        period_ns = self._rules.every_ns
        if period_ns is None:
            return False
        if self._next_ns is None or self._seen_ns is None or time_ns < self._seen_ns:
            self._next_ns = time_ns + period_ns
            return False
        if time_ns < self._next_ns:
            return False
        self._next_ns += period_ns * (1 + (time_ns - self._next_ns) // period_ns)
        return True


YesNoReason = Literal["start", "cut", "discontinuity", "again", "change", "every", "end"]


@dataclass(frozen=True, slots=True)
class YesNoTriggerOptions:
    """When to look at a frame: after `every_ns` at the latest, and no two looks closer than `least_ns` but at a cut.

    `on_change` is a share of the relevance, in (0, 1]. `on_cut` as in TriggerRules. What is None or false is off.
    """

    every_ns: int | None = None
    on_change: float | None = None
    on_cut: bool = True
    least_ns: int = 0


class YesNoTriggers:
    """Decides frame by frame whether a look is due. Each frame is shown to `observe`; `fire` says that one was sent.

    A look that is due waits for the answer stage and is then at the newest frame, so nothing piles up.
    """

    def __init__(self, rules: YesNoTriggerOptions) -> None:
        self._rules = rules
        self._due: YesNoReason | None = None
        self._again = False
        self._seen_ns: int | None = None
        self._looked_ns: int | None = None
        self._looked_last_frame = False

    @property
    def due(self) -> YesNoReason | None:
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

    def fire(self) -> YesNoReason | None:
        """The last observed frame is looked at, whether or not that was due: why."""
        fired, self._due, self._again = self._due, None, False
        self._looked_ns, self._looked_last_frame = self._seen_ns, True
        return fired

    def _new(self, time_ns: int, change: float) -> YesNoReason | None:
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
class VerdictThresholds:
    """A probability of yes from `yes_above` on is a yes, up to `no_below` a no, and says nothing in between.

    One of `sure` or more (of no: 1 − `sure` or less) turns the answer at once; any other must be confirmed by the next
    look. A look says nothing either where yes and no together have less than `certain` of the probability.
    """

    yes_above: float = 0.6
    no_below: float = 0.4
    sure: float = 0.95
    certain: float = 0.1


class DebouncedVerdict:
    """The answer to a standing question, which noise does not turn."""

    def __init__(self, rules: VerdictThresholds) -> None:
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


QUESTION_CHARS = 60
"""Of a question, so much is repeated in a notice."""

NO_YES_OR_NO = "no-yes-or-no"
"""The code of the notice that the model answers a standing question with something else."""


@dataclass(frozen=True, slots=True)
class StandingQueryOptions:
    """`alone`: nothing else is asked. `stop`: the run is over once the answer has turned to yes.

    `holds`: the answer that held before, where this run goes on for another one. `force`: watch also with a model whose
    yes means nothing here.
    """

    question: str
    looks: YesNoTriggerOptions
    verdicts: VerdictThresholds
    alone: bool
    stop: bool
    holds: bool | None = None
    force: bool = False


class StandingQuery:
    """Takes looks, and makes of them what is told. `warning` stands beside all of it, where there is one."""

    def __init__(self, policy: StandingQueryOptions) -> None:
        self.policy = policy
        self.triggers = YesNoTriggers(policy.looks)
        self._standing = DebouncedVerdict(policy.verdicts)
        self._standing.answer = policy.holds
        self._warned = False
        self.warning: str | None = None

    def take(self, look: YesNoResult) -> list[Event]:
        """The look with what holds after it, and what follows from it."""
        turned = self._standing.look(look.yes, look.certain)
        if self._standing.unsure:
            self.triggers.again()
        answer = self._standing.answer
        holds = None if answer is None else _word(answer)
        told: list[Event] = [replace(look, holds=holds, warning=self.warning)]
        if turned and holds is not None:
            told.append(
                VerdictChanged(
                    frame_index=look.frame_index,
                    pts_s=look.pts_s,
                    question=look.question,
                    to=holds,
                    yes=look.yes,
                    certain=look.certain,
                    warning=self.warning,
                )
            )
        if self._standing.off_topic(look.certain) and not self._warned:
            self._warned = True
            told.append(Notice(code=NO_YES_OR_NO, message=_off_topic_text(look)))
        return told

    def over(self, event: Event) -> bool:
        """Whether the run is over with this event."""
        return self.policy.stop and isinstance(event, VerdictChanged) and event.to == _word(True)


def _word(answer: bool) -> str:
    return "yes" if answer else "no"


def _off_topic_text(look: YesNoResult) -> str:
    question = textwrap.shorten(look.question, QUESTION_CHARS, placeholder="…")
    return (
        f"the model answers {question!r} with neither yes nor no (both together have {100 * look.certain:.1f} % of the "
        "probability); such looks turn nothing: ask something that yes or no answers"
    )
