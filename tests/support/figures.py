"""Figures of a run made by hand."""

from __future__ import annotations

from stream.monitor.metrics import Percentiles
from stream.monitor.schema import RecentJitter
from stream.monitor.statistics import StatisticsSnapshot

FIGURES = StatisticsSnapshot(
    uptime_s=72.4,
    fps=25.0,
    frames=1800,
    answers=14,
    cuts=1,
    skipped=0,
    outages=2,
    outages_s=10.2,
    restarts={},
    dropped={"capture.replaced": 3, "answer.busy": 2},
    latency_ms=Percentiles(4.1, 7.9, 9.0, 12.3),
    jitter=RecentJitter(interarrival_ms=0.42, interval_std_ms=0.91, deadline_misses_percent=0.0),
    deadline_misses=3,
    ttft_ms=310.2,
    total_ms=620.7,
    ttft_p95_ms=None,
    target_ms=None,
    budget=None,
    checks=0,
    checks_same=0,
    checks_words=None,
    glances=0,
    glance_tokens=0,
    glance_ms=None,
    memory=None,
    tokens=64,
    tiles=240,
    dirty_share=0.1234,
    memory_bytes={"frames": 290_000_000, "answers": 322_000_000},
    media_s=72.0,
    fps_run=24.9,
    outage=None,
)
