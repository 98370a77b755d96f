"""Pages of an answer server: its metrics, and whether it is healthy and ready."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest
from prometheus_client.parser import text_string_to_metric_families

from arr_coc.types import NS_PER_S
from stream.answer.server_statistics import ServerStatistics
from stream.config import Config, OutputConfig, PipelineConfig
from stream.control import RunControl
from stream.errors import OutputError
from stream.runtime.server_metrics import ServerMetrics
from tests.support.clock import FakeClock
from tests.support.network import LIMIT_S, free_port


class Fixture:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.statistics = ServerStatistics(self.clock)
        self.control = RunControl()
        output, pipeline = OutputConfig(metrics_port=free_port()), PipelineConfig(timeout_s=10)
        self.config = Config(output=output, pipeline=pipeline)
        self.server = ServerMetrics(self.config, self.statistics, self.control)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen("http://{}:{}{}".format(*self.server.address, path), timeout=LIMIT_S) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def health(self) -> tuple[int, int, str]:
        """Status of /healthz and of /readyz, and how the server is."""
        status, body = self.get("/healthz")
        return status, self.get("/readyz")[0], json.loads(body)["status"]

    def values(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.get("/metrics")[1])
        return {sample.name: sample.value for family in families for sample in family.samples}


@pytest.fixture
def served() -> Iterator[Fixture]:
    fixture = Fixture()
    with closing(fixture.server):
        yield fixture


def test_it_is_ready_once_the_model_is_loaded_and_until_it_drains(served: Fixture) -> None:
    assert served.health() == (200, 503, "loading")
    served.statistics.loaded()
    assert served.health() == (200, 200, "ok")
    served.control.end()
    assert served.health() == (200, 503, "draining")


def test_a_model_that_says_nothing_for_too_long_is_not_healthy(served: Fixture) -> None:
    served.clock.advance(1000 * NS_PER_S)
    assert served.health() == (200, 503, "loading"), "loading takes as long as it takes"
    served.statistics.loaded()
    served.clock.advance(11 * NS_PER_S)
    assert served.health() == (503, 503, "stalled")
    assert json.loads(served.get("/readyz")[1])["reason"] == "the model has said nothing for 11 s"
    served.statistics.seen()
    assert served.health() == (200, 200, "ok")


def test_the_metrics_are_those_of_the_server(served: Fixture) -> None:
    statistics = served.statistics
    statistics.loaded()
    statistics.clients_are(3)
    statistics.turn_requested(b"a")
    statistics.turn_requested(b"b")
    served.clock.advance(2 * NS_PER_S)
    statistics.turn_granted(b"a")
    began_ns = statistics.turn_began()
    served.clock.advance(2 * NS_PER_S)
    statistics.turn_ended(began_ns)
    statistics.answered(20, 64)
    values = {name.removeprefix("arr_coc_server_"): value for name, value in served.values().items()}
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
    assert {name: values[name] for name in expected} == expected
    assert values["arr_coc_resident_memory_bytes"] > 1_000_000


def test_there_are_no_other_pages(served: Fixture) -> None:
    assert served.get("/")[0] == 404


def test_a_port_in_use_is_refused(served: Fixture) -> None:
    with pytest.raises(OutputError, match="another program uses that port; name another with --metrics-port"):
        ServerMetrics(served.config, served.statistics, served.control)
