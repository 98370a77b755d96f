"""Media time of live sources, waits between attempts, and the pace of bursts."""

from __future__ import annotations

from fractions import Fraction

from stream.sources.live_time import LONG_OUTAGE, LiveTimeline, Pace, Waits

MS = 1_000_000
TICK = Fraction(1, 1000)


def timeline(rate: int | None = 25) -> LiveTimeline:
    made = LiveTimeline()
    made.connected(TICK, None if rate is None else Fraction(rate))
    return made


def times(line: LiveTimeline, *frames: tuple[int | None, int]) -> list[int]:
    """Milliseconds of media time for (PTS, clock) in milliseconds."""
    return [line.media_ns(pts, now * MS) // MS for pts, now in frames]


def test_it_follows_the_pts_from_zero() -> None:
    line = timeline()
    assert times(line, (7000, 500), (7040, 543), (7080, 579)) == [0, 40, 80]
    assert (line.made_pts, line.clamped_pts) == (0, 0)


def test_a_burst_keeps_the_spacing_of_its_pts() -> None:
    assert times(timeline(), (0, 10), (40, 10), (80, 10), (120, 11)) == [0, 40, 80, 120]


def test_where_pts_are_missing_it_follows_the_clock() -> None:
    line = timeline()
    assert times(line, (None, 100), (None, 150), (5000, 190), (5040, 240)) == [0, 50, 90, 130]
    assert line.made_pts == 2


def test_where_pts_go_back_or_leap_it_follows_the_clock_and_then_the_new_pts() -> None:
    line = timeline()
    assert times(line, (0, 0), (40, 40), (0, 80), (40, 120), (900_000, 160), (900_040, 200)) == [
        0,
        40,
        80,
        120,
        160,
        200,
    ]
    assert line.clamped_pts == 2


def test_over_an_outage_it_goes_on_by_what_has_passed() -> None:
    line = timeline()
    assert times(line, (0, 0), (40, 50)) == [0, 40]
    line.connected(Fraction(1, 90_000), Fraction(30))
    assert times(line, (3600, 3050), (7200, 3090)) == [3040, 3080]


def test_it_never_stands_still() -> None:
    line = timeline(50)
    assert times(line, (0, 5), (0, 5), (0, 5)) == [0, 20, 40]
    line.connected(None, None)
    assert times(line, (3, 5), (3, 5)) == [80, 120]


def test_waits_grow_and_begin_anew() -> None:
    waits = Waits()
    given = [waits.next_s() for _ in range(LONG_OUTAGE + 2)]
    assert given == [0.2, 0.4, *[0.5] * (LONG_OUTAGE - 2), 2.0, 2.0]
    waits.reset()
    assert waits.next_s() == 0.2


def test_a_burst_is_spread_over_its_time() -> None:
    pace = Pace()
    assert [pace.due_ns(media, 1000) for media in (500, 540, 580)] == [1000, 1040, 1080]


def test_a_late_frame_moves_all_that_follow() -> None:
    pace = Pace()
    assert [pace.due_ns(0, 100), pace.due_ns(40, 200), pace.due_ns(80, 201)] == [100, 200, 240]
