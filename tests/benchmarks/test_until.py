"""How a watch is judged: delays, what was missed, and false alarms, against what the scene shows."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.until import cases, judge, look_ms, sum_cases
from tests.support.events import look

NONE = [False] * 3
SHOWN = [*NONE, None, True, True, True, True, None, False, False]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([(4, True), (9, False)], {"noticed_after_frames": [0, 0]}),
        ([(3, True), (8, False)], {"noticed_after_frames": [0, 0]}),
        ([(6, True), (10, False)], {"noticed_after_frames": [2, 1]}),
        ([(6, True)], {"noticed_after_frames": [2], "missed": 1}),
        ([], {"noticed_after_frames": [], "missed": 1}),
        ([(1, True), (2, False), (5, True), (9, False)], {"noticed_after_frames": [1, 0], "false_alarms": 1}),
        ([(4, True), (6, False), (7, True), (9, False)], {"noticed_after_frames": [0, 0], "false_all_clears": 1}),
        ([(10, True)], {"noticed_after_frames": [], "missed": 1, "false_alarms": 1}),
    ],
)
def test_turns_are_held_against_what_is_shown(turns: list[tuple[int, bool]], expected: dict[str, Any]) -> None:
    blank = {"changes": 2, "missed": 0, "false_alarms": 0, "false_all_clears": 0}
    assert judge(SHOWN, turns) == {**blank, **expected}


def test_a_thing_in_the_first_frame_is_a_change() -> None:
    assert judge([True, True], [(0, True)])["noticed_after_frames"] == [0]
    assert judge([True, True], [])["missed"] == 1


def test_scenes_show_the_thing_when_they_say_so() -> None:
    by_name = {case.scene.name: case for case in cases(8.0)}
    assert set(by_name) == {"still", "noise", "restless", "never", "cuts"}
    for name in ("still", "noise", "restless"):
        presence = [by_name[name].is_visible(index) for index in range(by_name[name].scene.frames)]
        assert (presence[0], presence[30], presence[-1]) == (False, True, False)
        assert None in presence
    assert {by_name["never"].is_visible(index) for index in range(80)} == {False}
    cuts = [by_name["cuts"].is_visible(index) for index in range(80)]
    assert cuts == [False] * 16 + [True] * 16 + [False] * 16 + [True] * 16 + [False] * 16
    assert by_name["still"].question == "is there a red circle?"


def test_an_hour_is_one_of_media_time() -> None:
    case = {"look_ms": 10.0, "looks_saved": 0.75, "compute_saved": 0.5, "right_looks": 0.9}
    outcome = {"changes": 2, "missed": 1, "noticed_after_frames": [5], "false_alarms": 3, "false_all_clears": 0}
    result = sum_cases({"a": {**case, "watch": outcome, "every_frame": outcome}}, 36.0)
    assert result["watch"]["false_alarms_an_hour"] == 300
    assert result["watch"]["delay_ms"] == {"median": 500, "max": 500}


def test_a_look_costs_encoding_and_prefill() -> None:
    assert look_ms([look(0.0), look(1.0)]) == 60
