"""A time limit ends a run as well as Ctrl-C would, and whoever was first counts."""

from __future__ import annotations

from collections.abc import Callable

from stream.events import Event, Summary
from stream.runtime.session import ELAPSED, TimeLimit
from tests.event_maker import answer, frame, summary
from tests.fake_run import ScriptedRun


class FakeTimer:
    """Goes off when the test says so."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self.seconds, self.call = seconds, call
        self.told: list[str] = []

    def start(self) -> None:
        self.told.append("start")

    def cancel(self) -> None:
        self.told.append("cancel")


class Case:
    """A limited run and its timer."""

    def __init__(self, events: list[Event]) -> None:
        self.run = ScriptedRun(events)
        self.timers: list[FakeTimer] = []
        self.limit = TimeLimit(self.run, 60.0, self.timer)
        self.events = self.limit.events(self.run.run())

    def timer(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(seconds, call))
        return self.timers[-1]


def ending(event: Event) -> str:
    assert isinstance(event, Summary)
    return event.ended


def test_the_time_begins_with_the_first_frame() -> None:
    case = Case([answer(0.0, "a"), frame(0, 0.0), frame(1, 0.1), summary()])
    (timer,) = case.timers
    next(case.events)
    assert timer.told == []
    next(case.events)
    assert (timer.seconds, timer.told) == (60, ["start"])
    assert ending(list(case.events)[-1]) == "finished"
    assert timer.told == ["start", "cancel"]


def test_a_run_that_it_ended_says_so() -> None:
    case = Case([frame(0, 0.0), summary(ended="interrupted")])
    next(case.events)
    case.timers[0].call()
    assert case.run.told == ["end"]
    assert ending(next(case.events)) == ELAPSED


def test_a_run_that_was_interrupted_before_stays_interrupted() -> None:
    case = Case([frame(0, 0.0), summary(ended="interrupted")])
    next(case.events)
    case.limit.end()
    case.timers[0].call()
    assert case.run.told == ["end"]
    assert ending(next(case.events)) == "interrupted"


def test_a_run_that_is_cancelled_while_it_ends_is_cancelled() -> None:
    case = Case([frame(0, 0.0), summary(ended="cancelled")])
    next(case.events)
    case.timers[0].call()
    case.limit.cancel()
    assert case.run.told == ["end", "cancel"]
    assert ending(next(case.events)) == "cancelled"


def test_a_run_that_is_given_up_leaves_no_timer() -> None:
    case = Case([frame(0, 0.0), summary()])
    next(case.events)
    case.events.close()
    assert case.timers[0].told == ["start", "cancel"]
