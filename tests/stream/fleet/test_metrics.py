"""One endpoint for several cameras: their metrics by name, and health that says which of them is ill."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream.config import Config
from stream.errors import OutputError
from stream.fleet.cameras import NamedCamera
from stream.fleet.metrics import FleetMetrics
from tests.support.events import answer, frame
from tests.support.network import LIMIT_S
from tests.support.runs import WatchedRun

CAMERAS = [NamedCamera(name, Config(source="0")) for name in ("door", "yard")]


@pytest.fixture
def metrics() -> Iterator[FleetMetrics]:
    refused = {"gone": "/dev/video9 is not there"}
    with closing(FleetMetrics("127.0.0.1", 0, CAMERAS, refused, lambda: {"answers": os.getpid()})) as made:
        for camera in CAMERAS:
            made.follow(camera.name, WatchedRun())
        yield made


def fetched(metrics: FleetMetrics, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen("http://{}:{}{}".format(*metrics.address, path), timeout=LIMIT_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def values(metrics: FleetMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(fetched(metrics, "/metrics")[1])
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_each_metric_names_its_camera(metrics: FleetMetrics) -> None:
    door = metrics.sink("door")
    for event in (frame(0, 0.0), frame(1, 0.04), answer(0.0, "nobody")):
        metrics._monitors["door"].run.statistics.add(event)  # type: ignore[union-attr]
        door.write(event)
    found = values(metrics)

    def of(name: str, **labels: str) -> float:
        return found[f"arr_coc_{name}", frozenset(labels.items())]

    assert of("frames_total", camera="door") == 2
    assert of("frames_total", camera="yard") == 0
    assert of("ttft_seconds_count", camera="door") == 1
    assert of("dropped_total", camera="yard", queue="capture.replaced") == 2
    assert of("healthy", camera="door") == 1
    assert of("healthy", camera="gone") == 0
    assert of("resident_memory_bytes", process="answers") > 0
    door.close()
    assert values(metrics)["arr_coc_frames_total", frozenset({("camera", "door")})] == 2, "figures stay at the end"


def test_health_is_lost_with_the_last_camera_and_readiness_with_the_first(metrics: FleetMetrics) -> None:
    code, body = fetched(metrics, "/healthz")
    health = json.loads(body)
    assert (code, health["status"]) == (200, "degraded")
    assert health["cameras"]["gone"]["reason"] == "/dev/video9 is not there"
    assert fetched(metrics, "/readyz")[0] == 503
    metrics.failed("door", "refuses the connection")
    assert fetched(metrics, "/healthz")[0] == 200
    metrics.failed("yard", "refuses the connection")
    code, body = fetched(metrics, "/healthz")
    assert (code, json.loads(body)["status"]) == (503, "failing")
    assert fetched(metrics, "/")[0] == 404


def test_all_are_ready_once_each_has_answered() -> None:
    with closing(FleetMetrics("127.0.0.1", 0, CAMERAS, {}, dict)) as metrics:
        for camera in CAMERAS:
            assert fetched(metrics, "/readyz")[0] == 503
            metrics.follow(camera.name, WatchedRun())
            for event in (frame(0, 0.0), answer(0.0, "nobody")):
                metrics.sink(camera.name).write(event)
        assert fetched(metrics, "/readyz")[0] == 200
        assert json.loads(fetched(metrics, "/healthz")[1])["status"] == "ok"
        with pytest.raises(OutputError, match="another program uses that port"):
            FleetMetrics(*metrics.address, CAMERAS, {}, dict)
