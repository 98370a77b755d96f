"""Statistics of an answer server: waits, work and tokens, over time."""

from __future__ import annotations

import pytest

from arr_coc.types import NS_PER_S
from stream.answer.server_statistics import LOADING, RECENT_NS, SERVING, ServerStatistics
from stream.answer.turns import ClientTable
from tests.support.clock import FakeClock

A, B, C = b"a", b"b", b"c"
MS = 1_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(5 * NS_PER_S)


@pytest.fixture
def statistics(clock: FakeClock) -> ServerStatistics:
    return ServerStatistics(clock)


def test_all_figures_are_zero_at_the_start(statistics: ServerStatistics) -> None:
    figures = statistics.figures()
    assert (figures.clients, figures.waiting, figures.serving, figures.slots) == (0, 0, 0, 1)
    assert (figures.wait_p95_s, figures.busy_share, figures.text_tokens_per_s) == (0, 0, 0)
    assert statistics.state == LOADING
    statistics.begin_serving()
    assert statistics.state == SERVING


def test_the_client_table_counts_clients_and_waits(statistics: ServerStatistics, clock: FakeClock) -> None:
    waits_s: list[float] = []
    statistics.on_wait = waits_s.append
    table = ClientTable(statistics)
    for client in (A, B, C):
        table.add(client)
        table.enqueue(client)
    clock.advance(2 * NS_PER_S)
    table.enqueue(A)
    assert table.pop_next() == A
    table.remove(B)
    figures = statistics.figures()
    assert (figures.clients, figures.waiting) == (2, 1)
    assert waits_s == [2.0], "a wait that is requested twice counts from its beginning; a client that left had no turn"


def test_p95_includes_current_waits_and_drops_old_ones(statistics: ServerStatistics, clock: FakeClock) -> None:
    for wait_ms in range(1, 21):
        statistics.turn_requested(A)
        clock.advance(wait_ms * MS)
        statistics.turn_granted(A)
    assert statistics.figures().wait_p95_s == pytest.approx(0.019)
    statistics.turn_requested(B)
    clock.advance(7 * NS_PER_S)
    statistics.turn_requested(C)
    assert statistics.figures().wait_p95_s == pytest.approx(0.020), "one of 22 waits is beyond p95"
    clock.advance(RECENT_NS)
    assert statistics.figures().wait_p95_s == pytest.approx(67.0)
    statistics.turn_withdrawn(B)
    statistics.turn_withdrawn(C)
    assert statistics.figures().wait_p95_s == 0


def test_work_counts_once_however_many_turns_are_served(statistics: ServerStatistics, clock: FakeClock) -> None:
    turns_s: list[float] = []
    statistics.on_turn = turns_s.append
    first_ns = statistics.turn_began()
    clock.advance(1 * NS_PER_S)
    second_ns = statistics.turn_began()
    assert statistics.figures().serving == 2
    clock.advance(1 * NS_PER_S)
    statistics.turn_ended(second_ns)
    statistics.turn_ended(first_ns)
    clock.advance(6 * NS_PER_S)
    figures = statistics.figures()
    assert figures.busy_share == pytest.approx(2 / 8)
    assert figures.totals.busy_ns == 2 * NS_PER_S
    assert turns_s == [1.0, 2.0]


def test_work_in_progress_counts_as_work(statistics: ServerStatistics, clock: FakeClock) -> None:
    statistics.turn_began()
    clock.advance(3 * NS_PER_S)
    assert statistics.figures().busy_share == 1.0


def test_a_turn_that_fails_is_counted(statistics: ServerStatistics) -> None:
    statistics.turn_ended(statistics.turn_began(), failed=True)
    figures = statistics.figures()
    assert (figures.totals.failed, figures.serving) == (1, 0)


def test_rates_are_those_of_the_last_minute(statistics: ServerStatistics, clock: FakeClock) -> None:
    for _ in range(600):
        clock.advance(NS_PER_S)
        statistics.note_poll()
    for _ in range(30):
        began_ns = statistics.turn_began()
        clock.advance(NS_PER_S)
        statistics.turn_ended(began_ns)
        statistics.count_answer(12, 64)
        statistics.note_poll()
    figures = statistics.figures()
    assert figures.busy_share == pytest.approx(0.5)
    assert figures.text_tokens_per_s == pytest.approx(6.0)
    for _ in range(90):
        clock.advance(NS_PER_S)
        statistics.note_poll()
    figures = statistics.figures()
    assert (figures.busy_share, figures.text_tokens_per_s) == (0, 0)
    assert (figures.totals.answers, figures.totals.text_tokens, figures.totals.visual_tokens) == (30, 360, 1920)


def test_looks_and_glances_are_counted_with_their_visual_tokens(statistics: ServerStatistics) -> None:
    statistics.count_checks(10, 2)
    statistics.count_glance(3)
    totals = statistics.figures().totals
    assert (totals.answers, totals.checks, totals.glances, totals.visual_tokens) == (0, 2, 1, 13)


def test_silence_is_the_time_since_the_server_last_looked_for_messages(
    statistics: ServerStatistics, clock: FakeClock
) -> None:
    clock.advance(9 * NS_PER_S)
    statistics.begin_serving()
    clock.advance(2 * NS_PER_S)
    assert statistics.figures().silent_s == 2.0
    statistics.note_poll()
    assert statistics.figures().silent_s == 0.0
    assert statistics.figures().uptime_s == 11.0
