"""Cameras that run at once: one model for all, and the others after one has failed."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from arr_coc.errors import ModelNotFound
from stream.config import AnswerConfig, CaptureConfig, Config, OutputConfig
from stream.errors import OpeningCancelled, OutputError, SourceError, SourceNotFound, StageDied
from stream.events import Answer, Event, FrameReady, Restarted
from stream.extensions.fleet import run as fleet_run
from stream.extensions.fleet.cameras import NamedCamera
from stream.extensions.fleet.run import Fleet, may_come_back, niceness
from stream.extensions.past import sink as past_sink
from stream.extensions.past.search import PastReader, Search
from stream.extensions.past.section import PastSection
from stream.extensions.past.sink import open_writer
from stream.extensions.past.writer import PastWriter
from stream.runtime.run import Run
from stream.sources.timing import Backoff
from tests.support.children import SHARED, own_children
from tests.support.fleets import FleetRecorder
from tests.support.network import fetched, free_port, until
from tests.support.pictures import picture_fields
from tests.support.runs import config
from tests.support.web import PageClient

FAKE = "tests.support.answer_models:FakeAnswerModel"


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """However cameras end, their children and sockets are gone."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setattr(fleet_run, "start_fork_server", lambda: SHARED)
    yield
    assert own_children() == []
    assert list(folder.iterdir()) == []


def to_lines(base: Config, path: Path) -> Config:
    return base.model_copy(update={"output": OutputConfig(paths=(str(path),))})


def test_a_failure_of_one_camera_or_of_the_model_ends_no_other(tmp_path: Path) -> None:
    """One is absent, one loses its frame process, one answer process dies: the others go on with one model."""
    lines = tmp_path / "all.jsonl"
    cameras = [NamedCamera(name, to_lines(config(), lines)) for name in ("door", "yard")]
    cameras.append(NamedCamera("gone", to_lines(config(str(tmp_path / "gone.mp4")), lines)))
    names = ("door", "yard")
    counted: dict[str, int] = {}
    nice: list[int] = []

    def on_event(recorder: FleetRecorder, name: str, event: Event) -> None:
        if recorder.once("frames", all(recorder.of(camera, Answer) for camera in names)):
            nice.append(os.getpriority(os.PRIO_PROCESS, recorder.runs["door"].processes()["frames"]))
            os.kill(recorder.runs["door"].processes()["frames"], signal.SIGKILL)
        restarted = bool(recorder.of("door", Restarted))
        if recorder.once("answers", restarted and name == "door" and isinstance(event, Answer)):
            os.kill(fleet.processes()["answers"], signal.SIGKILL)
        if recorder.once("count", bool(recorder.notes)):
            counted.update({camera: len(recorder.of(camera, Answer)) for camera in names})
        if counted and all(len(recorder.of(camera, Answer)) > count for camera, count in counted.items()):
            for run in recorder.runs.values():
                run.end()

    recorder = FleetRecorder(on_event)
    fleet = Fleet(cameras, recorder, model_loader=FAKE)
    outcomes = {outcome.camera: outcome for outcome in fleet.run()}
    assert isinstance(outcomes["gone"].error, SourceNotFound)
    assert list(recorder.failures) == ["gone"]
    assert nice == [os.getpriority(os.PRIO_PROCESS, 0) + niceness(3)]
    assert recorder.notes == ["restarting answers: its process was killed by SIGKILL"]
    for name in ("door", "yard"):
        summary = outcomes[name].summary
        assert summary is not None
        assert (summary.ended, summary.error) == ("interrupted", None)
        assert len(recorder.of(name, FrameReady)) == summary.frames
        assert "main" not in recorder.runs[name].processes()
    assert [event.process for event in recorder.of("door", Restarted)] == ["frames", "answers"]
    assert [event.process for event in recorder.of("yard", Restarted)] == ["answers"]
    entries = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    assert {tuple(entry)[:2] for entry in entries} == {("type", "camera")}
    for name in ("door", "yard"):
        texts = [entry["text"] for entry in entries if entry["camera"] == name and entry["type"] == "answer"]
        assert texts == [answer.text for answer in recorder.of(name, Answer)]


def on_one_page(base: Config, port: int, metrics_port: int | None = None) -> Config:
    return base.with_values({"web.address": f"127.0.0.1:{port}", "metrics.port": metrics_port})


def test_all_cameras_are_on_one_page_also_those_that_cannot_be_watched(capsys: pytest.CaptureFixture[str]) -> None:
    port, metrics_port = free_port(), free_port()
    reports: dict[str, dict[str, Any]] = {}
    health: dict[str, str] = {}
    pictures: set[int] = set()

    def on_event(recorder: FleetRecorder, name: str, event: Event) -> None:
        if not recorder.once("look", name == "door" and isinstance(event, Answer)):
            return
        with connect(f"ws://127.0.0.1:{port}/live", max_size=None, compression=None) as connection:
            viewer = PageClient(connection)
            while not (pictures and {"gone", "refused"} <= health.keys()):
                viewer.take()
                pictures.update(picture_fields(body)["camera"] for body in viewer.pictures)
                ended = [text for text in viewer.texts if text["topic"] == "health" and text["status"] == "ended"]
                health.update({text["camera"]: text["reason"] for text in ended})
        reports.update(json.loads(fetched(("127.0.0.1", metrics_port), "/healthz")[1])["cameras"])
        for run in recorder.runs.values():
            run.end()

    cameras = [
        NamedCamera("door", on_one_page(config(), port, metrics_port)),
        NamedCamera("gone", on_one_page(config("gone.mp4"), port, metrics_port)),
    ]
    recorder = FleetRecorder(on_event)
    outcomes = Fleet(cameras, recorder, refused={"refused": "its name is wrong"}, model_loader=FAKE).run()
    assert [type(outcome.error) for outcome in outcomes] == [type(None), SourceNotFound]
    assert pictures == {0}
    assert health == {"gone": recorder.failures["gone"], "refused": "its name is wrong"}
    door = reports.pop("door")
    assert door["frames"] > 0
    assert door["frame_age_s"] is not None, "its monitor takes the events"
    assert {name: report["reason"] for name, report in reports.items()} == health
    assert f"web page at http://127.0.0.1:{port}/" in capsys.readouterr().err.splitlines()


def test_cameras_remember_in_one_file_by_one_writer_and_the_page_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, port = str(tmp_path / "past.sqlite"), free_port()
    replies: list[dict[str, Any]] = []
    paths: list[str] = []

    def counted(section: PastSection) -> PastWriter:
        paths.append(section.file or "")
        return open_writer(section)

    def on_event(recorder: FleetRecorder, name: str, event: Event) -> None:
        if recorder.once("asked", all(len(recorder.of(camera, Answer)) > 1 for camera in ("door", "yard"))):
            until(lambda: len(json.loads(fetched(("127.0.0.1", port), "/past")[1]).get("cameras", ())) == 2)
            replies.append(json.loads(fetched(("127.0.0.1", port), "/past?camera=door")[1]))
            for run in recorder.runs.values():
                run.end()

    monkeypatch.setattr(past_sink, "open_writer", counted)
    cameras = [
        NamedCamera(
            name,
            config().with_values({"web.address": f"127.0.0.1:{port}", "past.file": path, "past.camera": name}),
        )
        for name in ("door", "yard")
    ]
    recorder = FleetRecorder(on_event)
    Fleet(cameras, recorder, model_loader=FAKE).run()
    assert paths == [path]
    assert {moment["camera"] for moment in replies[0]["moments"]} == {"door"}
    assert all(moment["picture"] for moment in replies[0]["moments"])
    with closing(PastReader(path)) as reader:
        for name in ("door", "yard"):
            moments = reader.find(Search(cameras=(name,)))
            assert {moment.text for moment in moments} == {answer.text for answer in recorder.of(name, Answer)}
            assert sum(moment.times for moment in moments) == len(recorder.of(name, Answer))
            assert all(moment.picture for moment in moments)
            assert [moment.unix_ms for moment in moments] == sorted(
                (moment.unix_ms for moment in moments), reverse=True
            )


def test_a_page_that_cannot_be_served_is_an_error_before_any_camera_begins() -> None:
    recorder = FleetRecorder()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OutputError, match="the port is in use; name another one"):
            Fleet([NamedCamera("door", on_one_page(config(), port))], recorder, model_loader=FAKE).run()
    assert recorder.events == {}


def test_cameras_end_with_a_model_that_cannot_be_kept_alive_or_loaded() -> None:
    for model, kind, reason in (
        ("KilledAnswerModel", StageDied, "the answer stage died: it died once within a minute"),
        ("open_missing", ModelNotFound, "there is no folder nowhere"),
    ):
        cameras = [NamedCamera(name, config(restart_limit=1)) for name in ("a", "b")]
        recorder = FleetRecorder()
        outcomes = Fleet(cameras, recorder, model_loader=f"tests.support.answer_models:{model}").run()
        assert all(isinstance(outcome.error, kind) for outcome in outcomes), outcomes
        assert all(reason in failure for failure in recorder.failures.values()), recorder.failures
        assert set(recorder.failures) == {"a", "b"}


def test_frame_processes_weigh_together_no_more_than_two_others() -> None:
    assert [niceness(cameras) for cameras in (1, 2, 4, 8, 16)] == [0, 0, 4, 7, 10]
    assert all(cameras * 1.25 ** -niceness(cameras) <= 2 for cameras in range(1, 100))


def test_a_camera_that_is_not_there_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempts fail; that is reported once, and the camera is watched as soon as it can be opened."""
    tries: list[str] = []

    class Late(Fleet):
        def _open(self, camera: NamedCamera, config: Config) -> Run:
            tries.append(camera.name)
            if len(tries) < 4:
                raise SourceError("refuses the connection; check host and port")
            raise StageDied("frame", "enough")

    monkeypatch.setattr(Backoff, "next_s", lambda _: 0.0)
    recorder = FleetRecorder()
    server = AnswerConfig(server="tcp://127.0.0.1:9")
    (outcome,) = Late([NamedCamera("door", Config(source="rtsp://127.0.0.1:9/x", answer=server))], recorder).run()
    assert (len(tries), recorder.waits) == (4, {"door": "refuses the connection; check host and port; trying again"})
    assert isinstance(outcome.error, StageDied)


def test_only_what_is_live_and_may_be_opened_again_is_waited_for() -> None:
    error = SourceError("gone")
    assert may_come_back(error, Config(source="rtsp://h/1"))
    assert not may_come_back(error, Config(source="rtsp://h/1", capture=CaptureConfig(reconnect=False)))
    assert not may_come_back(error, Config(source="clip.mp4"))
    assert not may_come_back(OpeningCancelled("ended"), Config(source="rtsp://h/1"))
