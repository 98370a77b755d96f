"""Cameras and answer servers on a simulated Ray cluster of four nodes, of which some are killed."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stream.config import Config, OutputConfig
from stream.errors import ConfigError
from stream.events import Answer, Event, FrameReady, Notice, Restarted
from stream.extensions.fleet.cameras import NamedCamera
from stream.extensions.fleet.on_ray.cluster import RayCluster
from stream.extensions.fleet.on_ray.run import MOVED, ClusterFleet
from stream.extensions.fleet.on_ray.settings import RaySettings
from tests.support.fleets import FleetRecorder
from tests.support.runs import config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # Ray leaves sockets and files to the collector
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: arr-coc-stream[ray]"),
]

FAKE = "tests.support.answer_models:FakeAnswerModel"
STORE_BYTES = 80_000_000

BACK_S = 30.0
"""A camera of a lost node is back within this, most of which Ray takes to notice the loss."""


class Nodes:
    """A cluster of this machine: two nodes for cameras, one for answers, and the one of the command."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        options = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
        self.cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
        kinds: list[dict[str, int]] = [{"camera_host": 2}, {"camera_host": 2}, {"answer_host": 1}]
        self.nodes: list[Any] = [self.cluster.add_node(resources=kind, **options) for kind in kinds]

    def kill(self, prefix: str) -> None:
        """Kill the node whose id begins with this."""
        node = next(node for node in self.nodes if node.node_id.startswith(prefix))
        self.cluster.remove_node(node, allow_graceful=False)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    nodes = Nodes()
    yield nodes
    nodes.cluster.shutdown()
    left = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=20)
    assert [process.name() for process in alive] == []


def camera(name: str, lines: Path) -> NamedCamera:
    base: Config = config()
    return NamedCamera(name, base.model_copy(update={"output": OutputConfig(paths=(str(lines),))}))


def place_of(recorder: FleetRecorder, name: str) -> str:
    """The beginning of the id of the node that a camera runs on."""
    messages = [notice.message for notice in recorder.of(name, Notice) if notice.code == MOVED]
    return messages[-1].rpartition("(")[2].rstrip(")")


def test_cameras_of_a_lost_node_go_on_elsewhere(nodes: Nodes, tmp_path: Path) -> None:
    names, lines = ("door", "yard"), tmp_path / "all.jsonl"
    at_s: dict[str, float] = {}
    before: dict[str, int] = {}

    def on_event(recorder: FleetRecorder, name: str, event: Event) -> None:
        if recorder.once("kill", all(recorder.of(camera, Answer) for camera in names)):
            before.update({camera: len(recorder.of(camera, FrameReady)) for camera in names})
            at_s["killed"] = time.monotonic()
            threading.Thread(target=nodes.kill, args=(place_of(recorder, "door"),), daemon=True).start()
        if not recorder.of("door", Restarted):
            return
        has_moved = len([notice for notice in recorder.of("door", Notice) if notice.code == MOVED]) > 1
        if name == "door" and has_moved and isinstance(event, FrameReady):
            at_s.setdefault("back", time.monotonic())
        if name == "door" and "back" in at_s and isinstance(event, Answer):
            for run in recorder.runs.values():
                run.end()

    recorder = FleetRecorder(on_event)
    cluster = RayCluster(nodes.cluster.address)
    try:
        settings = RaySettings(camera={"camera_host": 1}, answers={"answer_host": 1})
        cameras = [camera(name, lines) for name in names]
        outcomes = ClusterFleet(cameras, recorder, cluster, settings, limit_s=180, model_loader=FAKE).run()
        with pytest.raises(ConfigError, match="no node of the Ray cluster has what camera x needs, 1 other;"):
            cluster.check({"camera x": {"other": 1}})
        with pytest.raises(ConfigError, match="need 9 camera_host, and the Ray cluster has"):
            cluster.check({f"camera {n}": {"camera_host": 1} for n in range(9)})
    finally:
        cluster.close()
    assert recorder.failures == {}
    assert all(outcome.summary is not None and outcome.summary.error is None for outcome in outcomes)
    assert at_s["back"] - at_s["killed"] < BACK_S
    assert not recorder.of("yard", Restarted)
    assert len(recorder.of("yard", FrameReady)) > before["yard"]
    for name in names:
        numbers = [frame.frame_index for frame in recorder.of(name, FrameReady)]
        assert numbers == sorted(set(numbers)), "a frame's number is used once"
    entries = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    for name in names:
        texts = [entry["text"] for entry in entries if entry["camera"] == name and entry["type"] == "answer"]
        assert texts == [answer.text for answer in recorder.of(name, Answer)]
