"""A standing question: looks are due where something relevant happened, and noise does not turn the answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stream.answer.triggers import DebouncedVerdict, VerdictThresholds, YesNoTriggerOptions, YesNoTriggers

S = 1_000_000_000
RULES = YesNoTriggerOptions(every_ns=30 * S, on_change=0.1, least_ns=S)


def looked(triggers: YesNoTriggers, time_s: float, **seen: object) -> str | None:
    """Shows a frame, which is looked at where that is due; why."""
    triggers.observe(round(time_s * S), **seen)  # type: ignore[arg-type]
    return triggers.fire() if triggers.due else None


def test_looks_follow_change_cuts_and_a_slow_beat() -> None:
    triggers = YesNoTriggers(RULES)
    assert looked(triggers, 0) == "start"
    assert looked(triggers, 5, change=0.09) is None
    assert looked(triggers, 6, change=0.1) == "change"
    assert looked(triggers, 35.9) is None
    assert looked(triggers, 36) == "every"
    assert looked(triggers, 36.1, cut=True) == "cut"
    assert looked(triggers, 66) is None


def test_looks_keep_their_distance() -> None:
    triggers = YesNoTriggers(RULES)
    looked(triggers, 0)
    assert looked(triggers, 0.9, change=1.0) is None
    assert looked(triggers, 1.0, change=1.0) == "change"


def test_what_is_off_triggers_nothing() -> None:
    triggers = YesNoTriggers(YesNoTriggerOptions(on_cut=False))
    looked(triggers, 0)
    assert looked(triggers, 1e6, change=1.0, cut=True) is None


def test_an_unsure_look_is_followed_by_one_at_another_frame() -> None:
    triggers = YesNoTriggers(RULES)
    looked(triggers, 0)
    triggers.again()
    assert triggers.due is None
    assert looked(triggers, 0.5) is None
    assert looked(triggers, 1) == "again"
    assert looked(triggers, 2) is None


def test_a_look_that_is_due_waits_and_a_cut_goes_first() -> None:
    triggers = YesNoTriggers(RULES)
    triggers.observe(0)
    triggers.observe(S, change=1.0)
    assert triggers.due == "start"
    triggers.observe(2 * S, cut=True)
    assert triggers.fire() == "cut"


def test_a_discontinuity_is_looked_at_as_a_cut_is() -> None:
    for on_cut, fired in ((True, "discontinuity"), (False, None)):
        triggers = YesNoTriggers(YesNoTriggerOptions(on_cut=on_cut))
        triggers.observe(0)
        triggers.fire()
        triggers.observe(S, discontinuity=True)
        assert triggers.fire() == fired


def test_the_last_frame_is_looked_at_once() -> None:
    triggers = YesNoTriggers(RULES)
    triggers.finish()
    assert triggers.due is None
    looked(triggers, 0)
    triggers.finish()
    assert triggers.due is None
    looked(triggers, 0.1)
    triggers.finish()
    assert triggers.due == "end"


def test_a_look_on_another_occasion_counts() -> None:
    triggers = YesNoTriggers(RULES)
    looked(triggers, 0)
    triggers.observe(29 * S)
    assert triggers.fire() is None
    assert looked(triggers, 31) is None


def test_time_that_goes_back_does_not_stop_the_beat() -> None:
    triggers = YesNoTriggers(RULES)
    looked(triggers, 1000)
    assert looked(triggers, 0) is None
    assert looked(triggers, 30) == "every"


def turns(chances: Sequence[float], **rules: float) -> list[tuple[int, bool]]:
    """At which of these looks the answer turned, and to what."""
    standing = DebouncedVerdict(VerdictThresholds(**rules))
    found = []
    for index, yes in enumerate(chances):
        if standing.look(yes, 1.0):
            assert standing.answer is not None
            found.append((index, standing.answer))
    return found


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
def test_the_answer_turns_when_it_is_sure_or_confirmed(chances: list[float], expected: list[tuple[int, bool]]) -> None:
    assert turns(chances) == expected


def test_thresholds_are_those_that_were_given() -> None:
    assert turns([0.55, 0.55], yes_above=0.55) == [(1, True)]
    assert turns([0.99, 0.45, 0.45], no_below=0.45) == [(0, True), (2, False)]
    assert turns([0.7], sure=0.7) == [(0, True)]


def test_a_look_wants_another_one_only_while_it_is_in_doubt() -> None:
    standing = DebouncedVerdict(VerdictThresholds())
    standing.look(0.8, 1.0)
    assert standing.unsure
    standing.look(0.8, 1.0)
    assert not standing.unsure
    standing.look(0.2, 1.0)
    assert standing.unsure
    standing.look(0.5, 1.0)
    assert not standing.unsure


def test_neither_yes_nor_no_turns_nothing() -> None:
    standing = DebouncedVerdict(VerdictThresholds())
    assert not standing.look(1.0, 0.09)
    assert standing.answer is None
    assert standing.off_topic(0.09)
    assert standing.look(1.0, 0.1)
