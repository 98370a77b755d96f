"""Silence counts from look to look, and a suspended run was not kept waiting."""

from __future__ import annotations

from arr_coc.types import NS_PER_S
from stream.answer.client import SilenceTimer
from tests.support.clock import FakeClock


def test_silence_adds_up_while_something_is_awaited_and_nothing_comes() -> None:
    clock = FakeClock()
    timer = SilenceTimer(clock)
    for _ in range(4):
        clock.advance(NS_PER_S // 2)
        timer.update(waiting=True, received=False)
    assert timer.elapsed_s == 2
    timer.update(waiting=True, received=True)
    assert timer.elapsed_s == 0
    clock.advance(NS_PER_S // 2)
    timer.update(waiting=True, received=False)
    assert timer.elapsed_s == 0.5
    timer.update(waiting=False, received=False)
    assert timer.elapsed_s == 0


def test_a_run_that_was_suspended_for_an_hour_has_not_been_kept_waiting() -> None:
    clock = FakeClock()
    timer = SilenceTimer(clock)
    clock.advance(3600 * NS_PER_S)
    timer.update(waiting=True, received=False)
    assert timer.elapsed_s <= 1
