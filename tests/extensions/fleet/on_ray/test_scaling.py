"""Number of answer servers, by how long cameras wait."""

from __future__ import annotations

from stream.extensions.fleet.on_ray.servers import CALM_S, HOLD_S, SETTLE_S, ScalingPolicy


def test_a_server_is_added_only_if_the_wait_stays_too_long() -> None:
    policy = ScalingPolicy(1, 2, wait_s=2.0)
    assert policy.decide(0, [], 0.0) == 1
    assert policy.decide(1, [], 1.0) == 0, "it is loading"
    begin_s = 1.0 + SETTLE_S
    assert policy.decide(1, [9.0], begin_s - 1.0) == 0, "the figure is of the time before"
    assert policy.decide(1, [1.0], begin_s) == 0
    assert policy.decide(1, [3.0], begin_s + 1) == 0
    assert policy.decide(1, [1.0], begin_s + 2) == 0, "it was one long wait"
    assert policy.decide(1, [3.0], begin_s + 3) == 0
    assert policy.decide(1, [3.0], begin_s + 3 + HOLD_S) == 1
    assert policy.decide(2, [3.0], begin_s + 4 + HOLD_S) == 0, "the second one is loading"
    assert policy.decide(2, [9.0, 9.0], begin_s + 999) == 0
    assert policy.decide(2, [9.0, 9.0], begin_s + 9_999) == 0, "there are no more"


def test_a_server_is_drained_only_if_the_wait_stays_short() -> None:
    policy = ScalingPolicy(1, 3, wait_s=2.0)
    assert policy.decide(3, [0.1, 0.1, 0.1], 0.0) == 0
    assert policy.decide(3, [0.1, 1.0, 0.1], CALM_S - 1) == 0, "one of them is busy"
    assert policy.decide(3, [0.1, 0.1, 0.1], CALM_S) == 0
    assert policy.decide(3, [0.1, 0.1, 0.1], 2 * CALM_S) == -1
    assert policy.decide(2, [0.1, 0.1], 2 * CALM_S + 1) == 0
    assert policy.decide(2, [0.1, 0.1], 4 * CALM_S) == -1
    assert policy.decide(1, [0.1], 9 * CALM_S) == 0, "there are never fewer"
