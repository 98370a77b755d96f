"""Playout delay: even intervals out of uneven work."""

from __future__ import annotations

import numpy as np

from arr_coc.types import NS_PER_MS
from stream.protocol.playout import FALL_NS, LIMIT_NS, WINDOW_FRAMES, PlayoutDelay

PERIOD_NS = 33 * NS_PER_MS


def released(latencies_ns: list[int], period_ns: int = PERIOD_NS) -> list[int]:
    """Time from each frame's capture to its release, of frames that are captured at even intervals."""
    delay = PlayoutDelay()
    times = [(number * period_ns, number * period_ns + latency) for number, latency in enumerate(latencies_ns)]
    return [delay.release_ns(captured, end) - captured for captured, end in times]


def test_frames_come_out_evenly_though_the_work_on_them_varies() -> None:
    latencies = (np.random.default_rng(3).gamma(4, 1.5, 2000) * NS_PER_MS).clip(max=LIMIT_NS).astype(int).tolist()
    delays_ns = released(latencies)
    assert np.std(np.diff(latencies)) > 4 * NS_PER_MS
    assert np.std(np.diff(delays_ns[60:])) < NS_PER_MS / 4
    assert all(out >= latency for out, latency in zip(delays_ns, latencies, strict=True))
    assert max(delays_ns) <= LIMIT_NS


def test_a_frame_that_is_late_goes_at_once_and_delays_those_behind_it_for_a_while() -> None:
    quick, late = 5 * NS_PER_MS, 40 * NS_PER_MS
    delays_ns = released([quick] * 3 + [late] + [quick] * (WINDOW_FRAMES + 400))
    assert delays_ns[1:4] == [quick, quick, late]
    assert delays_ns[4] == delays_ns[WINDOW_FRAMES + 2] == round(0.6 * PERIOD_NS)
    assert delays_ns[-1] == quick
    assert max(-np.diff(delays_ns[4:])) <= FALL_NS, "the delay leaps"


def test_frames_in_a_burst_are_hardly_delayed() -> None:
    burst_ns = NS_PER_MS
    assert max(released([5 * NS_PER_MS] + [0] * 9, burst_ns)[1:]) <= burst_ns
