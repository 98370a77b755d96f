"""Triggers of answers and of watches: checks follow change."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.answer.triggers import (
    AnswerTriggers,
    TriggerReason,
    YesNoTriggers,
)
from stream.config import AnswerConfig, WatchConfig

S = 1_000_000_000
RULES = WatchConfig(question="?", every_s=30, on_change=0.1, least_s=1)


def looked(triggers: YesNoTriggers, time_s: float, **observation: object) -> str | None:
    """Observe a frame, and check it if that is due; return the reason."""
    triggers.observe(round(time_s * S), **observation)  # type: ignore[arg-type]
    return triggers.fire() if triggers.due else None


def test_checks_follow_change_cuts_and_a_long_period() -> None:
    triggers = YesNoTriggers(RULES)
    assert looked(triggers, 0) == "start"
    assert looked(triggers, 5, change=0.09) is None
    assert looked(triggers, 6, change=0.1) == "change"
    assert looked(triggers, 35.9) is None
    assert looked(triggers, 36) == "every"
    assert looked(triggers, 36.1, cut=True) == "cut"
    assert looked(triggers, 66) is None


def test_checks_keep_their_least_distance() -> None:
    triggers = YesNoTriggers(RULES)
    looked(triggers, 0)
    assert looked(triggers, 0.9, change=1.0) is None
    assert looked(triggers, 1.0, change=1.0) == "change"


def test_disabled_options_trigger_nothing() -> None:
    triggers = YesNoTriggers(WatchConfig(question="?", every_s=None, on_change=None, on_cut=False))
    looked(triggers, 0)
    assert looked(triggers, 1e6, change=1.0, cut=True) is None


def test_an_unsure_check_is_followed_by_one_of_another_frame() -> None:
    triggers = YesNoTriggers(RULES)
    looked(triggers, 0)
    triggers.retry()
    assert triggers.due is None
    assert looked(triggers, 0.5) is None
    assert looked(triggers, 1) == "again"
    assert looked(triggers, 2) is None


def test_a_due_check_waits_and_a_cut_has_precedence() -> None:
    triggers = YesNoTriggers(RULES)
    triggers.observe(0)
    triggers.observe(S, change=1.0)
    assert triggers.due == "start"
    triggers.observe(2 * S, cut=True)
    assert triggers.fire() == "cut"


def test_a_discontinuity_is_checked_as_a_cut_is() -> None:
    for on_cut, fired in ((True, "discontinuity"), (False, None)):
        triggers = YesNoTriggers(WatchConfig(question="?", every_s=None, on_change=None, least_s=0.0, on_cut=on_cut))
        triggers.observe(0)
        triggers.fire()
        triggers.observe(S, discontinuity=True)
        assert triggers.fire() == fired


def test_the_last_frame_is_checked_once() -> None:
    triggers = YesNoTriggers(RULES)
    triggers.finish()
    assert triggers.due is None
    looked(triggers, 0)
    triggers.finish()
    assert triggers.due is None
    looked(triggers, 0.1)
    triggers.finish()
    assert triggers.due == "end"


def test_a_check_that_was_not_due_counts() -> None:
    triggers = YesNoTriggers(RULES)
    looked(triggers, 0)
    triggers.observe(29 * S)
    assert triggers.fire() is None
    assert looked(triggers, 31) is None


def test_time_that_goes_back_does_not_stop_the_period() -> None:
    triggers = YesNoTriggers(RULES)
    looked(triggers, 1000)
    assert looked(triggers, 0) is None
    assert looked(triggers, 30) == "every"


def test_a_new_beginning_checks_the_next_frame() -> None:
    triggers = YesNoTriggers(RULES)
    looked(triggers, 0)
    triggers.observe(S, change=1.0)
    triggers.restart()
    assert triggers.due is None
    assert looked(triggers, 1.1) == "start"


TRIGGERS_S = 1_000_000_000


def answer_points(
    rules: AnswerConfig,
    times_ns: list[int],
    cuts: set[int] = frozenset(),
    changes: dict[int, float] | None = None,
) -> list[tuple[int, TriggerReason]]:
    """Index and trigger of each answer point if the answer stage is always free."""
    triggers = AnswerTriggers(rules)
    points: list[tuple[int, TriggerReason]] = []
    for index, time_ns in enumerate(times_ns):
        change = (changes or {}).get(index, 0.0)
        if triggers.observe(time_ns, change=change, cut=index in cuts):
            points.append((index, triggers.fire()))
    if triggers.finish():
        points.append((len(times_ns) - 1, triggers.fire()))
    return points


def test_first_frame_then_every_period_then_the_last_frame() -> None:
    times_ns = [index * TRIGGERS_S // 4 for index in range(11)]
    rules = AnswerConfig(every_s=1)
    assert answer_points(rules, times_ns) == [(0, "start"), (4, "every"), (8, "every"), (10, "end")]


def test_a_clip_shorter_than_the_period_has_two_answer_points_and_a_still_one() -> None:
    rules = AnswerConfig(every_s=2)
    assert answer_points(rules, [0, TRIGGERS_S // 2]) == [(0, "start"), (1, "end")]
    assert answer_points(rules, [0]) == [(0, "start")]


def test_a_last_frame_that_was_an_answer_point_is_not_answered_twice() -> None:
    assert answer_points(AnswerConfig(every_s=1), [0, TRIGGERS_S]) == [(0, "start"), (1, "every")]


def test_no_frames_no_answer() -> None:
    assert AnswerTriggers(AnswerConfig(every_s=None)).finish() is None


def test_without_a_period_only_the_ends_and_cuts_are_answer_points() -> None:
    times_ns = [index * TRIGGERS_S for index in range(6)]
    assert answer_points(AnswerConfig(every_s=None), times_ns, cuts={3}) == [(0, "start"), (3, "cut"), (5, "end")]


def test_a_cut_begins_the_period_anew() -> None:
    times_ns = [index * TRIGGERS_S for index in range(7)]
    points = answer_points(AnswerConfig(every_s=4), times_ns, cuts={3})
    assert points == [(0, "start"), (3, "cut"), (6, "end")]


def test_cuts_can_be_off() -> None:
    assert answer_points(AnswerConfig(every_s=None, on_cut=False), [0, TRIGGERS_S, 2 * TRIGGERS_S], cuts={1}) == [
        (0, "start"),
        (2, "end"),
    ]


@pytest.mark.parametrize("on_cut", [True, False])
def test_a_discontinuity_triggers_as_a_cut_does(on_cut: bool) -> None:
    triggers = AnswerTriggers(AnswerConfig(every_s=None, on_cut=on_cut))
    assert triggers.observe(0, discontinuity=True) == "start"
    triggers.fire()
    assert triggers.observe(TRIGGERS_S, discontinuity=True) == ("discontinuity" if on_cut else None)
    assert triggers.observe(2 * TRIGGERS_S, cut=True, discontinuity=True) == ("discontinuity" if on_cut else None)


def test_a_change_beyond_the_threshold_triggers() -> None:
    rules = AnswerConfig(every_s=None, on_change=0.5)
    points = answer_points(rules, [0, TRIGGERS_S, 2 * TRIGGERS_S, 3 * TRIGGERS_S], changes={1: 0.49, 2: 0.5})
    assert points == [(0, "start"), (2, "change"), (3, "end")]


def test_the_period_keeps_its_grid_through_long_gaps() -> None:
    times_ns = [0, 9 * TRIGGERS_S // 10, 35 * TRIGGERS_S // 10, 39 * TRIGGERS_S // 10, 4 * TRIGGERS_S]
    assert answer_points(AnswerConfig(every_s=1), times_ns) == [
        (0, "start"),
        (2, "every"),
        (4, "every"),
    ]


def test_time_that_goes_back_begins_the_period_anew() -> None:
    times_ns = [0, 10 * TRIGGERS_S, 2 * TRIGGERS_S, 2 * TRIGGERS_S + TRIGGERS_S // 2, 3 * TRIGGERS_S]
    points = answer_points(AnswerConfig(every_s=1), times_ns)
    assert points == [(0, "start"), (1, "every"), (4, "every")]


def test_a_trigger_waits_for_the_answer_stage_and_later_ones_are_counted() -> None:
    triggers = AnswerTriggers(AnswerConfig(every_s=1))
    for second in range(4):
        triggers.observe(second * TRIGGERS_S + 1)
    assert triggers.due == "start"
    assert triggers.missed_count == 3
    assert triggers.fire() == "start"
    for second in range(4, 8):
        assert triggers.observe(second * TRIGGERS_S + 1) == "every"
    assert triggers.missed_count == 6


def test_a_cut_has_precedence_over_a_waiting_period() -> None:
    triggers = AnswerTriggers(AnswerConfig(every_s=1))
    triggers.observe(0)
    triggers.fire()
    assert triggers.observe(TRIGGERS_S) == "every"
    assert triggers.observe(TRIGGERS_S + 1, cut=True) == "cut"
    assert triggers.observe(2 * TRIGGERS_S) == "cut"
    assert triggers.missed_count == 2


def test_a_change_does_not_count_as_missed_while_its_answer_waits() -> None:
    triggers = AnswerTriggers(AnswerConfig(every_s=None, on_change=0.2))
    triggers.observe(0)
    triggers.fire()
    for frame in range(1, 5):
        assert triggers.observe(frame, change=0.9) == "change"
    assert triggers.missed_count == 0


def test_a_trigger_waiting_at_the_end_is_answered_with_the_last_frame() -> None:
    triggers = AnswerTriggers(AnswerConfig(every_s=1))
    triggers.observe(0)
    triggers.observe(1)
    assert triggers.finish() == "start"


def test_a_question_is_answered_with_the_next_packet_whatever_the_period() -> None:
    triggers = AnswerTriggers(AnswerConfig(every_s=10))
    triggers.observe(0)
    triggers.fire()
    triggers.observe(TRIGGERS_S)
    assert triggers.due is None
    triggers.ask()
    assert triggers.due == "asked"
    assert triggers.missed_count == 0
    assert triggers.fire() == "asked"
    assert triggers.observe(10 * TRIGGERS_S) is None
    assert triggers.observe(11 * TRIGGERS_S) == "every"


def test_a_question_has_precedence_over_a_waiting_cut_but_not_over_the_first_frame() -> None:
    triggers = AnswerTriggers(AnswerConfig(every_s=None))
    triggers.observe(0)
    triggers.ask()
    assert triggers.due == "start"
    assert triggers.missed_count == 0
    triggers.fire()
    triggers.observe(1, cut=True)
    triggers.ask()
    assert triggers.due == "asked"
    assert triggers.missed_count == 1
    assert triggers.observe(2, cut=True) == "asked"
    assert triggers.missed_count == 2
    triggers.ask()
    assert triggers.missed_count == 2


def test_a_question_before_the_first_frame_is_answered_with_it() -> None:
    triggers = AnswerTriggers(AnswerConfig(every_s=None))
    triggers.ask()
    with pytest.raises(LookupError, match="no trigger is due"):
        triggers.fire()
    assert triggers.observe(0) == "start"


def test_firing_needs_a_trigger() -> None:
    with pytest.raises(LookupError, match="no trigger is due"):
        AnswerTriggers(AnswerConfig(every_s=None)).fire()


@given(
    st.lists(st.integers(1, 3 * TRIGGERS_S), min_size=1, max_size=50),
    st.integers(1, 5 * TRIGGERS_S),
)
def test_answers_are_at_the_first_and_last_frame_and_a_period_apart(gaps_ns: list[int], every_ns: int) -> None:
    times_ns = [sum(gaps_ns[:index]) for index in range(len(gaps_ns))]
    points = answer_points(AnswerConfig(every_s=every_ns / TRIGGERS_S), times_ns)
    indices = [index for index, _ in points]
    assert indices[0] == 0
    assert indices[-1] == len(times_ns) - 1
    periods = [times_ns[index] // every_ns for index, trigger in points if trigger in ("start", "every")]
    assert all(after > before for before, after in pairwise(periods))
    assert {time_ns // every_ns for time_ns in times_ns} == {times_ns[index] // every_ns for index in indices}
