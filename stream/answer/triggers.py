"""Triggers of answers; watches: when to evaluate them, their verdicts, and their matches. Pure logic; times are
arguments."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from arr_coc.types import NS_PER_S
from stream.config import AnswerConfig, WatchConfig
from stream.events import Event, Match, Notice, VerdictChanged, YesNoResult
from stream.options.schedule import Schedule

TriggerReason = Literal["start", "asked", "cut", "discontinuity", "change", "every", "end"]
YesNoReason = Literal["start", "cut", "discontinuity", "again", "change", "every", "end"]

SIDE = "side"
"""Trigger of an answer that a feature asks for between the run's own."""

BESIDE = "beside"
"""Trigger of a check that was not due, and is made with another watch's packet."""

_URGENCY: dict[TriggerReason, int] = {
    "start": 5, "asked": 4, "cut": 3, "discontinuity": 3, "change": 2, "every": 1, "end": 0,
}  # fmt: skip


class AnswerTriggers:
    """Triggers of answers: decides frame by frame whether one is due, and keeps it until the answer server is free.

    Times are nanoseconds of media time (file) or capture time (live). `observe` takes each frame; `fire` notes that its
    packet was sent. Triggers do not queue: of two, the more urgent one waits on, and the other one counts as missed.
    """

    def __init__(self, options: AnswerConfig) -> None:
        self._options = options
        self._every_ns = None if options.every_s is None else round(options.every_s * NS_PER_S)
        self._pending: TriggerReason | None = None
        self._next_ns: int | None = None
        self._seen_ns: int | None = None
        self._fired_last_frame = False
        self._missed_triggers = 0

    @property
    def due(self) -> TriggerReason | None:
        """The trigger that waits for the answer server; None without one."""
        return self._pending

    @property
    def missed_count(self) -> int:
        """Triggers that came while another one was waiting."""
        return self._missed_triggers

    def observe(
        self, time_ns: int, *, change: float = 0.0, cut: bool = False, discontinuity: bool = False
    ) -> TriggerReason | None:
        """Process the next frame; return `due`.

        Args:
            time_ns: time of the frame in nanoseconds.
            change: relevance-weighted change since the last answer, 0 to 1.
            cut: whether a shot begins with this frame.
            discontinuity: whether the frame cannot be compared with the one before.
        """
        new = self._new_trigger(time_ns, change, cut, discontinuity)
        self._seen_ns = time_ns
        self._fired_last_frame = False
        if new is not None:
            self._missed_triggers += self._pending is not None
            if self._pending is None or _URGENCY[new] > _URGENCY[self._pending]:
                self._pending = new
        return self._pending

    def ask(self) -> None:
        """Make an answer due with the next packet that is sent. Before the first frame, one is due with it anyway."""
        if self._seen_ns is None:
            return
        if self._pending is None or _URGENCY["asked"] > _URGENCY[self._pending]:
            self._missed_triggers += self._pending is not None
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
        trigger = self._pending
        self._pending = None
        self._fired_last_frame = True
        if trigger != "every" and self._every_ns is not None:
            self._next_ns = self._seen_ns + self._every_ns
        return trigger

    def _new_trigger(self, time_ns: int, change: float, cut: bool, discontinuity: bool) -> TriggerReason | None:
        options = self._options
        is_period_over = self._is_period_over(time_ns)
        if self._seen_ns is None:
            return "start"
        if (cut or discontinuity) and options.on_cut is not False:
            return "cut" if cut else "discontinuity"
        if options.on_change is not None and change >= options.on_change and self._pending is None:
            return "change"
        return "every" if is_period_over else None

    def _is_period_over(self, time_ns: int) -> bool:
        """Return whether a period has ended, and advance to the end of the period of `time_ns`."""
        period_ns = self._every_ns
        if period_ns is None:
            return False
        if self._next_ns is None or self._seen_ns is None or time_ns < self._seen_ns:
            self._next_ns = time_ns + period_ns
            return False
        if time_ns < self._next_ns:
            return False
        self._next_ns += period_ns * (1 + (time_ns - self._next_ns) // period_ns)
        return True


class YesNoTriggers:
    """Triggers of a watch: decides frame by frame whether an evaluation is due.

    `observe` takes each frame; `fire` notes that one was sent. An evaluation that is due waits for the answer server
    and then uses the newest frame, so evaluations do not queue. No two are closer than `least_s`, except at a cut.
    """

    def __init__(self, options: WatchConfig) -> None:
        self._options = options
        self._every_ns = None if options.every_s is None else round(options.every_s * NS_PER_S)
        self._least_ns = round(options.least_s * NS_PER_S)
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
        """Process the next frame.

        Args:
            time_ns: time of the frame in nanoseconds.
            change: relevance-weighted change since the last evaluation, 0 to 1.
            cut: whether a shot begins with this frame.
            discontinuity: whether the frame cannot be compared with the one before.
        """
        if self._seen_ns is not None and self._fired_ns is not None and time_ns < self._seen_ns:
            self._fired_ns = time_ns  # time went back: the wait counts from here
        self._seen_ns = time_ns
        self._fired_last_frame = False
        if (cut or discontinuity) and self._options.on_cut:
            self._due = "cut" if cut else "discontinuity"
        elif self._due is None:
            self._due = self._new_reason(time_ns, change)

    def restart(self) -> None:
        """Begin anew: the next frame is evaluated."""
        self._due = None
        self._retry = False
        self._fired_ns = None

    def retry(self) -> None:
        """Make another evaluation due as soon as `least_s` allows: the last result was lost or not sure."""
        self._retry = True

    def finish(self) -> None:
        """Note the end of frames: the last one observed is evaluated unless it has been."""
        if self._seen_ns is not None and not self._fired_last_frame:
            self._due = self._due or "end"

    def fire(self) -> YesNoReason | None:
        """Note that the last observed frame is evaluated, whether or not that was due; return the reason."""
        reason = self._due
        self._due = None
        self._retry = False
        self._fired_ns = self._seen_ns
        self._fired_last_frame = True
        return reason

    def _new_reason(self, time_ns: int, change: float) -> YesNoReason | None:
        options = self._options
        if self._fired_ns is None:
            return "start"
        waited_ns = time_ns - self._fired_ns
        if waited_ns >= self._least_ns:
            if self._retry:
                return "again"
            if options.on_change is not None and change >= options.on_change:
                return "change"
        if self._every_ns is not None and waited_ns >= self._every_ns:
            return "every"
        return None


QUERY_CHARS_SHOWN = 60
"""Length to which a query is cut in a notice."""

NO_YES_OR_NO = "no-yes-or-no"
"""Code of the notice that the model answers a watch's question with neither yes nor no."""


class DebouncedVerdict:
    """Verdict on a standing question, which noise does not change, by the thresholds of a watch.

    A sure result changes the verdict at once; any other must be confirmed by the next one. `verdict` is yes, no, or
    None before the first. It outlasts a cut; `is_of_shot`: results of this shot gave it.
    """

    def __init__(self, options: WatchConfig, verdict: bool | None = None) -> None:
        self._options = options
        self._unconfirmed: bool | None = None
        self.verdict = verdict
        self.is_of_shot = verdict is not None

    @property
    def pending(self) -> bool:
        """True if the last result disagrees with the verdict and is to be confirmed."""
        return self._unconfirmed is not None

    def is_off_topic(self, mass: float) -> bool:
        """Return whether the model answered with neither yes nor no."""
        return mass < self._options.certain

    def update(self, yes: float, mass: float) -> bool:
        """Process the next result; return whether the verdict has changed. A first no is no change."""
        if self.is_off_topic(mass):
            new = None
        else:
            new = self._decide(yes)
        # a no that goes on needs no second look after a cut, because nothing waits for it
        if new is None or (new == self.verdict and (self.is_of_shot or not new)):
            self._unconfirmed = None
            return False
        is_sure = (yes if new else 1 - yes) >= self._options.sure
        if not is_sure and self._unconfirmed is not new:
            self._unconfirmed = new
            return False
        before = self.verdict
        self.verdict = new
        self.is_of_shot = True
        self._unconfirmed = None
        return new is not before and (new or before is not None)

    def begin_shot(self) -> None:
        """Note that the next results are about another shot, in which they confirm no earlier one."""
        self._unconfirmed = None
        self.is_of_shot = False

    def forget(self) -> None:
        """Set the verdict to unknown."""
        self.verdict = self._unconfirmed = None
        self.is_of_shot = False

    def _decide(self, yes: float) -> bool | None:
        if yes >= self._options.threshold:
            return True
        if yes <= self._options.most_of_no:
            return False
        return None


@dataclass(frozen=True, slots=True)
class WatchState:
    """State of a watch that outlives a process: its `verdict`; since when that is yes (None unless it is), whether that
    yes has had its match, and when the last match was, in nanoseconds as of capture."""

    verdict: bool | None = None
    yes_since_ns: int | None = None
    matched: bool = False
    last_match_ns: int | None = None


class Watch:
    """A standing question that is evaluated repeatedly with yes or no; makes events of the results.

    It goes on from `state`. `warning`: text beside all of them; None for none. `active`: the schedule has begun, and
    not ended.
    """

    def __init__(self, options: WatchConfig, state: WatchState | None = None) -> None:
        state = state or WatchState()
        self.options = options
        self.triggers = YesNoTriggers(options)
        self.active = True
        self.warning: str | None = None
        self._hold_ns = round(options.hold_s * NS_PER_S)
        self._cooldown_ns = round(options.cooldown_s * NS_PER_S)
        self._schedule = None if options.schedule is None else Schedule.of(options.schedule)
        self._verdict = DebouncedVerdict(options, state.verdict)
        self._yes_since_ns = state.yes_since_ns
        self._matched = state.matched
        self._last_match_ns = state.last_match_ns
        self._last: YesNoResult | None = None
        self._off_topic_reported = False

    @property
    def due(self) -> bool:
        """True if an evaluation is due."""
        return self.active and self.triggers.due is not None

    def on_schedule(self, unix_s: float) -> None:
        """Note the time of day. What was known before the schedule's end is unknown when it begins again."""
        active = self._schedule is None or self._schedule.contains(unix_s)
        if active and not self.active:
            self.triggers.restart()
        elif not active and self.active:
            self._verdict.forget()
            self._yes_since_ns = None
            self._matched = False
            self._last = None
        self.active = active

    def begin_shot(self) -> None:
        """Begin the hold anew, with a yes of the shot that begins with the next frame.

        The verdict stays until that shot's own results change it: a yes that goes on has had its match.
        """
        self._verdict.begin_shot()
        self._yes_since_ns = self._last = None

    def report_late(self, result: YesNoResult) -> list[Event]:
        """Return the result of a frame before the last cut, which changes nothing, with the verdict so far."""
        return [replace(result, holds=self._holds, warning=self.warning)]

    def update(self, result: YesNoResult, time_ns: int) -> list[Event]:
        """Return the result with the verdict after it, and the events that follow from it, without the match.

        `time_ns` is the time of its frame.
        """
        changed = self._verdict.update(result.yes, result.certain)
        if self._verdict.pending:
            self.triggers.retry()
        verdict = self._holds
        self._last = result
        if not self._verdict.verdict:
            self._yes_since_ns = None
            self._matched = False
        elif self._yes_since_ns is None and self._verdict.is_of_shot:
            self._yes_since_ns = time_ns
        events: list[Event] = [replace(result, holds=verdict, warning=self.warning)]
        if changed and verdict is not None:
            events.append(
                VerdictChanged(
                    watch=result.watch,
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

    def match(self, time_ns: int, number: int, at: tuple[int, float]) -> Match | None:
        """Return the match that has become due by `time_ns`, as match `number`, at frame index and media time `at`.

        One yes is at most one match, also if it goes on in another shot: a yes in the cooldown is none. A yes that is
        in doubt waits.
        """
        options = self.options
        since_ns = self._yes_since_ns
        last = self._last
        if since_ns is None or last is None or self._matched or self._verdict.pending or not self.active:
            return None
        if time_ns < since_ns:
            self._yes_since_ns = since_ns = time_ns  # time went back: the wait counts from here
        if time_ns - since_ns < self._hold_ns:
            return None
        self._matched = True
        before_ns = self._last_match_ns
        if before_ns is not None and 0 <= time_ns - before_ns < self._cooldown_ns:
            return None
        self._last_match_ns = time_ns
        return Match(
            match=number,
            watch=options.name,
            frame_index=at[0],
            pts_s=at[1],
            question=options.question,
            yes=last.yes,
            certain=last.certain,
        )

    @property
    def _holds(self) -> str | None:
        """The verdict as events have it."""
        if self._verdict.verdict is None:
            return None
        return _word(self._verdict.verdict)


@dataclass(frozen=True, slots=True)
class WatchStates:
    """States of the watches of a run by name, and the number of its matches so far."""

    by_name: dict[str, WatchState] = field(default_factory=dict)
    matches: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """Question of a watch to be evaluated with a packet, and why."""

    watch: str
    question: str
    trigger: str


class WatchList:
    """The watches of a run, which share its frames and packets: what is due, and the events that follow from results.

    `wall_s`: returns Unix time; None if schedules do not count, because the source is not live. `states`: those of the
    process before. `matches`: the number of matches so far.
    """

    def __init__(
        self,
        options: Sequence[WatchConfig],
        wall_s: Callable[[], float] | None = None,
        states: WatchStates | None = None,
    ) -> None:
        states = states or WatchStates()
        self._watches = {watch.name: Watch(watch, states.by_name.get(watch.name)) for watch in options}
        scheduled = wall_s is not None and any(watch.schedule is not None for watch in options)
        self._wall_s = wall_s if scheduled else None
        self._fired_ns = 0
        self._time_ns = 0
        self._shot_index = 0
        self.matches = states.matches

    def __iter__(self) -> Iterator[Watch]:
        return iter(self._watches.values())

    def __len__(self) -> int:
        return len(self._watches)

    @property
    def questions(self) -> list[str]:
        """Questions of the watches, in order."""
        return [watch.options.question for watch in self._watches.values()]

    def add(self, options: WatchConfig) -> Watch:
        """Add a watch, which is evaluated with the next frame, and return it."""
        watch = self._watches[options.name] = Watch(options)
        return watch

    def remove(self, name: str) -> None:
        """Remove a watch of which no result is awaited."""
        del self._watches[name]

    @property
    def due(self) -> bool:
        """True if an evaluation is due."""
        return any(watch.due for watch in self._watches.values())

    def observe(
        self, time_ns: int, at: tuple[int, float], *, change: float, cut: bool = False, discontinuity: bool = False
    ) -> list[Event]:
        """Process the next frame; return the matches that are due with it.

        Args:
            time_ns: time of the frame in nanoseconds.
            at: index and media time in seconds of the frame, for events.
            change: relevance-weighted change since the last evaluation, 0 to 1.
            cut: whether a shot begins with this frame.
            discontinuity: whether the frame cannot be compared with the one before.
        """
        self._time_ns = time_ns
        if cut or discontinuity:
            self._shot_index = at[0]
        unix_s = None if self._wall_s is None else self._wall_s()
        events = []
        for watch in self._watches.values():
            if cut or discontinuity:
                watch.begin_shot()
            if unix_s is not None:
                watch.on_schedule(unix_s)
            watch.triggers.observe(time_ns, change=change, cut=cut, discontinuity=discontinuity)
            events += self._match(watch, time_ns, at)
        return events

    def retry(self) -> None:
        """Make another evaluation due: the last result was lost."""
        for watch in self._watches.values():
            watch.triggers.retry()

    def finish(self) -> None:
        """Note the end of frames: the last one observed is evaluated unless it has been."""
        for watch in self._watches.values():
            watch.triggers.finish()

    def fire(self, default_trigger: str) -> tuple[Check, ...]:
        """Note that the last observed frame is evaluated; return the questions of all watches in their schedules, with
        their triggers, or `default_trigger` for one that was not due."""
        self._fired_ns = self._time_ns
        return tuple(
            Check(watch.options.name, watch.options.question, watch.triggers.fire() or default_trigger)
            for watch in self._watches.values()
            if watch.active
        )

    def update(self, result: YesNoResult) -> list[Event]:
        """Return the result with the verdict after it, and the events that follow from it: none if a shot has begun
        since its frame."""
        watch = self._watches[result.watch]
        if result.frame_index < self._shot_index:
            return watch.report_late(result)
        events = watch.update(result, self._fired_ns)
        return [*events, *self._match(watch, self._fired_ns, (result.frame_index, result.pts_s))]

    def ends_run(self, event: Event) -> bool:
        """Return whether the run ends with this event."""
        return isinstance(event, Match) and self._watches[event.watch].options.ends_run

    def _match(self, watch: Watch, time_ns: int, at: tuple[int, float]) -> list[Event]:
        match = watch.match(time_ns, self.matches + 1, at)
        self.matches += match is not None
        return [] if match is None else [match]


def _word(verdict: bool) -> str:
    return "yes" if verdict else "no"


def _off_topic_text(result: YesNoResult) -> str:
    query = textwrap.shorten(result.question, QUERY_CHARS_SHOWN, placeholder="…")
    return (
        f"the model answers {query!r} with neither yes nor no (both together have {100 * result.certain:.1f} % of the "
        "probability); such checks are ignored: ask a yes/no question"
    )
