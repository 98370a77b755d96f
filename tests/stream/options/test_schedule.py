"""Weekly schedules: days, hours over midnight, time zones and their changes, and mistakes."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest

from stream.options.schedule import Schedule, check_schedule


def unix_s(text: str) -> float:
    """The Unix time of a moment in UTC: `2026-11-27 22:30`, a Friday."""
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()


@pytest.mark.parametrize(
    ("schedule", "inside_times", "outside_times"),
    [
        ("08:00-17:30 UTC", ["2026-11-27 08:00", "2026-11-28 17:29"], ["2026-11-27 07:59", "2026-11-27 17:30"]),
        ("mon-fri 08:00-17:30 UTC", ["2026-11-27 12:00"], ["2026-11-28 12:00"]),
        (
            "mon-fri 22:00-06:00 UTC",
            ["2026-11-27 22:00", "2026-11-28 05:59", "2026-11-23 23:00"],
            ["2026-11-28 22:00", "2026-11-23 05:00", "2026-11-28 06:00"],
        ),
        (
            "sat-mon,wed 00:00-24:00 UTC",
            ["2026-11-28 00:00", "2026-11-30 23:59", "2026-11-25 05:00"],
            ["2026-11-27 12:00"],
        ),
        ("Sun 9:00-10:00 UTC; thu 9:00-10:00 UTC", ["2026-11-29 09:30", "2026-11-26 09:30"], ["2026-11-27 09:30"]),
    ],
)
def test_hours_of_days(schedule: str, inside_times: list[str], outside_times: list[str]) -> None:
    parsed_schedule = Schedule.of(schedule)
    assert [parsed_schedule.contains(unix_s(moment)) for moment in inside_times] == [True] * len(inside_times)
    assert [parsed_schedule.contains(unix_s(moment)) for moment in outside_times] == [False] * len(outside_times)


def test_hours_are_those_of_the_time_zone_also_when_it_changes_them() -> None:
    schedule = Schedule.of("sun 02:30-04:00 Europe/Berlin")
    assert schedule.contains(unix_s("2026-10-25 00:45")), "02:45 in summer time"
    assert schedule.contains(unix_s("2026-10-25 01:45")), "02:45 again, an hour later"
    assert not schedule.contains(unix_s("2026-10-25 03:00")), "04:00"
    assert not schedule.contains(unix_s("2026-03-29 00:59")), "01:59, before 02:00 to 03:00 are left out"
    assert schedule.contains(unix_s("2026-03-29 01:00")), "03:00"


def test_without_a_zone_hours_are_the_machines() -> None:
    now = datetime.now().replace(hour=12, minute=0)
    assert Schedule.of("11:00-13:00").contains(now.timestamp())
    assert not Schedule.of("13:00-14:00").contains(now.timestamp())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "should be days, hours and a time zone, such as \"mon-fri 22:00-06:00 Europe/Berlin\", got ''"),
        ("at night", "should be days, hours"),
        ("mon-fri", "should be days, hours"),
        ("22:00-06:00 UTC;", "should be days, hours"),
        (
            "mo-fr 22:00-06:00",
            "should have days of mon, tue, wed, thu, fri, sat, sun, as mon-fri or sat,sun, got 'mo-fr'",
        ),
        ("mon,,fri 22:00-06:00", "should have days of mon"),
        ("25:00-26:00", "should have hours from 00:00 to 24:00, got 25:00"),
        ("22:60-23:00", "should have hours from 00:00 to 24:00, got 22:60"),
        ("08:00-08:00", "should have hours that end after they begin"),
        ("24:00-06:00", "should have hours that end after they begin"),
        ("08:00-09:00 Europe/Berln", "should have a time zone of the IANA database, such as Europe/Berlin or UTC, got"),
        ("08:00-09:00 ../../etc/passwd", "should have a time zone of the IANA database"),
    ],
)
def test_mistakes_are_named_with_the_remedy(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}[^\n]*$"):
        check_schedule(text)
