"""Lengths of time on the command line."""

from __future__ import annotations

import pytest

from stream.commands.options import parse_media_time
from stream.errors import ConfigError
from stream.options.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 60),
        ("60s", 60),
        ("1.5", 1.5),
        (".5s", 0.5),
        ("10m", 600),
        ("2min", 120),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1h 2m 3s", 3723),
        ("10M", 600),
    ],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert parse_duration("--for", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "-5s", "s", "ten", "5x", "5s!", "1e3", "inf", "nan", "1:30"])
def test_invalid_durations_are_reported_with_their_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--for needs a length of time above 0, such as 60s"):
        parse_duration("--for", text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0.0s", 0),
        ("90", 90),
        ("12.5", 12.5),
        ("1:30", 90),
        ("90:00", 5400),
        ("0:01:30.5", 90.5),
        ("1h", 3600),
    ],
)
def test_media_times(text: str, seconds: float) -> None:
    assert parse_media_time("--start", text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1:60", "1:60:00", "1:2:3:4", "soon", "1:", ":30", "nan", "inf"])
def test_invalid_media_times_are_reported(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--start needs seconds or h:mm:ss, such as 90, 1:30 or 0:01:30\.5; got"):
        parse_media_time("--start", text)
