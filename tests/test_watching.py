"""What is told of looks, and from the configuration to what a run watches for."""

from __future__ import annotations

import tracemalloc

import pytest
from msgspec.structs import replace

from stream.answer.triggers import (
    NO_YES_OR_NO,
    StandingQuery,
    StandingQueryOptions,
    VerdictThresholds,
    YesNoTriggerOptions,
)
from stream.config import AnswerConfig, Config, UntilConfig
from stream.display.text import turned_text
from stream.event_forms import encode_event
from stream.events import Notice, VerdictChanged, YesNoResult
from stream.runtime.wiring import watch_policy
from tests.event_maker import look


def watching(*, stop: bool = True, holds: bool | None = None) -> StandingQuery:
    return StandingQuery(
        StandingQueryOptions(
            "is it here?", YesNoTriggerOptions(), VerdictThresholds(), alone=True, stop=stop, holds=holds
        )
    )


def test_a_turn_follows_the_look_that_made_it() -> None:
    told = watching().take(look(0.5, 0.97, None))
    assert [type(event) for event in told] == [YesNoResult, VerdictChanged]
    first, turned = told
    assert isinstance(first, YesNoResult)
    assert isinstance(turned, VerdictChanged)
    assert first.holds == turned.to == "yes"
    assert (turned.pts_s, turned.question, turned.yes, turned.certain) == (0.5, "is it here?", 0.97, 0.5)


def test_a_warning_stands_beside_every_look_and_turn() -> None:
    watch = watching()
    watch.warning = "means nothing"
    first, turned = watch.take(look(0.5, 0.97, None))
    assert isinstance(first, YesNoResult)
    assert isinstance(turned, VerdictChanged)
    assert first.warning == turned.warning == "means nothing"
    assert turned_text(turned) == "yes (97 %): is it here? (means nothing)"
    assert '"warning":"means nothing"' in encode_event(turned)
    assert "warning" not in encode_event(look(0.5, 0.97, None))


def test_what_held_before_holds_on() -> None:
    assert watching(holds=True).take(look(0.5, 0.97, None)) == [look(0.5, 0.97, "yes")]
    (_, turned) = watching(holds=True).take(look(0.5, 0.01, None))
    assert isinstance(turned, VerdictChanged)
    assert turned.to == "no"


@pytest.mark.parametrize(("stop", "yes", "over"), [(True, 0.97, True), (True, 0.01, False), (False, 0.97, False)])
def test_a_run_is_over_with_a_yes_unless_it_goes_on(stop: bool, yes: float, over: bool) -> None:
    watch = watching(stop=stop, holds=yes < 0.5)
    assert [watch.over(event) for event in watch.take(look(0.0, yes))] == [False, over]


def test_an_unsure_look_asks_for_another_one() -> None:
    watch = watching()
    watch.triggers.observe(0)
    watch.triggers.fire()
    watch.take(look(0.0, 0.8))
    watch.triggers.observe(1)
    assert watch.triggers.due == "again"


def test_another_answer_than_yes_or_no_is_told_once() -> None:
    watch = watching()
    off = replace(look(0.0), certain=0.02)
    first, second = watch.take(off), watch.take(off)
    assert [type(event) for event in first] == [YesNoResult, Notice]
    notice = first[1]
    assert isinstance(notice, Notice)
    assert notice.code == NO_YES_OR_NO
    assert notice.message.startswith("the model answers 'is it here?' with neither yes nor no")
    assert len(second) == 1


def test_a_long_question_is_not_repeated_whole() -> None:
    off = replace(look(0.0), certain=0.0, question="is it there " * 50)
    notice = watching().take(off)[1]
    assert isinstance(notice, Notice)
    assert len(notice.message) < 240


def test_a_long_watch_keeps_memory_flat() -> None:
    watch = watching(stop=False)

    def look_often(times: int) -> int:
        for index in range(times):
            watch.triggers.observe(index * 10**9, change=1.0, cut=index % 7 == 0)
            watch.triggers.fire()
            watch.take(look(float(index), (0.01, 0.8, 0.99, 0.5)[index % 4]))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before_bytes = look_often(200)
        assert look_often(2000) - before_bytes < 4096
    finally:
        tracemalloc.stop()


def test_what_is_watched_for_comes_from_the_configuration() -> None:
    assert watch_policy(UntilConfig()) is None
    given = UntilConfig(
        question="is it?",
        captions=True,
        go_on=True,
        every_s=None,
        on_change=0.5,
        on_cut=False,
        least_s=0.5,
        yes_above=0.8,
        no_below=0.2,
        sure=0.9,
        certain=0.3,
    )
    assert watch_policy(given, holds=True) == StandingQueryOptions(
        question="is it?",
        looks=YesNoTriggerOptions(every_ns=None, on_change=0.5, on_cut=False, least_ns=500_000_000),
        verdicts=VerdictThresholds(yes_above=0.8, no_below=0.2, sure=0.9, certain=0.3),
        alone=False,
        stop=False,
        holds=True,
    )


def test_alone_the_standing_question_is_the_one_that_is_asked() -> None:
    def asked(**until: object) -> str:
        return Config(answer=AnswerConfig(query="what?", until=UntilConfig(**until))).answer.asked  # type: ignore[arg-type]

    assert asked() == "what?"
    assert asked(question="is it?") == "is it?"
    assert asked(question="is it?", captions=True) == "what?"
