"""The figures of a run, each by the one definition that its name has in the project's documents. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Nanoseconds = npt.NDArray[np.int64]

TRIM_S = 1.0
"""Seconds left out at each end of a run, which are warm-up and drain."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a latency, in milliseconds."""

    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values_ms: npt.ArrayLike) -> Percentiles | None:
        """None if there are no values."""
        values = np.asarray(values_ms, dtype=np.float64)
        if not values.size:
            return None
        p50, p95, p99 = np.percentile(values, (50, 95, 99))
        return cls(float(p50), float(p95), float(p99), float(values.max()))


@dataclass(frozen=True, slots=True)
class Jitter:
    """Unevenness with which frames come out of a source with a schedule."""

    interarrival_ms: float
    interval_std_ms: float
    tail_ms: float
    peak_to_peak_ms: float
    deadline_misses_percent: float


def trimmed(at_ns: Nanoseconds, start_s: float = TRIM_S) -> npt.NDArray[np.bool_]:
    """Mark the times that lie inside the run without its start and end.

    Args:
        at_ns: Times int64 [N] in nanoseconds, sorted.
        start_s: Seconds to leave out at the start; `TRIM_S` are left out at the end.

    Returns:
        bool [N]; all true if less than a second would be left.
    """
    start_ns = round(start_s * 1e9)
    end_ns = round(TRIM_S * 1e9)
    # a run is measured whole if less than this would be left of it
    if at_ns.size < 2 or at_ns[-1] - at_ns[0] < start_ns + end_ns + 1_000_000_000:
        return np.ones(at_ns.size, dtype=bool)
    return (at_ns >= at_ns[0] + start_ns) & (at_ns <= at_ns[-1] - end_ns)


def frames_per_second(ready_ns: Nanoseconds) -> float | None:
    """Intervals between frames ÷ the time from the first to the last; None below two frames."""
    if ready_ns.size < 2 or ready_ns[-1] <= ready_ns[0]:
        return None
    return float((ready_ns.size - 1) * 1e9 / (ready_ns[-1] - ready_ns[0]))


def interarrival_ms(out_ns: Nanoseconds, pts_ns: Nanoseconds) -> float:
    """RFC 3550's estimate after the last frame: J += (|D| − J)/16, D the change in (output time − PTS)."""
    jitter = 0.0
    for deviation in np.abs(_deviations_ms(out_ns, pts_ns)):
        # gain of the smoothed estimate of interarrival jitter, RFC 3550 section 6.4.1
        jitter += (float(deviation) - jitter) * (1 / 16)
    return jitter


def interval_std_ms(out_ns: Nanoseconds, pts_ns: Nanoseconds) -> float:
    """Standard deviation of output gaps minus PTS gaps, so that a variable frame rate is not jitter."""
    return float(np.std(_deviations_ms(out_ns, pts_ns)))


def tail_ms(latency_ms: npt.NDArray[np.float64]) -> float:
    """p99 − p50 of frame latency."""
    p50, p99 = np.percentile(latency_ms, (50, 99))
    return float(p99 - p50)


def peak_to_peak_ms(latency_ms: npt.NDArray[np.float64]) -> float:
    """Largest − smallest frame latency."""
    return float(np.ptp(latency_ms))


def deadline_misses_percent(latency_ms: npt.NDArray[np.float64], period_ms: float) -> float:
    """Share of frames that were ready later than one source period after their capture."""
    return 100 * float(np.mean(latency_ms > period_ms))


def jitter(capture_ns: Nanoseconds, ready_ns: Nanoseconds, pts_ns: Nanoseconds) -> Jitter | None:
    """Return every figure of jitter. The source's period is the median gap between PTS.

    Args:
        capture_ns: Capture times of the frames, int64 [N].
        ready_ns: Times at which the frames were ready, int64 [N].
        pts_ns: PTS of the frames, int64 [N].

    Returns:
        The figures; None below three frames.
    """
    if ready_ns.size < 3:
        return None
    latency_ms = (ready_ns - capture_ns) / 1e6
    period_ms = float(np.median(np.diff(pts_ns))) / 1e6
    return Jitter(
        interarrival_ms(ready_ns, pts_ns),
        interval_std_ms(ready_ns, pts_ns),
        tail_ms(latency_ms),
        peak_to_peak_ms(latency_ms),
        deadline_misses_percent(latency_ms, period_ms),
    )


def slope_per_hour(at_ns: Nanoseconds, values: npt.ArrayLike) -> float | None:
    """By how much the values rise an hour: the slope of the straight line that fits them best, by least squares.

    None if they span less than a minute, which is too short for a slope an hour.
    """
    # a slope is only given for values that span at least this
    if at_ns.size < 3 or at_ns[-1] - at_ns[0] < 60 * 1_000_000_000:
        return None
    hours = (at_ns - at_ns[0]) / 3.6e12
    slope, _ = np.polyfit(hours, np.asarray(values, dtype=np.float64), 1)
    return float(slope)


def _deviations_ms(out_ns: Nanoseconds, pts_ns: Nanoseconds) -> npt.NDArray[np.float64]:
    return (np.diff(out_ns) - np.diff(pts_ns)) / 1e6
