"""Metrics and health of a run, of several cameras and of an answer server, as a scrape reads them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from arr_coc.types import NS_PER_S
from stream.answer.server_statistics import ServerStatistics
from stream.config import Config, PipelineConfig
from stream.control import RunControl
from stream.events import Cut, Event, Outage, Restarted, Skipped, Started, WatchesChanged
from stream.extension import SinkOpening
from stream.extensions.metrics.section import MetricsSection
from stream.extensions.metrics.sink import TURN_BUCKETS_S, MetricsServer, RunMetrics, ServerMetrics, open_sink
from stream.monitor.health import RunMonitor
from tests.support.clock import FakeClock
from tests.support.events import answer, frame, look, match, shadow, summary
from tests.support.network import fetched, free_port
from tests.support.runs import WatchedRun


def scraped(server: MetricsServer) -> dict[str, float]:
    """Return values by name and labels, as in the text: without the prefix, labels by name."""
    status, text = fetched(server.address, "/metrics")
    assert status == 200
    assert "secret" not in text
    assert "_created" not in text
    return {
        sample.name.removeprefix("arr_coc_") + "".join(f"{{{value}}}" for _, value in sorted(sample.labels.items())): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def subset(samples: Mapping[str, float], names: Mapping[str, float]) -> dict[str, float | None]:
    """Return the samples of these names."""
    return {name: samples.get(name) for name in names}


def health_of(server: MetricsServer, path: str = "/healthz") -> tuple[int, str, str | None]:
    """Return the HTTP status of a health page, and `status` and `reason` of its report."""
    code, text = fetched(server.address, path)
    report = json.loads(text)
    return code, report["status"], report.get("reason")


SECRET_SOURCE = "rtsp://user:secret@camera/stream"


class Served:
    """Metrics of one run, its monitor and its statistics, fed as a session does."""

    def __init__(self) -> None:
        self.clock = FakeClock(NS_PER_S)
        config = Config(source=SECRET_SOURCE, metrics=MetricsSection(port=free_port()))
        self.monitor = RunMonitor(config, self.clock)
        self.run = WatchedRun(self.clock)
        self.monitor.follow(self.run)
        self.sink = open_sink(SinkOpening(config, self.monitor))

    def take(self, *events: Event) -> None:
        for event in events:
            self.run.statistics.add(event)
            self.monitor.add(event)
            self.sink.write(event)

    def samples(self) -> dict[str, float]:
        return scraped(self.sink.metrics)

    def health(self, path: str = "/healthz") -> tuple[int, str, str | None]:
        return health_of(self.sink.metrics, path)


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    with closing(server.sink):
        yield server


def test_metrics_count_what_happened(served: Served) -> None:
    assert served.samples()["frames_total"] == 0
    served.take(
        Started(source="camera", model="m", query="?", backend="cpu"),
        *(frame(index, 1 + index * 0.04, capture_ns=index, ready_ns=index + 15_000_000) for index in range(5)),
        Cut(frame_index=3, pts_s=1.1, score=0.9),
        Skipped(frame_index=4, pts_s=1.1, what="packets 1-3", reason="bad", count=3),
        answer(1.0, "hello"),
        Restarted(process="answers", cause="killed by SIGKILL", count=1),
        Outage(frame_index=4, pts_s=1.2, reason="timed out"),
    )
    samples = served.samples()
    expected = {
        "frames_total": 5,
        "answers_total": 1,
        "cuts_total": 1,
        "skipped_total": 3,
        "outages_total": 1,
        "outage_active": 1,
        "healthy": 0,
        "restarts_total{answers}": 1,
        "dropped_total{capture.replaced}": 2,
        "tokens": 64,
        "tiles": 240,
        "frame_latency_seconds_count": 5,
        "frame_latency_seconds_bucket{0.01}": 0,
        "frame_latency_seconds_bucket{0.02}": 5,
        "frame_latency_seconds_bucket{+Inf}": 5,
        "ttft_seconds_count": 1,
        "ttft_seconds_sum": 0.04,
    }
    assert subset(samples, expected) == expected
    assert samples["frame_latency_seconds_sum"] == pytest.approx(0.075)
    assert samples["resident_memory_bytes{frames}"] > 2**20
    assert "resident_memory_bytes{answers}" not in samples


def test_looks_are_counted_and_what_holds_is_reported(served: Served) -> None:
    assert "watched_for{here}" not in served.samples()
    served.take(look(0.5, holds="no"), look(1.0, holds="yes"), look(1.0, holds=None, watch="gone"))
    served.take(match(1.0), match(2.0, 2))
    samples = served.samples()
    assert (samples["look_seconds_count"], samples["look_seconds_sum"]) == (3, pytest.approx(0.18))
    assert samples["watched_for{here}"] == 1
    assert samples["matches_total{here}"] == 2
    assert "watched_for{gone}" not in samples
    served.take(look(2.0, holds="no"))
    assert served.samples()["watched_for{here}"] == 0
    served.take(WatchesChanged(watch="here", watches=[]))
    assert not {"watched_for{here}", "matches_total{here}"} & served.samples().keys()


def test_jitter_is_reported_of_a_source_with_a_schedule(served: Served) -> None:
    served.take(*(frame(index, 0.5 + index * 0.04) for index in range(5)))
    samples = served.samples()
    assert samples["jitter_interval_std_seconds"] == pytest.approx(0, abs=1e-6)
    assert samples["jitter_interarrival_seconds"] == pytest.approx(0, abs=1e-6)
    assert samples["deadline_misses_total"] == 0


def test_target_and_budget_are_reported_if_a_latency_is_held(served: Served) -> None:
    served.take(answer(1.0, "a"))
    assert served.samples().keys().isdisjoint({"budget", "ttft_target_seconds"})
    served.take(replace(answer(2.0, "b"), target_ms=500.0, budget=212))
    samples = served.samples()
    assert (samples["budget"], samples["ttft_target_seconds"]) == (212, 0.5)
    assert samples["ttft_p95_seconds"] == pytest.approx(0.04)


def test_agreement_with_all_tokens_is_reported(served: Served) -> None:
    served.take(shadow(1.0))
    samples = served.samples()
    assert (samples["shadow_checks_total"], samples["shadow_same_total"]) == (1, 0)
    assert samples["shadow_words_share"] == pytest.approx(0.8)


def test_groups_of_pictures_are_counted_by_reason(served: Served) -> None:
    assert "appended_tokens_total" not in served.samples()
    point = replace(answer(1.0, "a"), group=1, began="first", appended_tokens=64)
    served.take(point, replace(point, began="", tokens_used=70, appended_tokens=6, superseded_tokens=9))
    expected = {
        "groups_total{first}": 1,
        "appended_tokens_total": 70,
        "kept_tokens_total": 64,
        "superseded_tokens_total": 9,
    }
    assert subset(served.samples(), expected) == expected


def test_health_follows_the_run(served: Served) -> None:
    assert served.health() == (200, "loading", None)
    assert served.health("/readyz") == (503, "loading", None)
    served.take(frame(0, 0.0))
    assert served.health() == (200, "ok", None)
    assert served.health("/readyz") == (503, "ok", None)
    served.take(answer(0.0, "hello"))
    assert served.health("/readyz") == (200, "ok", None)
    served.clock.advance(6 * NS_PER_S)
    assert served.health() == (503, "stalled", "no frame for 6.0 s")
    served.take(Outage(frame_index=0, pts_s=0.0, reason="timed out"))
    assert served.health() == (503, "outage", "timed out")
    assert served.health("/readyz") == (503, "outage", "timed out")
    served.take(Outage(frame_index=0, pts_s=0.0, reason="timed out", lasted_s=6.0, attempts=2), frame(1, 7.0))
    assert served.health() == (200, "ok", None)
    served.take(Restarted(process="answers", cause="killed by SIGKILL", count=1), frame(2, 7.1))
    assert served.health() == (503, "restarting", "answers: killed by SIGKILL")
    served.take(answer(7.1, "again"))
    assert served.health() == (200, "ok", None)
    served.take(summary(ended="interrupted"))
    assert served.health() == (503, "ended", "interrupted")


CAMERAS = ("door", "yard")


@pytest.fixture
def cameras() -> Iterator[RunMetrics]:
    monitors = {name: RunMonitor(Config(source="0")) for name in CAMERAS}
    for monitor in monitors.values():
        monitor.follow(WatchedRun())
    refused = {"gone": "/dev/video9 is not there"}
    with closing(RunMetrics("127.0.0.1", 0, monitors, refused, lambda: {"answers": os.getpid()})) as metrics:
        yield metrics


def feed(metrics: RunMetrics, name: str, *events: Event) -> None:
    monitor = metrics.monitors[name]
    assert monitor.run is not None
    for event in events:
        monitor.run.statistics.add(event)
        monitor.add(event)
        metrics.sinks[name].write(event)


def test_each_metric_names_its_camera(cameras: RunMetrics) -> None:
    feed(cameras, "door", frame(0, 0.0), frame(1, 0.04), answer(0.0, "an empty room"), look(0.5, holds="yes"))
    samples = scraped(cameras)
    expected = {
        "frames_total{door}": 2,
        "frames_total{yard}": 0,
        "ttft_seconds_count{door}": 1,
        "ttft_seconds_count{yard}": 0,
        "watched_for{door}{here}": 1,
        "dropped_total{yard}{capture.replaced}": 2,
        "healthy{door}": 1,
        "healthy{gone}": 0,
    }
    assert subset(samples, expected) == expected
    assert not any(name.startswith("watched_for{yard}") for name in samples)
    assert samples["resident_memory_bytes{answers}"] > 0
    cameras.sinks["door"].close()
    assert scraped(cameras)["frames_total{door}"] == 2, "figures stay at the end"


def test_health_is_lost_with_the_last_camera_and_readiness_with_the_first(cameras: RunMetrics) -> None:
    code, body = fetched(cameras.address, "/healthz")
    health = json.loads(body)
    assert (code, health["status"]) == (200, "degraded")
    assert health["cameras"]["gone"]["reason"] == "/dev/video9 is not there"
    assert fetched(cameras.address, "/readyz")[0] == 503
    cameras.monitors["door"].fail("refuses the connection")
    assert health_of(cameras)[0] == 200
    cameras.monitors["yard"].fail("refuses the connection")
    assert health_of(cameras) == (503, "failing", None)


def test_all_are_ready_once_each_has_answered() -> None:
    monitors = {name: RunMonitor(Config(source="0")) for name in CAMERAS}
    with closing(RunMetrics("127.0.0.1", 0, monitors)) as metrics:
        for name, monitor in monitors.items():
            assert fetched(metrics.address, "/readyz")[0] == 503
            monitor.follow(WatchedRun())
            feed(metrics, name, frame(0, 0.0), answer(0.0, "an empty room"))
        assert fetched(metrics.address, "/readyz")[0] == 200
        assert health_of(metrics) == (200, "ok", None)


class AnswerServerFixture:
    """Metrics of an answer server, and its statistics."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.statistics = ServerStatistics(self.clock)
        self.control = RunControl()
        config = Config(metrics=MetricsSection(port=free_port()), pipeline=PipelineConfig(timeout_s=10))
        self.metrics = ServerMetrics(config, self.statistics, self.control)

    def health(self) -> tuple[int, int, str]:
        """Status of /healthz and of /readyz, and of the server."""
        code, status, _ = health_of(self.metrics)
        return code, fetched(self.metrics.address, "/readyz")[0], status


@pytest.fixture
def answers() -> Iterator[AnswerServerFixture]:
    fixture = AnswerServerFixture()
    with closing(fixture.metrics):
        yield fixture


def test_a_server_is_ready_once_the_model_is_loaded_and_until_it_drains(answers: AnswerServerFixture) -> None:
    assert answers.health() == (200, 503, "loading")
    answers.statistics.begin_serving()
    assert answers.health() == (200, 200, "ok")
    answers.control.end()
    assert answers.health() == (200, 503, "draining")


def test_a_model_that_is_silent_for_too_long_is_not_healthy(answers: AnswerServerFixture) -> None:
    answers.clock.advance(1000 * NS_PER_S)
    assert answers.health() == (200, 503, "loading"), "loading takes as long as it takes"
    answers.statistics.begin_serving()
    answers.clock.advance(11 * NS_PER_S)
    assert answers.health() == (503, 503, "stalled")
    assert health_of(answers.metrics, "/readyz")[2] == "the model has produced nothing for 11 s"
    answers.statistics.note_poll()
    assert answers.health() == (200, 200, "ok")


def test_memories_of_a_server_and_their_evictions_are_reported(answers: AnswerServerFixture) -> None:
    assert "server_groups" not in scraped(answers.metrics)
    answers.statistics.memory_is(2, 130, 5)
    expected = {"server_groups": 2, "server_group_tokens": 130, "server_groups_evicted_total": 5}
    assert subset(scraped(answers.metrics), expected) == expected


def test_the_metrics_are_those_of_the_server(answers: AnswerServerFixture) -> None:
    statistics = answers.statistics
    statistics.begin_serving()
    statistics.clients_are(3)
    statistics.turn_requested(b"a")
    statistics.turn_requested(b"b")
    answers.clock.advance(2 * NS_PER_S)
    statistics.turn_granted(b"a")
    began_ns = statistics.turn_began()
    answers.clock.advance(2 * NS_PER_S)
    statistics.turn_ended(began_ns)
    statistics.count_answer(20, 64)
    samples = {name.removeprefix("server_"): value for name, value in scraped(answers.metrics).items()}
    expected = {
        "ready": 1,
        "clients": 3,
        "slots": 1,
        "slots_busy": 0,
        "turns_waiting": 1,
        "turn_wait_p95_seconds": 4,
        "busy_share": 0.5,
        "text_tokens_per_second": 5,
        "answers_total": 1,
        "text_tokens_total": 20,
        "visual_tokens_total": 64,
        "busy_seconds_total": 2,
        "turn_wait_seconds_sum": 2,
        "turn_wait_seconds_count": 1,
        "turn_seconds_count": 1,
        "uptime_seconds": 4,
    }
    assert subset(samples, expected) == expected
    assert samples["resident_memory_bytes{answers}"] > 1_000_000
    page = fetched(answers.metrics.address, "/metrics")[1]
    assert all(f'arr_coc_server_turn_seconds_bucket{{le="{bound:g}"}} ' in page for bound in TURN_BUCKETS_S)


DOCUMENT = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")


def documented(heading: str) -> set[str]:
    """Names of the metrics in the table under a heading of docs/metrics.md."""
    section = DOCUMENT.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.split("| path |")[0].splitlines() if line.startswith("| `")]
    return set(re.findall(r"`(\w+)(?:\{\w+\})?`", " ".join(cells)))


def exposed(server: MetricsServer) -> set[str]:
    families = text_string_to_metric_families(fetched(server.address, "/metrics")[1])
    return {f"{family.name}_total" if family.type == "counter" else family.name for family in families}


def test_the_document_lists_all_metrics(served: Served, answers: AnswerServerFixture) -> None:
    frames = [frame(index, index * 0.04, capture_ns=index, ready_ns=index + 1) for index in range(5)]
    point = replace(answer(1.0, "a"), target_ms=500.0, budget=212, group=1, began="first", idle_tokens=5)
    served.take(*frames, point, shadow(1.0), look(1.0, holds="yes"))
    answers.statistics.memory_is(1, 60, 0)
    assert exposed(served.sink.metrics) == {f"arr_coc_{name}" for name in documented("Metrics")}
    names = {f"arr_coc_server_{name}" for name in documented("Of `serve-answers`")}
    assert exposed(answers.metrics) == names | {"arr_coc_resident_memory_bytes"}
