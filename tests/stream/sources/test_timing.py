"""Media time of live sources, waits between attempts, and the pace of bursts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arr_coc.types import NS_PER_S
from stream.sources.timing import DEFAULT_RATE, LONG_OUTAGE, Backoff, LiveTimeline, MediaTimeline, Pacer

MS = 1_000_000
TICK = Fraction(1, 1000)


def timeline(rate: int | None = 25) -> LiveTimeline:
    live_timeline = LiveTimeline()
    live_timeline.connected(TICK, None if rate is None else Fraction(rate))
    return live_timeline


def times(line: LiveTimeline, *frames: tuple[int | None, int]) -> list[int]:
    """Milliseconds of media time for (PTS, clock) in milliseconds."""
    return [line.media_ns(pts, now * MS) // MS for pts, now in frames]


def test_it_follows_the_pts_from_zero() -> None:
    line = timeline()
    assert times(line, (7000, 500), (7040, 543), (7080, 579)) == [0, 40, 80]
    assert (line.made_pts, line.clamped_pts) == (0, 0)


def test_a_burst_keeps_the_spacing_of_its_pts() -> None:
    assert times(timeline(), (0, 10), (40, 10), (80, 10), (120, 11)) == [0, 40, 80, 120]


def test_if_pts_are_missing_it_follows_the_clock() -> None:
    line = timeline()
    assert times(line, (None, 100), (None, 150), (5000, 190), (5040, 240)) == [0, 50, 90, 130]
    assert line.made_pts == 2


def test_if_pts_go_back_or_leap_it_follows_the_clock_and_then_the_new_pts() -> None:
    line = timeline()
    frames = ((0, 0), (40, 40), (0, 80), (40, 120), (900_000, 160), (900_040, 200))
    assert times(line, *frames) == [0, 40, 80, 120, 160, 200]
    assert line.clamped_pts == 2


def test_over_an_outage_it_goes_on_by_what_has_passed() -> None:
    line = timeline()
    assert times(line, (0, 0), (40, 50)) == [0, 40]
    line.connected(Fraction(1, 90_000), Fraction(30))
    assert times(line, (3600, 3050), (7200, 3090)) == [3040, 3080]


def at_reconnects(openings_ms: list[int], *, discards: int = 0, outage_ms: int = 3000) -> list[int]:
    """How far media time is ahead of the clock at the end of each connection, in ms, in relation to the first one.

    Opening a connection takes so long, and its first frames come all at once; each lasts 10 s. The first frames of the
    first one are discarded.
    """
    line, now_ms, leads = LiveTimeline(), 0, []
    for number, opening_ms in enumerate(openings_ms):
        line.connected(TICK, Fraction(25), checks_rate=True)
        for index in range(250):
            arrival_ms = now_ms + max(40 * index, opening_ms)
            line.arrived(7000 + 40 * index, arrival_ms * MS)
            if number or index >= discards:
                lead_ms = line.media_ns(7000 + 40 * index, arrival_ms * MS) // MS - arrival_ms
        leads.append(lead_ms)
        now_ms = arrival_ms + outage_ms
    return [lead - leads[0] for lead in leads]


@pytest.mark.parametrize("discards", [0, 3, 100])
def test_the_time_that_opening_takes_does_not_add_up(discards: int) -> None:
    assert at_reconnects([200] * 20, discards=discards) == [0] * 20
    assert at_reconnects([200, 0, 500, 200], discards=discards) == [0, -200, 300, 0]
    assert at_reconnects([0] * 20, discards=discards) == [0] * 20


def test_media_time_goes_on_however_long_opening_took() -> None:
    assert at_reconnects([900, 0], outage_ms=100) == [0, -60], "it never goes back: a period takes the place of 100 ms"
    line = checked()
    for pts, now in ((0, 0), (20_000, 40), (20_040, 80)):
        line.arrived(pts, now * MS)
        line.media_ns(pts, now * MS)
    line.connected(TICK, Fraction(25), checks_rate=True)
    assert times(line, (0, 1080)) == [1080], "a leap says nothing of the opening"


def test_bursts_of_a_paced_source_are_no_delay() -> None:
    line = timeline()
    for index in range(100):
        line.arrived(40 * index, 0)
        line.media_ns(40 * index, index * MS)
    line.connected(TICK, Fraction(25))
    assert times(line, (0, 2099)) == [99 * 40 + 2000]


def test_a_clock_of_a_wrong_rate_has_no_delay() -> None:
    line = checked()
    for index in range(1000):
        line.arrived(80 * index, 40 * index * MS)
        line.media_ns(80 * index, 40 * index * MS)
    assert line.is_rate_off
    line.connected(TICK, Fraction(25), checks_rate=True)
    assert times(line, (0, 42_000)) == [42_000]


def checked() -> LiveTimeline:
    live_timeline = LiveTimeline()
    live_timeline.connected(TICK, Fraction(25), checks_rate=True)
    return live_timeline


def test_formats_without_times_follow_the_clock() -> None:
    line = LiveTimeline()
    line.connected(TICK, Fraction(25), has_times=False)
    assert times(line, *((40 * index, 200 * index) for index in range(200)))[-1] == 199 * 200
    assert (line.made_pts, line.clamped_pts) == (0, 0)


@pytest.mark.parametrize("speed", [0.01, 0.2, 0.9, 1.1, 2.0])
def test_a_clock_of_a_wrong_rate_is_replaced_by_the_arrival(speed: float) -> None:
    line = checked()
    result = times(line, *((int(40 * index * speed), 40 * index) for index in range(1000)))
    assert result[-1] == 999 * 40
    assert line.is_rate_off
    assert all(after > before for before, after in itertools.pairwise(result[10:])), "it never goes back"
    line.connected(TICK, Fraction(25), checks_rate=True)
    assert not line.is_rate_off


def stalled(index: int) -> int:
    """Arrival of a frame: none for eight seconds, then all at twice their rate."""
    return max(40 * index, 12_000 + 20 * (index - 100)) if index >= 100 else 40 * index


@pytest.mark.parametrize(
    "arrival",
    [
        lambda index: 40 * index + 37 * index % 101,  # jitter
        lambda index: max(40 * index, 2000),  # a burst at the beginning
        stalled,
        lambda index: 40 * index + 3000 * (index > 200),  # a delay that stays
        lambda index: 40 * index + index // 500,  # a quartz: 50 millionths
    ],
)
def test_a_right_clock_is_followed_however_its_frames_arrive(arrival: Callable[[int], int]) -> None:
    line = checked()
    assert times(line, *((40 * index, arrival(index)) for index in range(1000))) == [
        40 * index for index in range(1000)
    ]
    assert (line.made_pts, line.clamped_pts) == (0, 0)


def test_it_never_stands_still() -> None:
    line = timeline(50)
    assert times(line, (0, 5), (0, 5), (0, 5)) == [0, 20, 40]
    line.connected(None, None)
    assert times(line, (3, 5), (3, 5)) == [80, 120]


def test_waits_grow_and_begin_anew() -> None:
    waits = Backoff()
    seconds = [waits.next_s() for _ in range(LONG_OUTAGE + 2)]
    assert seconds == [0.2, 0.4, *[0.5] * (LONG_OUTAGE - 2), 2.0, 2.0]
    waits.reset()
    assert waits.next_s() == 0.2


@pytest.mark.parametrize(
    ("frames", "due_ns"),
    [
        ([(500, 1000), (540, 1000), (580, 1000)], [1000, 1040, 1080]),  # a burst is spread over its time
        ([(0, 100), (40, 200), (80, 201)], [100, 200, 240]),  # a late frame moves all that follow
        ([(0, 100), (3600 * NS_PER_S, 200), (3600 * NS_PER_S + 40, 210)], [100, 200, 240]),  # a far one holds up none
    ],
)
def test_frames_are_due_at_their_pace(frames: list[tuple[int, int]], due_ns: list[int]) -> None:
    pace = Pacer()
    assert [pace.due_ns(media_ns, now_ns) for media_ns, now_ns in frames] == due_ns


TIMELINE_MS = NS_PER_S // 1000


def at_25_fps(origin: Fraction = Fraction(0)) -> MediaTimeline:
    """PTS in milliseconds, a period of 40."""
    return MediaTimeline(Fraction(1, 1000), Fraction(25), origin)


def times_ms(timeline: MediaTimeline, pts: list[int | None]) -> list[float]:
    return [timeline.next_ns(value) / TIMELINE_MS for value in pts]


@pytest.mark.parametrize(
    ("pts", "times", "missing", "clamped"),
    [
        ([0, 40, 41, 1000, 1033], [0, 40, 41, 1000, 1033], 0, 0),  # good ones are kept whatever their gaps
        ([120, 160], [120, 160], 0, 0),  # a first one later than the origin stays later
        ([None, None, 80, None], [0, 40, 80, 120], 3, 0),  # missing ones are made from the rate
        ([0, 2**62, 80], [0, 40, 80], 1, 0),  # absurd ones count as missing
        ([0, -(2**62), 80], [0, 40, 80], 1, 0),
        ([0, 40, 20, 120], [0, 40, 80, 120], 0, 1),  # one that goes back is the last plus a period
        ([0, 0, 80], [0, 40, 80], 0, 1),
        ([-400, 80], [0, 80], 0, 1),  # times before the origin start at zero
        ([-20, 80], [0, 80], 0, 1),
        ([1000, 1040, 0, 40, 80], [1000, 1040, 1080, 1120, 1160], 0, 1),  # a joined recording goes on
        ([0, 40, 80, 0, 40, 80, 120], [0, 40, 80, 120, 160, 200, 240], 0, 1),  # also if its second part is longer
        (
            [0, 40, 80, 120, 0, 100, 200, 0, 50],
            [0, 40, 80, 120, 160, 260, 360, 400, 450],
            0,
            2,
        ),  # each part has its own rate
        ([0, 2000, 4000, 0, 40, 4040, 80], [0, 2000, 4000, 4040, 4080, 4084, 4120], 0, 2),  # one of the part before
        ([0, 40, 80, 0, 120, 160], [0, 40, 80, 120, 124, 160], 0, 2),  # a stray one to the beginning shifts none
        ([0, 40, 10, *range(80, 4000, 40)], [0, 40, 80, 84, *range(120, 4000, 40)], 0, 2),  # a stray one shifts none
    ],
)
def test_media_time_follows_pts(pts: list[int | None], times: list[int], missing: int, clamped: int) -> None:
    timeline = at_25_fps()
    assert times_ms(timeline, pts) == times
    assert (timeline.made_pts, timeline.clamped_pts) == (missing, clamped)


def test_time_counts_from_the_origin() -> None:
    assert times_ms(at_25_fps(Fraction(14, 10)), [1400, 1440]) == [0, 40]


@pytest.mark.parametrize("rate", [None, Fraction(0), Fraction(-5), Fraction(90_000)])
def test_unusable_rate_becomes_the_default(rate: Fraction | None) -> None:
    timeline = MediaTimeline(Fraction(1, 1000), rate)
    assert timeline.rate == DEFAULT_RATE
    assert times_ms(timeline, [None, None]) == [0, 40]


@pytest.mark.parametrize("time_base", [None, Fraction(0), Fraction(-1, 25)])
def test_unusable_time_base_makes_every_pts(time_base: Fraction | None) -> None:
    timeline = MediaTimeline(time_base, Fraction(25))
    assert times_ms(timeline, [5, 6]) == [0, 40]
    assert timeline.made_pts == 2


def test_ntsc_rate_gathers_no_error_in_an_hour() -> None:
    timeline = MediaTimeline(None, Fraction(30_000, 1001))
    for _ in range(107_892):
        last_ns = timeline.next_ns(None)
    assert last_ns == 107_891 * 1001 * NS_PER_S // 30_000


def test_time_of_a_pts_without_moving_on() -> None:
    timeline = at_25_fps(Fraction(1))
    assert timeline.at_ns(1500) == 500 * TIMELINE_MS
    assert timeline.at_ns(None) is None
    assert timeline.at_ns(500) is None
    assert timeline.next_ns(None) == 0


@given(st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(0, 5000)), max_size=60))
def test_any_pts_give_times_that_rise_from_zero(pts: list[int | None]) -> None:
    timeline = at_25_fps()
    times = [timeline.next_ns(value) for value in pts]
    assert all(second > first for first, second in itertools.pairwise(times))
    assert all(time >= 0 for time in times)
