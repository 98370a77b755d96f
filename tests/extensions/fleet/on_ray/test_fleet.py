"""A camera and its answer server on hosts that are lost and started again; here hosts are objects of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

import msgspec
import pytest

from stream.config import AnswerConfig
from stream.errors import ConfigError
from stream.events import Answer, Event, FrameReady, Notice, Restarted, Summary
from stream.extensions.fleet.cameras import NamedCamera
from stream.extensions.fleet.on_ray import cluster, run
from stream.extensions.fleet.on_ray.cluster import HostUnavailable
from stream.extensions.fleet.on_ray.hosts import DISTRIBUTION, CameraHost, HostIdentity
from stream.extensions.fleet.on_ray.run import MOVED, ClusterFleet, run_in_actor
from stream.extensions.fleet.on_ray.settings import RaySettings
from stream.runtime.worker_messages import (
    DropReport,
    Report,
    SourceOpened,
    WorkerFailed,
    WorkerFinished,
    pack_report,
    unpack_report,
)
from tests.support.fleets import FleetRecorder
from tests.support.network import LIMIT_S
from tests.support.runs import INFO, config

FAKE = "tests.support.answer_models:FakeAnswerModel"

LOST_CALLS = 3


class LocalActor:
    """A host in the place of an actor; `lose` ends it, and after some calls that fail there is another one."""

    def __init__(self, name: str, make_host: Callable[[], Any]) -> None:
        self.name, self._make_host = name, make_host
        self.host = make_host()
        self._refusals = 0

    def call(self, method: str, *arguments: object, limit_s: float) -> Any:
        if self._refusals:
            self._refusals -= 1
            raise HostUnavailable(f"{self.name} cannot be reached")
        if self.host is None:
            self.host = self._make_host()
        return getattr(self.host, method)(*arguments)

    def stream(self, method: str, *arguments: object) -> LocalStream:
        return LocalStream(self, self.call(method, *arguments, limit_s=LIMIT_S))

    def lose(self) -> None:
        self._refusals = LOST_CALLS
        self.kill()

    def kill(self) -> None:
        host, self.host = self.host, None
        if host is not None:
            host._control.cancel()
            if isinstance(host, CameraHost) and host._thread is not None:
                host._thread.join(LIMIT_S)


class LocalStream:
    """Items of a host, until its actor is lost."""

    def __init__(self, actor: LocalActor, items: Iterator[Any]) -> None:
        self._actor, self._host, self._items = actor, actor.host, items

    def next(self, wait_s: float) -> Any:
        if self._actor.host is not self._host:
            raise HostUnavailable(f"{self._actor.name} cannot be reached")
        return next(self._items)


class LocalCluster:
    def __init__(self) -> None:
        self.actors: dict[str, LocalActor] = {}

    def check(self, needs: Mapping[str, Mapping[str, float]]) -> None:
        self.needs = dict(needs)

    def has_room(self, resources: Mapping[str, float]) -> bool:
        return True

    def start(
        self, kind: Callable[..., Any], name: str, resources: Mapping[str, float], *arguments: object
    ) -> LocalActor:
        self.actors[name] = LocalActor(name, lambda: kind(name, *arguments))
        return self.actors[name]


def test_a_camera_goes_on_after_its_host_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "node_id", lambda: "a" * 56)
    monkeypatch.setattr(cluster, "node_address", lambda: "127.0.0.1")
    hosts = LocalCluster()

    def on_event(recorder: FleetRecorder, name: str, event: Event) -> None:
        if recorder.once("lose", bool(recorder.of("door", Answer))):
            hosts.actors["camera door"].lose()
            recorder.notes.append(f"{len(recorder.of('door', FrameReady))} frames")
        moves = [notice for notice in recorder.of("door", Notice) if notice.code == MOVED]
        if len(moves) > 1 and isinstance(event, Answer):
            recorder.runs["door"].end()

    recorder = FleetRecorder(on_event)
    settings = RaySettings(camera={"camera_host": 1}, answers={"GPU": 1})
    (outcome,) = ClusterFleet(
        [NamedCamera("door", config())],
        recorder,
        hosts,  # type: ignore[arg-type]
        settings,
        limit_s=120,
        model_loader=FAKE,
    ).run()
    assert hosts.needs == {"camera door": {"camera_host": 1}, "answers 1": {"GPU": 1}}
    assert recorder.failures == {}
    assert outcome.summary is not None
    assert (outcome.summary.ended, outcome.summary.error) == ("interrupted", None)
    assert [event.process for event in recorder.of("door", Restarted)] == ["frames"]
    numbers = [frame.frame_index for frame in recorder.of("door", FrameReady)]
    assert numbers == sorted(set(numbers)), "a frame's number is used once"
    answers = [answer.answer for answer in recorder.of("door", Answer)]
    assert answers == sorted(set(answers))
    assert any("answers 1 at tcp://127.0.0.1:" in note for note in recorder.notes)


def test_a_node_with_another_version_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "node_id", lambda: "a" * 56)
    monkeypatch.setattr(cluster, "node_address", lambda: "10.0.0.9")
    monkeypatch.setattr(run, "version", lambda distribution: "9.9")
    base = config()
    remote = base.model_copy(update={"answer": base.answer.model_copy(update={"server": "tcp://127.0.0.1:1"})})
    recorder, hosts = FleetRecorder(), LocalCluster()
    cameras = [NamedCamera("door", remote)]
    (outcome,) = ClusterFleet(cameras, recorder, hosts, RaySettings()).run()  # type: ignore[arg-type]
    assert isinstance(outcome.error, ConfigError)
    assert "the node 10.0.0.9 has arr-coc-stream" in recorder.failures["door"]
    assert "this machine 9.9; install the same version on every node" in recorder.failures["door"]
    assert list(hosts.needs) == ["camera door"], "it has a separate server"


def test_a_host_ends_its_reports_with_its_failure() -> None:
    host = CameraHost("camera door")
    nowhere = config().model_copy(update={"source": "/nowhere/clip.mp4"})
    reports = [unpack_report(report) for batch in host.run(nowhere) for report in batch]
    (failed,) = reports
    assert isinstance(failed, WorkerFailed)
    assert "/nowhere/clip.mp4" in failed.message
    assert repr(host) == "camera door"


class ReportsAtOnce:
    """A camera's host whose reports, up to the last one, come in one batch."""

    name = "camera door"

    def __init__(self, *reports: Report) -> None:
        self._reports = [pack_report(report) for report in reports]

    def call(self, method: str, *arguments: Any, limit_s: float) -> bytes | None:
        identity = HostIdentity("a" * 56, "10.0.0.9", version(DISTRIBUTION), 0)
        return msgspec.json.encode(identity) if method == "identity" else None

    def stream(self, method: str, *arguments: object) -> ReportsAtOnce:
        return self

    def next(self, wait_s: float) -> list[bytes]:
        return self._reports

    def kill(self) -> None: ...


def test_events_beside_the_opening_of_a_source_are_not_lost() -> None:
    early = Notice(code="model-world", message="the model knows drawn scenes")
    host = ReportsAtOnce(SourceOpened(INFO, "cpu"), early, DropReport({"capture.replaced": 3}), WorkerFinished())
    remote_config = config().model_copy(update={"answer": AnswerConfig(server="tcp://127.0.0.1:1")})
    remote = run_in_actor(remote_config, host)  # type: ignore[arg-type]
    events = list(remote.run())
    assert early in events
    assert isinstance(events[-1], Summary)
    assert events[-1].dropped == {"capture.replaced": 3}
