"""Watches: noise does not change a verdict, and a yes becomes a match once it has held, in schedule and outside the
cooldown."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from stream.answer.triggers import (
    NO_YES_OR_NO,
    DebouncedVerdict,
    Watch,
    WatchList,
    WatchState,
    WatchStates,
)
from stream.config import AnswerConfig, Config, WatchConfig
from stream.display.text import EventText, verdict_text
from stream.events import Event, Match, Notice, VerdictChanged, YesNoResult, encode_event
from stream.media import SourceInfo
from stream.runtime.plan import SCHEDULE_OFF, RunPlan
from tests.support.events import look, match
from tests.support.garbage import collect_earlier

S = 1_000_000_000
FILE = SourceInfo("a.mp4", 64, 48, 10.0, None, None, live=False, codec="", pixel_format="")


def turns(chances: Sequence[float], **rules: float) -> list[tuple[int, bool]]:
    """Indices of the results that changed the verdict, with the new verdict."""
    verdict_of = DebouncedVerdict(WatchConfig(question="?", **rules))
    changes = []
    for index, yes in enumerate(chances):
        if verdict_of.update(yes, 1.0):
            assert verdict_of.verdict is not None
            changes.append((index, verdict_of.verdict))
    return changes


@pytest.mark.parametrize(
    ("chances", "expected"),
    [
        ([0.99], [(0, True)]),
        ([0.01, 0.99, 0.98, 0.01], [(1, True), (3, False)]),
        ([0.01, 0.01], []),
        ([0.8], []),
        ([0.8, 0.8], [(1, True)]),
        ([0.01, 0.8, 0.1, 0.8, 0.5, 0.8, 0.1], []),
        ([0.99, 0.2, 0.2], [(0, True), (2, False)]),
        ([0.99, 0.2, 0.5, 0.2, 0.9, 0.2], [(0, True)]),
        ([0.01, 0.59, 0.59, 0.59], []),
        ([0.99, 0.41, 0.41, 0.41], [(0, True)]),
        ([0.2, 0.2, 0.8, 0.8], [(3, True)]),
        ([0.2, 0.8], []),
    ],
)
def test_the_verdict_changes_when_it_is_sure_or_confirmed(
    chances: list[float], expected: list[tuple[int, bool]]
) -> None:
    assert turns(chances) == expected


def test_thresholds_are_those_that_were_given() -> None:
    assert turns([0.55, 0.55], threshold=0.55) == [(1, True)]
    assert turns([0.99, 0.45, 0.45], no_below=0.45) == [(0, True), (2, False)]
    assert turns([0.7], sure=0.7) == [(0, True)]


def test_a_verdict_is_pending_only_after_an_unsure_result() -> None:
    verdict_of = DebouncedVerdict(WatchConfig(question="?"))
    verdict_of.update(0.8, 1.0)
    assert verdict_of.pending
    verdict_of.update(0.8, 1.0)
    assert not verdict_of.pending
    verdict_of.update(0.2, 1.0)
    assert verdict_of.pending
    verdict_of.update(0.5, 1.0)
    assert not verdict_of.pending


def test_neither_yes_nor_no_changes_no_verdict() -> None:
    verdict_of = DebouncedVerdict(WatchConfig(question="?"))
    assert not verdict_of.update(1.0, 0.09)
    assert verdict_of.verdict is None
    assert verdict_of.is_off_topic(0.09)
    assert verdict_of.update(1.0, 0.1)


def watching(question: str = "is it here?", name: str = "here", **options: Any) -> WatchConfig:
    """A watch that is checked at cuts, at once."""
    return WatchConfig(
        **{"question": question, "name": name, "every_s": None, "on_change": None, "least_s": 0.0, **options}
    )


def test_a_change_of_the_verdict_follows_its_check() -> None:
    reported = Watch(watching()).update(look(0.5, 0.97, None), 0)
    assert [type(event) for event in reported] == [YesNoResult, VerdictChanged]
    first, turned = reported
    assert isinstance(first, YesNoResult)
    assert isinstance(turned, VerdictChanged)
    assert first.holds == turned.to == "yes"
    assert (turned.watch, turned.pts_s, turned.question) == ("here", 0.5, "is it here?")
    assert (turned.yes, turned.certain) == (0.97, 0.5)


def test_a_warning_is_in_every_check_and_change() -> None:
    watch = Watch(watching())
    watch.warning = "means nothing"
    first, turned = watch.update(look(0.5, 0.97, None), 0)
    assert isinstance(first, YesNoResult)
    assert isinstance(turned, VerdictChanged)
    assert first.warning == turned.warning == "means nothing"
    assert verdict_text(turned) == "yes (97 %): is it here? (means nothing)"
    assert '"warning":"means nothing"' in encode_event(turned)
    assert "warning" not in encode_event(look(0.5, 0.97, None))


def test_the_verdict_of_the_process_before_is_kept() -> None:
    state = WatchState(verdict=True)
    assert Watch(watching(), state).update(look(0.5, 0.97, None), 0) == [look(0.5, 0.97, "yes")]
    (_, turned) = Watch(watching(), state).update(look(0.5, 0.01, None), 0)
    assert isinstance(turned, VerdictChanged)
    assert turned.to == "no"


def test_an_unsure_check_makes_another_one_due() -> None:
    watch = Watch(watching())
    watch.triggers.observe(0)
    watch.triggers.fire()
    watch.update(look(0.0, 0.8), 0)
    watch.triggers.observe(1)
    assert watch.triggers.due == "again"


def test_another_answer_than_yes_or_no_is_reported_once() -> None:
    watch = Watch(watching())
    off = replace(look(0.0), certain=0.02)
    first, second = watch.update(off, 0), watch.update(off, 0)
    assert [type(event) for event in first] == [YesNoResult, Notice]
    notice = first[1]
    assert isinstance(notice, Notice)
    assert notice.code == NO_YES_OR_NO
    assert notice.message.startswith("the model answers 'is it here?' with neither yes nor no")
    assert len(second) == 1


def test_a_long_question_is_not_repeated_whole() -> None:
    off = replace(look(0.0), certain=0.0, question="is it there " * 50)
    notice = Watch(watching()).update(off, 0)[1]
    assert isinstance(notice, Notice)
    assert len(notice.message) < 240


CUT = {"cut": True}


class Watched:
    """Watches, of which frames are observed and checked at these times."""

    def __init__(self, *watches: WatchConfig, unix_s: Sequence[float] = (), states: WatchStates | None = None) -> None:
        self._unix_s = iter(unix_s)
        self.list = WatchList(watches, (lambda: next(self._unix_s)) if unix_s else None, states)
        self.matches: list[tuple[float, str, int]] = []
        self.events: list[Event] = []

    def see(self, at_s: float, *chances: float | None, **observation: object) -> Watched:
        """Observe a frame; the chances are those of its checks, in the order of the watches, if they are evaluated."""
        self._note(self.list.observe(round(at_s * S), (round(at_s), at_s), change=0.0, **observation))  # type: ignore[arg-type]
        if chances:
            for check, yes in zip(self.list.fire("beside"), chances, strict=True):
                assert yes is not None
                self._note(self.list.update(replace(look(at_s, yes, None, watch=check.watch), frame_index=round(at_s))))
        return self

    def _note(self, events: list[Event]) -> None:
        self.events += events
        self.matches += [(event.pts_s, event.watch, event.match) for event in events if isinstance(event, Match)]


def test_a_yes_is_a_match_at_once_and_once_as_long_as_it_holds() -> None:
    run = Watched(watching()).see(0, 0.01).see(1, 0.99).see(2, 0.99).see(3).see(4, 0.01).see(5, 0.99)
    assert run.matches == [(1, "here", 1), (5, "here", 2)]
    kinds = [type(event) for event in run.events if event.pts_s == 1]  # type: ignore[attr-defined]
    assert kinds == [YesNoResult, VerdictChanged, Match]


def test_a_yes_must_hold_and_matches_with_the_frame_at_which_it_has() -> None:
    run = Watched(watching(hold_s=2)).see(0, 0.99).see(1.9).see(2.1).see(3)
    assert run.matches == [(2.1, "here", 1)]
    assert run.events[-1] == replace(match(2.1), frame_index=2, yes=0.99)
    assert Watched(watching(hold_s=2)).see(0, 0.99).see(1, 0.01).see(3).matches == []
    retry = Watched(watching(hold_s=2)).see(0, 0.99).see(1, 0.01).see(1.5, 0.99).see(3).see(3.6)
    assert retry.matches == [(3.6, "here", 1)]


def test_a_yes_in_doubt_is_not_a_match_until_it_is_confirmed() -> None:
    run = Watched(watching(hold_s=1)).see(0, 0.99).see(0.9, 0.3).see(1.5)
    assert run.matches == []
    assert run.see(1.6, 0.9).matches == [(1.6, "here", 1)]


def test_a_yes_in_the_cooldown_is_no_match_and_stays_none() -> None:
    run = Watched(watching(cooldown_s=10))
    run.see(0, 0.99).see(2, 0.01).see(5, 0.99).see(11).see(12, 0.01).see(13, 0.99)
    assert run.matches == [(0, "here", 1), (13, "here", 2)]


def test_time_that_goes_back_begins_the_hold_anew() -> None:
    run = Watched(watching(hold_s=2, cooldown_s=5)).see(100, 0.99).see(0).see(1.9)
    assert run.matches == []
    assert run.see(2).matches == [(2, "here", 1)]


@pytest.mark.parametrize("shot", [{"cut": True}, {"discontinuity": True}], ids=["cut", "discontinuity"])
def test_a_hold_does_not_reach_into_the_next_shot(shot: dict[str, object]) -> None:
    run = Watched(watching(hold_s=2)).see(0, 0.99).see(2, **shot).see(3)
    assert run.matches == [], "the shot has not been checked yet"
    run.see(4, 0.0002).see(5)
    assert run.matches == []
    (turned,) = (event for event in run.events if isinstance(event, VerdictChanged) and event.to == "no")
    assert turned.pts_s == 4, "the verdict itself goes on until the shot's own check changes it"


def test_a_yes_of_the_next_shot_holds_from_its_own_check() -> None:
    run = Watched(watching(hold_s=2)).see(0, 0.99).see(1.5, **CUT).see(2, 0.99).see(3.9)
    assert run.matches == []
    assert run.see(4).matches == [(4, "here", 1)]
    assert sum(isinstance(event, VerdictChanged) for event in run.events) == 1, "yes in both shots is one yes"


def test_a_yes_that_goes_on_after_a_cut_has_had_its_match() -> None:
    run = Watched(watching()).see(0, 0.99).see(1, 0.99, **CUT).see(2, 0.99)
    assert run.matches == [(0, "here", 1)]
    run.see(3, 0.01, **CUT).see(4, 0.99, **CUT)
    assert run.matches == [(0, "here", 1), (4, "here", 2)]


def test_a_yes_that_goes_on_unsurely_after_a_cut_is_confirmed_in_its_own_shot() -> None:
    run = Watched(watching(hold_s=1)).see(0, 0.99).see(0.5, 0.8, **CUT).see(2)
    assert run.matches == []
    assert [watch.triggers.due for watch in run.list] == ["again"]
    run.see(2.5, 0.8).see(3)
    assert run.matches == []
    assert run.see(3.5).matches == [(3.5, "here", 1)]


@pytest.mark.parametrize("off", [0.5, 0.3])
def test_a_check_that_says_neither_does_not_make_the_yes_before_the_cut_count(off: float) -> None:
    run = Watched(watching(hold_s=1)).see(0, 0.99).see(0.5, off, **CUT).see(3)
    assert run.matches == []


def test_an_unsure_yes_is_not_confirmed_by_the_next_shot() -> None:
    run = Watched(watching()).see(0, 0.8).see(1, 0.8, **CUT)
    assert run.matches == []
    assert run.see(2, 0.8).matches == [(2, "here", 1)]
    doubted = Watched(watching()).see(0, 0.99).see(1, 0.3).see(2, 0.3, **CUT)
    assert doubted.events[-1] == replace(look(2, 0.3, "yes"), frame_index=2)


def test_a_no_that_goes_on_unsurely_needs_no_second_check() -> None:
    run = Watched(watching()).see(0, 0.01).see(1, 0.3, **CUT).see(2)
    assert not run.list.due


@pytest.mark.parametrize("hold_s", [0, 1])
@pytest.mark.parametrize("chance", [0.99, 0.8, 0.01])
def test_a_check_of_the_shot_before_that_comes_after_the_cut_changes_nothing(hold_s: int, chance: float) -> None:
    """It began before the cut, and its result comes with the second frame after it."""
    run = Watched(watching(hold_s=hold_s)).see(0)
    run.list.fire("start")
    run.see(1, **CUT).see(2)
    assert run.list.update(look(0, chance, None)) == [look(0, chance, None)]
    run.see(9)
    assert (run.matches, run.events) == ([], [])
    before_cut = Watched(watching(hold_s=hold_s)).see(0, 0.99).see(1)
    before_cut.list.fire("again")
    before_cut.see(2, **CUT)
    (late,) = before_cut.list.update(look(0, chance, None))
    assert late == look(0, chance, "yes"), "the verdict so far"
    assert [watch.triggers.due for watch in before_cut.list] == ["cut"], "no other check is due for it"


def test_a_match_of_another_process_is_not_repeated() -> None:
    had = WatchState(verdict=True, yes_since_ns=0, matched=True, last_match_ns=0)
    run = (
        Watched(watching(cooldown_s=9), states=WatchStates({"here": had}, matches=4))
        .see(1, 0.99)
        .see(2, 0.01)
        .see(5, 0.99)
        .see(7, 0.01)
        .see(10, 0.99)
    )
    assert run.matches == [(10, "here", 5)]
    holding = WatchStates({"here": WatchState(verdict=True, yes_since_ns=0)})
    run = Watched(watching(hold_s=3), states=holding)
    assert run.see(2, 0.99).see(3.5).matches == [(3.5, "here", 1)]


def test_watches_have_verdicts_and_matches_of_their_own() -> None:
    run = Watched(watching(), watching("is it gone?", "gone", hold_s=2))
    run.see(0, 0.01, 0.99).see(1, 0.99, 0.99).see(2, 0.99, 0.99)
    assert run.matches == [(1, "here", 1), (2, "gone", 2)]


def test_a_hold_ends_with_the_frame_at_its_time() -> None:
    """8.3 s times 1e9 is more than 8,300,000,000 as a float."""
    assert Watched(watching(hold_s=8.3)).see(0, 0.99).see(8.2).see(8.3).matches == [(8.3, "here", 1)]


def test_all_watches_are_checked_with_each_packet() -> None:
    watches = WatchList([watching(every_s=1), watching("is it gone?", "gone", every_s=5)])
    watches.observe(0, (0, 0.0), change=0.0)
    assert [(check.watch, check.trigger) for check in watches.fire("beside")] == [("here", "start"), ("gone", "start")]
    watches.observe(S, (1, 1.0), change=0.0)
    assert watches.due
    assert [(check.question, check.trigger) for check in watches.fire("beside")] == [
        ("is it here?", "every"),
        ("is it gone?", "beside"),
    ]
    assert not watches.due


def test_a_run_ends_with_the_match_of_a_watch_that_ends_it() -> None:
    watches = WatchList([watching(ends_run=True), watching("is it gone?", "gone")])
    assert watches.ends_run(match(0.0))
    assert not watches.ends_run(match(0.0, watch="gone"))
    assert not watches.ends_run(look(0.0))


NIGHT = "22:00-06:00 UTC"


def night_s(hour: float) -> float:
    return 86_400 * 100 + 3600 * hour


def test_outside_its_schedule_a_watch_is_not_checked_and_forgets() -> None:
    hours = [21.0, 22.0, 23.0, 30.5, 46.5, 46.6]
    run = Watched(watching(schedule=NIGHT), watching("is it gone?", "gone"), unix_s=[night_s(hour) for hour in hours])
    run.see(0, 0.01)
    assert run.matches == []
    assert [watch.due for watch in run.list] == [False, False]
    run.see(1)
    assert [watch.due for watch in run.list] == [True, False]
    run.see(2, 0.99, 0.01)
    assert run.matches == [(2, "here", 1)]
    run.see(3, 0.01)
    run.see(4)
    assert [watch.due for watch in run.list] == [True, False]
    run.see(5, 0.99, 0.01)
    assert run.matches == [(2, "here", 1), (5, "here", 2)], "what held on the day before does not hold any more"


def test_a_hold_ends_with_the_schedule() -> None:
    run = Watched(watching(schedule=NIGHT, hold_s=5), unix_s=[night_s(hour) for hour in (23, 30.5, 31, 47)])
    run.see(0, 0.99).see(6).see(7).see(8)
    assert run.matches == []


def test_a_match_has_a_line() -> None:
    assert EventText().line(match(62.0, 3, watch="door")) == "match 3 at 1:02.0: is it here?"


def test_memory_stays_constant_over_many_checks() -> None:
    collect_earlier()
    run = WatchList([watching(cooldown_s=1), watching("is it gone?", "gone", hold_s=1)])

    def look_often(times: int) -> int:
        for index in range(times):
            run.observe(index * S, (index, float(index)), change=1.0, cut=index % 7 == 0)
            for check in run.fire("beside"):
                run.update(look(float(index), (0.01, 0.8, 0.99, 0.5)[index % 4], watch=check.watch))
        gc.collect()  # also empties the interpreter's lists of free tuples
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before_bytes = look_often(200)
        assert look_often(2000) - before_bytes < 4096
    finally:
        tracemalloc.stop()


def test_watches_come_from_the_configuration() -> None:
    assert RunPlan.of(Config(), FILE).schedule.watches == ()
    watch = WatchConfig(
        name="it",
        question="is it?",
        every_s=None,
        on_change=0.5,
        on_cut=False,
        least_s=0.5,
        threshold=0.8,
        no_below=0.2,
        sure=0.9,
        certain=0.3,
        hold_s=2.5,
        cooldown_s=60,
        schedule="22:00-06:00 UTC",
        ends_run=True,
        force=True,
    )
    state = WatchState(verdict=True, matched=True)
    config = Config(answer=AnswerConfig(captions=True), watch=(watch,))
    plan = RunPlan.of(config, FILE, watches=WatchStates({"it": state}, 3))
    assert (plan.schedule.watches, plan.schedule.states) == (config.watch, WatchStates({"it": state}, 3))
    assert (plan.schedule.watches_only, plan.client.watches) == (False, ("is it?",))


@pytest.mark.parametrize("live", [True, False])
def test_schedules_count_for_live_sources_only(live: bool) -> None:
    info = SourceInfo("a", 64, 48, 10.0, None, None, live=live, codec="", pixel_format="")
    config = Config(watch=(WatchConfig(question="is it?", schedule="22:00-06:00 UTC"),))
    plan = RunPlan.of(config, info, wall_s=lambda: 7.0)
    assert (plan.schedule.wall_s is not None) == live
    assert [notice.code for notice in plan.notices] == [SCHEDULE_OFF] * (not live)


def test_two_watches_may_have_one_question() -> None:
    watches = tuple(WatchConfig(question="is it?", name=name) for name in ("a", "b"))
    assert RunPlan.of(Config(watch=watches), FILE).client.watches == ("is it?",)


def test_alone_the_first_watch_is_the_question() -> None:
    def asked(*watches: WatchConfig, captions: bool = False) -> str:
        return Config(answer=AnswerConfig(query="what?", captions=captions), watch=watches).first_question

    watch = WatchConfig(question="is it?")
    assert asked() == "what?"
    assert asked(watch, WatchConfig(question="was it?")) == "is it?"
    assert asked(watch, captions=True) == "what?"
