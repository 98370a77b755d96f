"""The simulated fleet: its results in cases with a known outcome."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak import fleet_simulation
from tests.soak.fleet_model import FAILOVER_S, Costs, Fleet, Outage

COSTS = Costs({1: 60, 8: 300}, {1: 9, 8: 18}, tokens=12, slots=8)


def test_one_camera_gets_an_answer_each_time_it_asks() -> None:
    figures = Fleet(COSTS, 1, 1, every_s=4).run(404, warm_s=4).figures()
    assert figures["answers_hz"] == pytest.approx(1 / 4, rel=0.02)
    assert figures["p95_wait_s"] == 0
    assert figures["p95_first_s"] == pytest.approx(0.060)
    assert figures["busy_share"] == pytest.approx((0.060 + 11 * 0.009) / 4, rel=0.02)


def test_a_full_server_answers_as_fast_as_it_can_and_is_fair() -> None:
    figures = Fleet(COSTS, 64, 1, every_s=0.1).run(100, warm_s=10).figures()
    at_most = 8 / (0.300 + 11 * 0.018)
    assert 0.7 * at_most < figures["answers_hz"] < 1.1 * at_most
    assert figures["busy_share"] > 0.99
    assert figures["fairness"] > 0.9
    assert Fleet(COSTS, 64, 2, every_s=0.1).run(100, warm_s=10).figures()["answers_hz"] == pytest.approx(
        2 * figures["answers_hz"], rel=0.05
    )


def test_one_at_a_time_is_served_in_order() -> None:
    single = Costs({1: 100}, {1: 10}, tokens=11, slots=1)
    served = Fleet(single, 4, 1, every_s=0.1).run(60)
    starts = sorted((turn.begun_s or 0, turn.asked_s) for turns in served.turns for turn in turns if turn.begun_s)
    assert [asked_s for _, asked_s in starts] == sorted(asked_s for _, asked_s in starts)
    assert served.figures()["answers_hz"] == pytest.approx(1 / 0.2, rel=0.05)


def test_cameras_of_a_dead_server_ask_another_and_come_back() -> None:
    outage = Outage(0, 50, 100)
    served = Fleet(COSTS, 16, 2, every_s=1).run(200, outages=(outage,))
    assert served.lost_turns > 0
    longest = max((turn.done_s or 200) - turn.asked_s for turns in served.turns for turn in turns if turn.asked_s < 190)
    assert FAILOVER_S < longest < FAILOVER_S + 2
    before, after = served.busy_s
    assert 0.5 < before / after < 0.9  # it was dead for a quarter of the time


def test_without_a_server_no_camera_is_answered() -> None:
    served = Fleet(COSTS, 2, 1, every_s=1).run(30, outages=(Outage(0, 10, 20),))
    assert not any(10.5 < (turn.done_s or 0) < 20 for turns in served.turns for turn in turns)
    assert served.figures()["answers_hz"] > 1


def test_messages_cost_each_step() -> None:
    figures: dict[str, Any] = {
        **{
            "begin_ms": {"1": 60, "8": 300},
            "step_ms": {"1": 9, "8": 18},
            "message_ms": {"1": {"1": 3}, "8": {"1": 1, "4": 4}},
        },
        **{"tokens": 12, "slots": 1},
    }
    for slots, count, begin_s, step_s in ((1, 1, 0.063, 0.012), (8, 8, 0.308, 0.026), (2, 1, 0.061, 0.010)):
        costs = fleet_simulation.costs_of(figures | {"slots": slots})
        assert (costs.begin_s(count), costs.step_s(count)) == pytest.approx((begin_s, step_s))
    del figures["message_ms"]
    assert fleet_simulation.costs_of(figures).step_s(1) == pytest.approx(0.009)


def test_the_law_shows_what_fails_first_and_what_one_more_server_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"begin_ms": {"1": 2000}, "step_ms": {"1": 1}, "tokens": 2, "slots": 1}
    monkeypatch.setattr(fleet_simulation, "SERVERS", (1, 2))
    monkeypatch.setattr(fleet_simulation, "LATEST_FIRST_S", 30.0)
    first, second = fleet_simulation.law(figures, every_s=20.0, seconds=240.0)
    assert 8 <= first["cameras"] <= 11  # one answer every two seconds, each every twenty
    assert second["cameras"] == first["cameras"] + first["one_more"]
    assert first["first"] == "share"
    monkeypatch.setattr(fleet_simulation, "LATEST_FIRST_S", 2.5)
    monkeypatch.setattr(fleet_simulation, "SERVERS", (1,))
    (late,) = fleet_simulation.law(figures, every_s=20.0, seconds=240.0)
    assert late["cameras"] < first["cameras"]
    assert late["first"] == "first text"
    assert "+" in fleet_simulation.table([late])
