"""Triggers of answers, and of evaluations of a standing query. Pure logic; times are arguments."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from stream.events import Event, Notice, VerdictChanged, YesNoResult

TriggerReason = Literal["start", "asked", "cut", "discontinuity", "change", "every", "end"]
YesNoReason = Literal["start", "cut", "discontinuity", "again", "change", "every", "end"]

_URGENCY: dict[TriggerReason, int] = {
    "start": 5, "asked": 4, "cut": 3, "discontinuity": 3, "change": 2, "every": 1, "end": 0,
}  # fmt: skip

QUERY_CHARS_SHOWN = 60
"""Length to which a query is cut in a notice."""

NO_YES_OR_NO = "no-yes-or-no"
"""Code of the notice that the model answers a standing query with neither yes nor no."""


@dataclass(frozen=True, slots=True)
class AnswerTriggerOptions:
    """Options of answer points. `every_ns` and `on_change` are off if None; `on_change` is a share of the relevance, in
    (0, 1].

    `on_cut`: at scene cuts, and at other frames that cannot be compared with the one before.
    """

    every_ns: int | None = None
    on_change: float | None = None
    on_cut: bool = True


class AnswerTriggers:
    """Triggers of answers: decides frame by frame whether one is due, and keeps it until the answer server is free.

    Times are nanoseconds of media time (file) or capture time (live). `observe` takes each frame; `fire` notes that its
    packet was sent. Triggers do not queue: of two, the more urgent one waits on, and the other one counts as missed.
    """

    def __init__(self, options: AnswerTriggerOptions) -> None:
        self._options = options
        self._pending: TriggerReason | None = None
        self._next_ns: int | None = None
        self._seen_ns: int | None = None
        self._fired_last_frame = False
        self._missed = 0

    @property
    def due(self) -> TriggerReason | None:
        """The trigger that waits for the answer server; None without one."""
        return self._pending

    @property
    def missed(self) -> int:
        """Triggers that came while another one was waiting."""
        return self._missed

    def observe(
        self, time_ns: int, *, change: float = 0.0, cut: bool = False, discontinuity: bool = False
    ) -> TriggerReason | None:
        """Process the next frame; `change` is the relevance-weighted change since the last answer. Returns `due`."""
        new = self._new_trigger(time_ns, change, cut, discontinuity)
        self._seen_ns = time_ns
        self._fired_last_frame = False
        if new is not None:
            self._missed += self._pending is not None
            if self._pending is None or _URGENCY[new] > _URGENCY[self._pending]:
                self._pending = new
        return self._pending

    def ask(self) -> None:
        """Make an answer due with the next packet that is sent. Before the first frame, one is due with it anyway."""
        if self._seen_ns is None:
            return
        if self._pending is None or _URGENCY["asked"] > _URGENCY[self._pending]:
            self._missed += self._pending is not None
            self._pending = "asked"

    def finish(self) -> TriggerReason | None:
        """Note the end of frames: the last one observed gets an answer unless it already was an answer point."""
        if self._seen_ns is None or self._fired_last_frame:
            return None
        self._pending = self._pending or "end"
        return self._pending

    def fire(self) -> TriggerReason:
        """Note that the packet of the last observed frame was sent; return its trigger. Raises LookupError if none was
        due."""
        if self._pending is None or self._seen_ns is None:
            raise LookupError("no trigger is due")
        fired, self._pending = self._pending, None
        self._fired_last_frame = True
        if fired != "every" and self._options.every_ns is not None:
            self._next_ns = self._seen_ns + self._options.every_ns
        return fired

    def _new_trigger(self, time_ns: int, change: float, cut: bool, discontinuity: bool) -> TriggerReason | None:
        options = self._options
        every = self._period_over(time_ns)
        if self._seen_ns is None:
            return "start"
        if (cut or discontinuity) and options.on_cut:
            return "cut" if cut else "discontinuity"
        if options.on_change is not None and change >= options.on_change and self._pending is None:
            return "change"
        return "every" if every else None

    def _period_over(self, time_ns: int) -> bool:
        """Return whether a period has ended, and advance to the end of the period of `time_ns`."""
        period_ns = self._options.every_ns
        if period_ns is None:
            return False
        if self._next_ns is None or self._seen_ns is None or time_ns < self._seen_ns:
            self._next_ns = time_ns + period_ns
            return False
        if time_ns < self._next_ns:
            return False
        self._next_ns += period_ns * (1 + (time_ns - self._next_ns) // period_ns)
        return True


@dataclass(frozen=True, slots=True)
class YesNoTriggerOptions:
    """Options of a standing query's evaluations: after `every_ns` at the latest, and no two closer than `least_ns`
    except at a cut.

    `on_change` is a share of the relevance, in (0, 1]. `on_cut` as in AnswerTriggerOptions. None or false is off.
    """

    every_ns: int | None = None
    on_change: float | None = None
    on_cut: bool = True
    least_ns: int = 0


class YesNoTriggers:
    """Triggers of a standing query: decides frame by frame whether an evaluation is due.

    `observe` takes each frame; `fire` notes that one was sent. An evaluation that is due waits for the answer server
    and then uses the newest frame, so evaluations do not queue.
    """

    def __init__(self, options: YesNoTriggerOptions) -> None:
        self._options = options
        self._due: YesNoReason | None = None
        self._retry = False
        self._seen_ns: int | None = None
        self._fired_ns: int | None = None
        self._fired_last_frame = False

    @property
    def due(self) -> YesNoReason | None:
        """The reason of the evaluation that is due, if one is."""
        return self._due

    def observe(self, time_ns: int, *, change: float = 0.0, cut: bool = False, discontinuity: bool = False) -> None:
        """Process the next frame; `change` is the relevance-weighted change since the last evaluation."""
        if self._seen_ns is not None and self._fired_ns is not None and time_ns < self._seen_ns:
            self._fired_ns = time_ns  # time went back: the wait counts from here
        self._seen_ns, self._fired_last_frame = time_ns, False
        if (cut or discontinuity) and self._options.on_cut:
            self._due = "cut" if cut else "discontinuity"
        elif self._due is None:
            self._due = self._new_reason(time_ns, change)

    def retry(self) -> None:
        """Make another evaluation due as soon as `least_ns` allows: the last result was lost or not sure."""
        self._retry = True

    def finish(self) -> None:
        """Note the end of frames: the last one observed is evaluated unless it has been."""
        if self._seen_ns is not None and not self._fired_last_frame:
            self._due = self._due or "end"

    def fire(self) -> YesNoReason | None:
        """Note that the last observed frame is evaluated, whether or not that was due; return the reason."""
        fired, self._due, self._retry = self._due, None, False
        self._fired_ns, self._fired_last_frame = self._seen_ns, True
        return fired

    def _new_reason(self, time_ns: int, change: float) -> YesNoReason | None:
        options = self._options
        if self._fired_ns is None:
            return "start"
        waited_ns = time_ns - self._fired_ns
        if waited_ns >= options.least_ns:
            if self._retry:
                return "again"
            if options.on_change is not None and change >= options.on_change:
                return "change"
        return "every" if options.every_ns is not None and waited_ns >= options.every_ns else None


@dataclass(frozen=True, slots=True)
class VerdictThresholds:
    """Thresholds of a verdict. A probability of yes from `yes_above` on is a yes, up to `no_below` a no, and between
    them neither.

    A probability of `sure` or more (of no: 1 - `sure` or less) changes the verdict at once; any other must be confirmed
    by the next result. A result is ignored if yes and no together have less than `certain` of the probability.
    """

    yes_above: float = 0.6
    no_below: float = 0.4
    sure: float = 0.95
    certain: float = 0.1


class DebouncedVerdict:
    """Verdict on a standing query, which noise does not change.

    `verdict` is yes, no, or None before the first.
    """

    def __init__(self, thresholds: VerdictThresholds, verdict: bool | None = None) -> None:
        self._thresholds = thresholds
        self._unconfirmed: bool | None = None
        self.verdict = verdict

    @property
    def pending(self) -> bool:
        """True if the last result disagrees with the verdict and is to be confirmed."""
        return self._unconfirmed is not None

    def is_off_topic(self, certain: float) -> bool:
        """Return whether the model answered with neither yes nor no."""
        return certain < self._thresholds.certain

    def update(self, yes: float, certain: float) -> bool:
        """Process the next result; return whether the verdict has changed. A first no is no change."""
        new = None if self.is_off_topic(certain) else self._decide(yes)
        if new is None or new == self.verdict:
            self._unconfirmed = None
            return False
        sure = (yes if new else 1 - yes) >= self._thresholds.sure
        if not sure and self._unconfirmed is not new:
            self._unconfirmed = new
            return False
        before, self.verdict, self._unconfirmed = self.verdict, new, None
        return new or before is not None

    def _decide(self, yes: float) -> bool | None:
        if yes >= self._thresholds.yes_above:
            return True
        return False if yes <= self._thresholds.no_below else None


@dataclass(frozen=True, slots=True)
class StandingQueryOptions:
    """Options of a standing query.

    `only_query`: nothing else is asked. `stop_on_yes`: the run ends once the verdict has changed to yes.
    `initial_verdict`: the verdict of the run that this one continues. `force`: also with a model whose yes means
    nothing for this source.
    """

    query: str
    triggers: YesNoTriggerOptions
    thresholds: VerdictThresholds
    only_query: bool
    stop_on_yes: bool
    initial_verdict: bool | None = None
    force: bool = False


class StandingQuery:
    """Query that is evaluated repeatedly with yes or no; makes events of the results.

    `warning`: text beside all of them; None for none.
    """

    def __init__(self, options: StandingQueryOptions) -> None:
        self.options = options
        self.triggers = YesNoTriggers(options.triggers)
        self._verdict = DebouncedVerdict(options.thresholds, options.initial_verdict)
        self._off_topic_reported = False
        self.warning: str | None = None

    def update(self, result: YesNoResult) -> list[Event]:
        """Return the result with the verdict after it, and the events that follow from it."""
        changed = self._verdict.update(result.yes, result.certain)
        if self._verdict.pending:
            self.triggers.retry()
        verdict = None if self._verdict.verdict is None else _word(self._verdict.verdict)
        events: list[Event] = [replace(result, holds=verdict, warning=self.warning)]
        if changed and verdict is not None:
            events.append(
                VerdictChanged(
                    frame_index=result.frame_index,
                    pts_s=result.pts_s,
                    question=result.question,
                    to=verdict,
                    yes=result.yes,
                    certain=result.certain,
                    warning=self.warning,
                )
            )
        if self._verdict.is_off_topic(result.certain) and not self._off_topic_reported:
            self._off_topic_reported = True
            events.append(Notice(code=NO_YES_OR_NO, message=_off_topic_text(result)))
        return events

    def is_finished(self, event: Event) -> bool:
        """Return whether the run ends with this event."""
        return self.options.stop_on_yes and isinstance(event, VerdictChanged) and event.to == _word(True)


def _word(verdict: bool) -> str:
    return "yes" if verdict else "no"


def _off_topic_text(result: YesNoResult) -> str:
    query = textwrap.shorten(result.question, QUERY_CHARS_SHOWN, placeholder="…")
    return (
        f"the model answers {query!r} with neither yes nor no (both together have {100 * result.certain:.1f} % of the "
        "probability); such checks are ignored: ask a yes/no question"
    )
