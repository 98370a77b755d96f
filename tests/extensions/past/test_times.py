"""Times of a search."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from stream.errors import ConfigError
from stream.options.past_times import iso_time, parse_past_time

NOW = datetime(2026, 11, 27, 16, 0, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", NOW - timedelta(hours=2)),
        ("1h30m", NOW - timedelta(minutes=90)),
        (" 3d ", NOW - timedelta(days=3)),
        ("90s", NOW - timedelta(seconds=90)),
        ("14:30", datetime(2026, 11, 27, 14, 30)),
        ("2026-11-20", datetime(2026, 11, 20)),
        ("2026-11-20T08:15", datetime(2026, 11, 20, 8, 15)),
        ("2026-11-20T08:15:01Z", datetime(2026, 11, 20, 8, 15, 1, tzinfo=timezone.utc)),
        ("2026-11-20T08:15+02:00", datetime(2026, 11, 20, 6, 15, tzinfo=timezone.utc)),
    ],
)
def test_lengths_and_dates(text: str, expected: datetime) -> None:
    assert parse_past_time("--since", text, NOW) == round(expected.timestamp() * 1000)


@pytest.mark.parametrize("text", ["", "yesterday", "2", "-2h", "25:00", "2026-13-01", "1e9d"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--since needs a time such as 2h, 3d, 14:30, 2026-11-27"):
        parse_past_time("--since", text, NOW)


@pytest.mark.parametrize("text", ["99999999999999d", "1900-01-01"])
def test_times_before_1970_are_its_begin(text: str) -> None:
    assert parse_past_time("--since", text, NOW) == 0


def test_times_for_programs_are_in_utc() -> None:
    assert iso_time(1_800_000_000_123) == "2027-01-15T08:00:00.123Z"
